"""The facts of the depth router: what a read sees and when, and what that makes of Block and full Attention Residuals.

Facts about slots are read off the plain read, which keeps them as the equations write them; the lean read is held to
it at the end, degenerate values included.
"""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from schemes import READS, Case, by_name, events_of, gradients, noise, shake, shaken, some_tokens, tiny

from minihaares.depth_read import depth_scores, matched, mix
from minihaares.model import DepthRouter, ModelConfig, RouterOptions, Transformer

properties = settings(max_examples=50)
shapes = st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([2, 4, 10]))
seeds = st.integers(0, 2**20)
reads = st.sampled_from(READS)
every_read = pytest.mark.parametrize("read", READS)


def make(layers: int, width: int = 2, **options) -> DepthRouter:
    """A depth router alone, in float64: plain reads, raw details and zero queries unless the options say otherwise."""
    chosen = RouterOptions(**({"match": "none", "read": "plain"} | options))
    return DepthRouter(ModelConfig(layers=layers, width=width, heads=1), chosen, torch.Generator()).double()


def powers(count: int) -> list[torch.Tensor]:
    """Outputs 1, 10, 100, …: the digits of a source tell which events it sums, with which sign."""
    return [torch.full((1, 1, 2), 10.0**i, dtype=torch.float64) for i in range(count)]


EMBEDDING = torch.full((1, 1, 2), -7.0, dtype=torch.float64)  # no sum of powers of ten


def numbers(router: DepthRouter, outputs: list[torch.Tensor]) -> list[list[int]]:
    """The values of the sources of every read, the embedding's -7 first, and at last of the finished state."""
    states = events_of(router, EMBEDDING, outputs)
    return [[int(source[0, 0, 0]) for source in router.sources(state)] for state in states]


# ---- Table 2: which sources a read sees, which events they sum ----


def test_table_2_by_hand_four_events_a_block():
    assert numbers(make(4, blocks=2), powers(8)) == [
        [-7],
        [-7, 1, 1],
        [-7, 11, 11],
        [-7, 111, 11 - 100],
        [-7, 1111, 11 - 1100],
        [-7, 1111, -1089, 10_000, 10_000],
        [-7, 1111, -1089, 110_000, 110_000],
        [-7, 1111, -1089, 1_110_000, 110_000 - 1_000_000],
        [-7, 1111, -1089, 11_110_000, 110_000 - 11_000_000],
    ]


def test_table_2_by_hand_five_events_a_block():  # the odd event belongs to the early half
    assert numbers(make(5, blocks=2), powers(10))[:7] == [
        [-7],
        [-7, 1, 1],
        [-7, 11, 11],
        [-7, 111, 111],
        [-7, 1111, 111 - 1000],
        [-7, 11_111, 111 - 11_000],
        [-7, 11_111, -10_889, 100_000, 100_000],
    ]


def test_table_2_by_hand_without_details():
    assert numbers(make(3, blocks=2, detail="none"), powers(6)) == [
        [-7],
        [-7, 1],
        [-7, 11],
        [-7, 111],
        [-7, 111, 1000],
        [-7, 111, 11_000],
        [-7, 111, 111_000],
    ]
    assert numbers(make(2, blocks="full", detail="none"), powers(4))[-2:] == [[-7, 1, 10, 100], [-7, 1, 10, 100, 1000]]


def by_definition(sizes: list[int], detail: str, sign: Callable[[int, int, int], int]) -> list[list[int]]:
    """What `numbers` must be: before event i a block shows the sums of its events before i, and nothing if none."""
    reads = []
    for i in range(sum(sizes) + 1):
        sources, start = [-7], 0
        for size in sizes:
            written = range(start, min(start + size, i))
            if written:
                sources.append(sum(10**j for j in written))
                if detail != "none":
                    sources.append(sum(sign(j, j - start, size) * 10**j for j in written))
            start += size
        reads.append(sources)
    return reads


SIGNS = {
    "none": lambda event, place, size: 1,
    "half": lambda event, place, size: 1 if place < math.ceil(size / 2) else -1,
    "duplicate": lambda event, place, size: 1,
    "phase": lambda event, place, size: (-1) ** event,
}
ALL_EQUAL_SPLITS = [(L, N) for L in range(1, 9) for N in range(1, 2 * L + 1) if 2 * L % N == 0]


@pytest.mark.parametrize("detail", SIGNS)
def test_table_2_for_every_depth_and_block_count(detail):
    assert len(ALL_EQUAL_SPLITS) == 32
    for layers, blocks in ALL_EQUAL_SPLITS:
        expected = by_definition([2 * layers // blocks] * blocks, detail, SIGNS[detail])
        assert numbers(make(layers, blocks=blocks, detail=detail), powers(2 * layers)) == expected


@st.composite
def uneven(draw) -> tuple[int, ...]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5).filter(lambda s: sum(s) <= 15))
    return (*sizes, 1) if sum(sizes) % 2 else tuple(sizes)


@properties
@given(uneven(), st.sampled_from(sorted(SIGNS)))
def test_table_2_for_uneven_blocks(sizes, detail):
    events = sum(sizes)
    expected = by_definition(list(sizes), detail, SIGNS[detail])
    assert numbers(make(events // 2, blocks=sizes, detail=detail), powers(events)) == expected


def test_random_signs_are_signs_drawn_from_their_seed():
    def signs(seed):
        return [place.sign for place in make(24, blocks=4, detail="random_sign", sign_seed=seed).places]

    assert set(signs(0)) == {1, -1} and signs(0) == signs(0)
    assert len({tuple(signs(seed)) for seed in range(20)}) == 20
    assert abs(sum(sum(signs(seed)) for seed in range(20))) < 100  # 960 fair coins: 3.2 standard deviations
    drawn = make(3, blocks=2, detail="random_sign", sign_seed=5)
    by_event = [place.sign for place in drawn.places]
    assert numbers(drawn, powers(6)) == by_definition([3, 3], "random_sign", lambda event, place, size: by_event[event])


def test_no_block_is_active_before_its_first_write():
    for layers, blocks in ALL_EQUAL_SPLITS:
        router, m = make(layers, blocks=blocks), 2 * layers // blocks
        states = events_of(router, EMBEDDING, powers(2 * layers))
        for event, state in enumerate(states):
            assert len(state.active) == (0 if event % m == 0 else 2)
            assert len(state.sources) == 1 + 2 * (event // m)


@pytest.mark.parametrize("m", range(1, 11))
def test_the_pair_is_twice_the_same_through_the_early_half_and_the_contrast_comes_at_k_plus_2(m):
    router, k = make(m, blocks=2, width=4), math.ceil(m / 2)
    states = events_of(router, noise(2, 3, 4), [noise(2, 3, 4, seed=1 + i) for i in range(2 * m)])
    different = []
    for r in range(2, m + 1):
        C, D = states[m + r - 1].active  # of the second block, before its event r
        if not torch.equal(C, D):  # otherwise equal to the bit
            different.append(r)
    assert different == list(range(k + 2, m + 1))


@properties
@given(shapes, seeds)
def test_one_event_doubles_and_two_events_are_recovered(shape, seed):
    e, one, two = (noise(*shape, seed=seed + i) for i in range(3))

    def pairs(*blocks):
        router = make(1, shape[-1], blocks=blocks)
        return router.sources(events_of(router, e, [one, two])[-1])[1:]

    C, D = pairs(2)
    torch.testing.assert_close((C + D) / 2, one)
    torch.testing.assert_close((C - D) / 2, two)
    assert all(map(torch.equal, pairs(1, 1), (one, one, two, two)))


# ---- how many sources: equations.md section 3.9 ----


@pytest.mark.parametrize(
    "scheme, blocks, average, peak, final",
    [
        ("block", 4, 3.458, 5, 5),
        ("haares", 4, 5.917, 9, 5),
        ("block", 6, 4.438, 7, 7),
        ("haares", 6, 7.875, 13, 7),
        ("block", 8, 5.417, 9, 9),
        ("haares", 8, 9.833, 17, 9),
        ("attnres", "full", 48.5, 96, 97),
    ],
)
def test_source_counts_of_a_48_layer_model(scheme, blocks, average, peak, final, monkeypatch):
    counts, original = [], DepthRouter.weights

    def counting(self, sources, site):
        counts.append(len(sources))
        return original(self, sources, site)

    monkeypatch.setattr(DepthRouter, "weights", counting)
    config = dict(vocab_size=2, layers=48, width=2, heads=1, ff=1, scheme=scheme)
    Transformer(ModelConfig(**config, options={"blocks": blocks, "read": "plain"}))(torch.zeros(1, 1, dtype=torch.long))
    reads = counts[:-1]
    assert len(reads) == 96 and counts[-1] == final and max(reads) == peak
    assert abs(sum(reads) / 96 - average) < 5e-4 + 1e-12


def test_source_counts_in_closed_form():
    for layers, N in ALL_EQUAL_SPLITS:
        m = 2 * layers / N
        for detail, slots in [("none", 1), ("half", 2)]:
            router = make(layers, blocks=N, detail=detail)
            counts = [len(s) for s in numbers(router, powers(2 * layers))][:-1]
            assert sum(counts) / len(counts) == pytest.approx(1 + slots * ((N - 1) / 2 + 1 - 1 / m))
            assert max(counts) == 1 + slots * (N - 1 + (m > 1))


# ---- details masked, full and Block Attention Residuals ----


def with_weights_of(model: Transformer, scheme: str, **options) -> Transformer:
    """Another scheme with the same weights, as far as it has them."""
    case = Case("", scheme, {"read": model.config.options["read"]} | options)
    other = Transformer(tiny(case, layers=model.config.layers)).double()
    weights = model.state_dict()
    missing, _ = other.load_state_dict({n: w for n, w in weights.items() if n in other.state_dict()}, strict=False)
    assert not missing or missing == ["residual.detail_bias"]
    return other


@pytest.mark.parametrize("blocks", [2, "full", (3, 1, 4)], ids=str)
@every_read
def test_masked_details_leave_block_attention_residuals_to_the_bit(read, blocks):
    block = shaken(Case("", "block", {"blocks": blocks, "read": read}))
    masked = with_weights_of(block, "haares", blocks=blocks, bias="masked")
    assert torch.equal(masked(some_tokens()), block(some_tokens()))
    ours, theirs = gradients(masked, some_tokens()), gradients(block, some_tokens())
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


@pytest.mark.parametrize("case", by_name("block", "block-uneven"), ids=str)
def test_details_vanish_as_their_bias_goes_to_minus_infinity_and_not_before(case):
    block, tokens = shaken(case), some_tokens()
    expected = block(tokens)

    def distance(bias):
        options = {"blocks": case.options["blocks"], "bias": "fixed", "bias_init": bias}
        return (with_weights_of(block, "haares", **options)(tokens) - expected).abs().max()

    assert distance(-2.0) > 1e-2
    assert 1e-9 < distance(-20.0) < 1e-4 < distance(-10.0)
    if case.options["read"] == "plain":
        assert distance(-1e4) == 0  # exp(-1e4) is zero
    else:
        assert distance(-1e4) < 1e-12  # the lean read adds a block's two halves, which rounds otherwise


@every_read
def test_as_many_blocks_as_events_are_full_attention_residuals(read):
    full = shaken(Case("", "attnres", {"read": read}))
    for scheme, options in [
        ("block", {"blocks": 8}),
        ("block", {"blocks": [1] * 8}),
        ("attnres", {"blocks": 8}),
        ("haares", {"blocks": 8, "bias": "masked"}),
    ]:
        same = with_weights_of(full, scheme, **options)
        assert torch.equal(same(some_tokens()), full(some_tokens()))
    assert not torch.equal(with_weights_of(full, "block", blocks=4)(some_tokens()), full(some_tokens()))


@every_read
def test_one_block_without_queries_is_the_standard_stream_halved(read):
    # One block, zero queries: every read but the first is (e + Σu) / 2, which a norm without epsilon cannot tell from
    # the standard sum.
    case = Case("", "block", {"blocks": 1, "read": read})
    routed = Transformer(tiny(case, norm_eps=1e-20)).double()
    standard = Transformer(tiny(Case("", "standard"), norm_eps=1e-20)).double()
    torch.testing.assert_close(routed(some_tokens()), standard(some_tokens()), rtol=1e-10, atol=1e-12)


@properties
@given(shapes, seeds, st.floats(-6, 3, width=32), st.integers(1, 3))
def test_a_duplicate_slot_is_one_slot_with_a_higher_score(shape, seed, bias, blocks):
    router = make(blocks, shape[-1], blocks=blocks, detail="duplicate", bias="fixed", bias_init=bias, match="rms")
    single = make(blocks, shape[-1], blocks=blocks, detail="none")
    shake(router, seed), shake(single, seed)
    outputs = [noise(*shape, seed=seed + i) for i in range(2 * blocks + 1)]
    doubled = router.sources(events_of(router, outputs[0], outputs[1:])[-1])
    sources = single.sources(events_of(single, outputs[0], outputs[1:])[-1])
    assert len(doubled) == 2 * blocks + 1 and all(map(torch.equal, doubled[1::2], doubled[2::2]))

    site = 2 * blocks - 1
    w, read = router.weights(doubled, site), mix(router.weights(doubled, site), doubled)
    z = depth_scores(sources, single.query[site], single.key_gain[site], 1e-6)
    z[1:] += math.log1p(math.exp(bias))
    merged = torch.softmax(z, 0)
    torch.testing.assert_close(torch.stack([w[0], *(w[1::2] + w[2::2])]), merged, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(read, mix(merged, sources), rtol=1e-10, atol=1e-13)


# ---- the matched detail ----


@properties
@given(shapes, seeds, st.floats(-3, 3), st.floats(1, 8))
def test_matching_brings_the_detail_to_the_rms_of_the_sum_within_its_clip(shape, seed, exponent, gamma):
    C, D = noise(*shape, seed=seed), noise(*shape, seed=seed + 1) * 10**exponent
    found = matched(C, D, gamma, 1e-6)
    ratio = (C.square().mean(-1).sqrt() / (D.square().mean(-1).sqrt() + 1e-6)).clamp(1 / gamma, gamma)
    torch.testing.assert_close(found, ratio[..., None] * D, rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [0.03, 0.8, 1.0, 1.3, 30.0])  # below, inside and above the clip
def test_the_jacobian_of_a_matched_detail_is_its_multiplier_times_the_identity(size):
    C, D = noise(1, 2, 3), size * noise(1, 2, 3, seed=1)
    by_C, by_D = torch.autograd.functional.jacobian(lambda C, D: matched(C, D, 4.0, 1e-6), (C, D))
    assert not by_C.any()
    a = (matched(C, D, 4.0, 1e-6) / D)[..., :1].expand_as(D)
    assert torch.equal(a, a.clamp(0.25, 4.0))
    torch.testing.assert_close(by_D.reshape(6, 6), torch.diag(a.flatten()), rtol=1e-12, atol=0)


@properties
@given(shapes, seeds)
def test_no_sum_gives_a_quarter_of_the_detail_and_no_detail_stays_zero(shape, seed):
    D, zero = noise(*shape, seed=seed), torch.zeros(shape, dtype=torch.float64)
    assert torch.equal(matched(zero, D, 4.0, 1e-6), D / 4)
    for C in (D, zero):
        assert torch.equal(matched(C, zero, 4.0, 1e-6), zero)


@every_read
def test_an_empty_detail_keeps_its_share_of_the_read(read):
    u = noise(2, 3, 4, seed=1)
    router = shake(make(1, 4, blocks=(2,), match="rms", read=read, readout_details=True))
    state = events_of(router, noise(2, 3, 4), [u, u])[-1]  # equal halves: D = 0
    e, C, D = state.sources
    assert torch.equal(C, 2 * u) and not D.any()
    w = router.weights(state.sources, 2)
    scores = depth_scores((e, C), router.query[2], router.key_gain[2], 1e-6)
    expected = torch.softmax(torch.cat((scores, router.detail_bias[2].expand(1, 2, 3))), 0)  # a zero vector scores 0
    torch.testing.assert_close(w, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(router.readout(state), w[0, ..., None] * e + w[1, ..., None] * C)


# ---- what the pair forgets ----

halves = st.integers(1, 9).flatmap(lambda m: st.tuples(st.just(m), st.permutations(range(m))))


@properties
@given(halves, reads, seeds)
def test_the_pair_is_blind_to_the_order_within_a_half(drawn, read, seed):
    m, order = drawn
    k = math.ceil(m / 2)
    order = [i for i in order if i < k] + [i for i in order if i >= k]
    router = make(m, 4, blocks=(m, m), match="rms", read=read)
    whole = [noise(1, 2, 4, seed=seed + i).mul(1000).round() for i in range(2 * m)]  # whole numbers sum exactly
    before = events_of(router, whole[0], whole)[-1].sources
    after = events_of(router, whole[0], [whole[i] for i in order] + whole[m:])[-1].sources
    assert all(map(torch.equal, before, after))


@properties
@given(st.integers(2, 9), st.data(), reads, seeds)
def test_an_exchange_across_the_halves_moves_only_the_detail(m, data, read, seed):
    k = math.ceil(m / 2)
    early, late = data.draw(st.integers(0, k - 1)), data.draw(st.integers(k, m - 1))
    router = make(m, 4, blocks=(m, m), read=read)
    whole = [noise(1, 2, 4, seed=seed + i).mul(1000).round() for i in range(2 * m)]
    swapped = whole.copy()
    swapped[early], swapped[late] = whole[late], whole[early]
    before, after = (events_of(router, whole[0], outputs)[-1].sources for outputs in (whole, swapped))
    assert torch.equal(after[1], before[1])
    assert torch.equal(after[2] - before[2], 2 * (whole[late] - whole[early]))
    assert all(map(torch.equal, before[3:], after[3:]))


# ---- weights ----


@properties
@given(shapes, seeds, st.floats(-4, 4, width=32), st.integers(1, 4))
def test_zero_queries_weigh_all_sources_of_a_kind_alike(shape, seed, bias, blocks):
    router = make(blocks, shape[-1], blocks=blocks, bias="fixed", bias_init=bias, match="rms")
    outputs = [noise(*shape, seed=seed + i) for i in range(2 * blocks + 1)]
    w = router.weights(router.sources(events_of(router, outputs[0], outputs[1:])[-1]), 0)
    share = torch.tensor([1.0] + [1.0, math.exp(bias)] * blocks, dtype=torch.float64)
    torch.testing.assert_close(w, (share / share.sum())[:, None, None].expand_as(w), rtol=1e-12, atol=0)
    single = make(blocks, shape[-1], blocks=blocks, detail="none")
    w = single.weights(events_of(single, outputs[0], outputs[1:])[-1].sources, 0)
    assert (w == w[0, 0, 0]).all() and abs(w[0, 0, 0] - 1 / (blocks + 1)) < 1e-15


@properties
@given(shapes, seeds, st.integers(1, 5))
def test_a_read_is_a_convex_mixture_of_its_sources(shape, seed, count):
    sources = [noise(*shape, seed=seed + i) for i in range(count)]
    router = shake(make(3, shape[-1], blocks=3, bias="masked"), seed)
    w = router.weights(tuple(sources), 2)
    assert w.shape == (count, *shape[:-1]) and w.min() > 0
    torch.testing.assert_close(w.sum(0), torch.ones(shape[:-1]).double())
    torch.testing.assert_close(mix(w, sources), torch.einsum("sbt,sbtd->btd", w, torch.stack(sources)))


def test_only_details_are_biased_and_only_where_they_are_read():
    for readout_details in (False, True):
        router = make(3, 2, blocks=3, bias="fixed", bias_init=2.0, readout_details=readout_details)
        state = events_of(router, EMBEDDING, powers(6))[-1]
        log_w = router.weights(state.sources, 5)[:, 0, 0].log()
        torch.testing.assert_close(log_w - log_w[0], torch.tensor([0.0, 0, 2, 0, 2, 0, 2], dtype=torch.float64))
        read = router.readout(state)[0, 0, 0]
        if not readout_details:
            torch.testing.assert_close(read, torch.tensor((111_111 - 7) / 4).double())
        else:
            e2, D = math.exp(2), (1 - 10) * 10_101
            torch.testing.assert_close(read, torch.tensor((111_111 - 7 + e2 * D) / (4 + 3 * e2)).double())


def test_the_detail_bias_is_learned_fixed_or_absent():
    learned, fixed, masked = (make(2, blocks=2, bias=bias, bias_init=-1.0) for bias in ("learned", "fixed", "masked"))
    assert [n for n, _ in learned.named_parameters()] == ["query", "key_gain", "detail_bias"]
    assert [n for n, _ in fixed.named_parameters()] == ["query", "key_gain"]
    assert [n for n, _ in fixed.named_buffers()] == ["detail_bias"] and (fixed.detail_bias == -1).all()
    assert len(masked.state_dict()) == 2 and len(make(2, blocks=2, key_gain=False, bias="masked").state_dict()) == 1
    assert len(learned.detail_bias) == 4 and len(make(2, blocks=2, readout_details=True).detail_bias) == 5


@properties
@given(shapes, seeds)
def test_non_contiguous_sources(shape, seed):
    B, T, d = shape
    sources = [noise(T, d, B, seed=seed + i).permute(2, 0, 1) for i in range(3)]
    solid, query = [s.contiguous() for s in sources], noise(2 * d, seed=seed)[::2]
    z = depth_scores(solid, query.contiguous(), None, 1e-6)
    torch.testing.assert_close(depth_scores(sources, query, None, 1e-6), z, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(mix(z.permute(0, 2, 1).contiguous().mT, sources), mix(z, solid), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(matched(*sources[:2], 4.0, 1e-6), matched(*solid[:2], 4.0, 1e-6), rtol=1e-12, atol=0)


# ---- the lean reads ----


@settings(max_examples=120)
@given(
    sizes=uneven(),
    kind=st.sampled_from(["noise", "equal halves", "opposite halves", "tiny", "huge", "zeros"]),
    detail=st.sampled_from(["none", "half", "duplicate", "random_sign", "phase"]),
    match=st.sampled_from(["rms", "none"]),
    gamma=st.sampled_from([4.0, 1.5]),
    bias=st.sampled_from(["learned", "fixed", "masked"]),
    key_gain=st.booleans(),
    readout_details=st.booleans(),
    seed=seeds,
)
def test_lean_reads_give_the_numbers_of_the_plain_one(sizes, kind, seed, **options):
    shape, scale = (2, 3, 4), {"zeros": 0.0, "tiny": 1e-6, "huge": 1e6}.get(kind, 1.0)

    def run(read):
        router = shake(make(sum(sizes) // 2, 4, blocks=sizes, read=read, **options), seed)
        outputs = [scale * noise(*shape, seed=seed + i) for i in range(sum(sizes))]
        if "halves" in kind:  # blocks whose D, or C, is exactly zero whenever its signs are in balance
            turn = [1 if kind == "equal halves" else place.sign for place in router.places]
            outputs = [t * outputs[0] for t in turn]
        leaves = [x.requires_grad_() for x in (noise(*shape, seed=seed - 1), *outputs)]
        state, mixtures = router.begin(leaves[0]), []
        for event, u in enumerate(leaves[1:]):
            x, state = router.read(state, event)
            # Like a sublayer, so that later reads depend on earlier ones: unless the balance must not be upset.
            state = router.write(state, event, u if "halves" in kind else u + scale * torch.tanh(x))
            mixtures.append(x)
        mixtures = torch.stack([*mixtures, router.readout(state)])
        inputs, cotangent = leaves + list(router.parameters()), noise(*mixtures.shape, seed=seed)
        return mixtures, *torch.autograd.grad((mixtures * cotangent).sum(), inputs)

    plain = run("plain")
    for read in READS:
        for ours, theirs in zip(run(read), plain, strict=True):
            assert (ours - theirs).abs().max() <= 1e-9 * max(1.0, theirs.abs().max())
