"""The oracle against cases small enough to do by hand, so that the measure has been measured."""

import math
from dataclasses import replace
from fractions import Fraction

import oracle
import pytest
import torch
from oracle import Router, RouterOptions, Source

HAND = RouterOptions(key_gain=False, key_eps=0.0, eps=0.0, bias=0.0)  # no epsilons: round numbers
ZERO = Router(torch.zeros(1, dtype=torch.float64), None, 0.0)  # for d = 1: every read is a mean
TOKENS = torch.tensor([[3, 1, 4, 1, 5], [2, 0, 2, 6, 1]])


def tensor(*values):
    """A float64 stream [1, 1, d] with these channels."""
    return torch.tensor(values, dtype=torch.float64).view(1, 1, -1)


def random_weights(layers, scheme, options=None, seed=0):
    """Weights of a width-8, ff-6, vocab-7 model, away from special values: no query is 0, no gain is 1."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in oracle.weight_shapes(layers, 8, 6, 7, scheme, options).items():
        centre = 1.0 if "norm" in name or "gain" in name else 0.0
        draw = torch.randn(shape, generator=generator, dtype=torch.float64)
        weights[name] = (centre + 0.4 * draw).requires_grad_()
    return weights


def forward(weights, layers, scheme, options=None, tokens=TOKENS):
    return oracle.forward(weights, tokens, layers, 2, scheme, options)


def run(values, embedding, options):
    """The reads at d = 1 when event i makes `values[i]` whatever it reads, all queries and biases zero."""
    sublayers = [lambda x, u=u: tensor(u) for u in values]
    return oracle.depth_router(embedding, sublayers, [ZERO] * len(values), ZERO, options)


def labels(read):
    return [source.label for source in read.sources]


# ---- parts ----

def test_rms_norm_by_hand():
    # the mean of 9 and 16 is 12.5, its root 3.5355339: 3 over it is 0.8485281, 4 over it 1.1313708, gain 2
    normed = oracle.rms_norm(tensor(3, 4), tensor(1, 2), eps=0.0)
    torch.testing.assert_close(normed, tensor(0.848528137423857, 2.262741699796952))
    assert oracle.rms_norm(tensor(0, 0), None, 1e-6).tolist() == [[[0.0, 0.0]]]


def test_rope_pairs_and_angles_by_hand():
    # hd = 4: channels 0 and 2 turn by the position, channels 1 and 3 by position * 10000^(-2/4)
    x = torch.tensor([[9.0, 9, 9, 9], [1, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.float64).unsqueeze(0)
    turned = oracle.rotate(x, 1e4)[0]
    assert turned[0].tolist() == [9, 9, 9, 9]  # position 0 does not turn
    assert turned[1].tolist() == pytest.approx([math.cos(1), 0, math.sin(1), 0])
    assert turned[2].tolist() == pytest.approx([0, math.cos(0.02), 0, math.sin(0.02)])


def test_attention_by_hand():
    # identity maps, x_0 = (1, 0), x_1 = (0, 1). Turned by 1 radian, x_1 is (-sin 1, cos 1): its product with
    # x_0 is -sin 1, with itself 1. Over sqrt 2: -0.595010 and 0.707107, so w_0 = 1 / (1 + e^1.302117).
    eye = torch.eye(2, dtype=torch.float64)
    x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    out = oracle.attention(x, dict(wq=eye, wk=eye, wv=eye, wo=2 * eye), heads=1, base=1e4)
    assert out[0, 0].tolist() == [2.0, 0.0]  # the first position has only itself
    assert out[0, 1].tolist() == pytest.approx([2 * 0.213809, 2 * 0.786191], abs=2e-6)


def test_attention_agrees_with_torch():
    generator = torch.Generator().manual_seed(1)
    draws = torch.randn(4, 8, 8, generator=generator, dtype=torch.float64)
    w = dict(zip(("wq", "wk", "wv", "wo"), draws, strict=True))
    x = torch.randn(2, 6, 8, generator=generator, dtype=torch.float64)
    angle = torch.arange(6.0, dtype=torch.float64)[:, None] * 100.0 ** -torch.tensor([0.0, 0.5]).double()
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)  # [T, hd = 4]
    q, k, v = ((x @ w[name].T).view(2, 6, 2, 4).transpose(1, 2) for name in ("wq", "wk", "wv"))
    q, k = (y * cos + torch.cat([-y[..., 2:], y[..., :2]], -1) * sin for y in (q, k))
    heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = heads.transpose(1, 2).reshape(2, 6, 8) @ w["wo"].T
    torch.testing.assert_close(oracle.attention(x, w, 2, 100.0), expected, rtol=1e-12, atol=1e-12)


def test_swiglu_by_hand():
    # x = 2: gate 1*2 + 1 = 3, silu(3) = 3 / (1 + e^-3) = 2.857722; up 3*2 - 1 = 5; down 0.5 * 14.288611 + 1
    w = dict(w_gate=[[1.0]], b_gate=[1.0], w_up=[[3.0]], b_up=[-1.0], w_down=[[0.5]], b_down=[1.0])
    w = {name: torch.tensor(value, dtype=torch.float64) for name, value in w.items()}
    assert oracle.swiglu(tensor(2), w).item() == pytest.approx(8.1443057)


# ---- additive schemes ----

def test_additive_streams_by_hand():
    e, norm = tensor(3, 4), lambda h: oracle.rms_norm(h, None, 0.0)
    outputs = [lambda x: tensor(0, -1), lambda x: tensor(2, 0) * x]

    def last(scheme, *args):
        return oracle.additive_stream(scheme, e, outputs, [norm] * 2, *args)[-1].flatten().tolist()

    # (3, 3), whose norm is (1, 1); the second event adds (2, 0)
    assert last("standard") == pytest.approx([5, 3])
    # (3, 3) becomes (1, 1); then (1, 1) + (2, 0) = (3, 1), whose RMS is root 5
    assert last("postnorm") == pytest.approx([3 / 5**0.5, 1 / 5**0.5])
    # M = 8: 16^(1/4) = 2 and 64^(-1/4) = 1 / (2 root 2)
    assert oracle.deepnorm_constants(8) == pytest.approx((2, 0.3535533905932738))
    # alpha = 2: (6, 8) + (0, -1) = (6, 7), up to its RMS s; then (12, 14) + (12, 0) = (24, 14), RMS root 386
    assert last("deepnorm", (), 2.0) == pytest.approx([24 / 386**0.5, 14 / 386**0.5])
    # the first output is halved, the second silenced
    assert last("rezero", [tensor(0.5), tensor(0)]) == pytest.approx([3, 3.5])
    # (3, 4) + (0, -2) = (3, 2), RMS root 6.5; then 0.1 times 2 times the first channel, 3 / root 6.5
    assert last("layerscale", [tensor(1, 2), tensor(0.1, 5)]) == pytest.approx([3 + 0.6 / 6.5**0.5, 2])
    with pytest.raises(ValueError, match="unknown scheme"):
        last("no such scheme")


# ---- accumulators ----

def test_block_sizes():
    assert oracle.block_sizes(96, 4) == [24, 24, 24, 24]
    assert oracle.block_sizes(10, 4) == [3, 3, 2, 2]
    assert oracle.block_sizes(6, [1, 3, 2]) == [1, 3, 2]
    for wrong in (0, 7, -1, [], [3, 2], [6, 0]):
        with pytest.raises(ValueError, match="do not fit"):
            oracle.block_sizes(6, wrong)


@pytest.mark.parametrize(("size", "expected"), [
    # Table 2, k = 2: C and D before r = 1 .. 4, then the complete block; events are 1, 10, 100, 1000
    (4, [None, (1, 1), (11, 11), (111, -89), (1111, -1089)]),
    # k = 3: an odd block gives its extra event to the early half; the first contrast is read at r = k + 2 = 5
    (5, [None, (1, 1), (11, 11), (111, 111), (1111, -889), (11111, -10889)]),
])
def test_table_2(size, expected):
    blocks = 1 if size == 4 else 2  # whole layers have an even number of events: 5 comes twice
    options = replace(HAND, blocks=blocks, readout_details=True)
    reads = run([10.0**r for r in range(size)] * blocks, tensor(7), options)
    for event in range(size * blocks):
        block, written = event // size + 1, event % size
        done = [(kind, n) for n in range(1, block) for kind in "CD"]
        active = [("C", block), ("D", block)] if written else []
        assert labels(reads[event]) == [("e",), *done, *active]
        if written:
            assert tuple(source.raw.item() for source in reads[event].sources[-2:]) == expected[written]
    assert [source.raw.item() for source in reads[-1].sources] == [7, *expected[size] * blocks]


@pytest.mark.parametrize(("detail", "signs", "expected"), [
    ("phase", (), 1 - 10 + 100 - 1000),
    ("random_sign", [[-1, 1, 1, -1]], -1 + 10 + 100 - 1000),
    ("duplicate", (), 1111),
])
def test_other_details_by_hand(detail, signs, expected):
    u, options = [1, 10, 100, 1000], replace(HAND, blocks=1, detail=detail, signs=signs, eps=1.0)
    _, C, D = run(u, tensor(7), replace(options, readout_details=True))[-1].sources
    assert (C.raw.item(), D.raw.item()) == (1111, expected)
    # eps = 1: the factor is 1111 / (|D| + 1), within the bounds for both; a duplicate is not matched
    factor = 1 if detail == "duplicate" else 1111 / (abs(expected) + 1)
    assert D.value.item() == pytest.approx(factor * expected)
    unmatched = run(u, tensor(7), replace(options, readout_details=True, match="none"))[-1].sources[-1]
    assert unmatched.value.item() == expected


def test_phase_follows_the_event_not_the_place_in_the_block():
    # blocks of 1 and 3: the second block starts with an MLP, event 1
    options = replace(HAND, blocks=[1, 3], detail="phase", readout_details=True)
    sources = run([1, 10, 100, 1000], tensor(7), options)[-1].sources
    assert [s.raw.item() for s in sources] == [7, 1, 1, 1110, -10 + 100 - 1000]


# ---- matching ----

@pytest.mark.parametrize(("C", "D", "expected"), [
    ((3, 4), (1, 1), 3.5355339059327378 / 1.000001),  # RMS 3.5355 and 1: inside the bounds
    ((3, 4), (0.5, 0.5), 4.0),  # ratio 7.07, clipped from above
    ((1, 1), (10, 10), 0.25),  # ratio 0.1, clipped from below
    ((0, 0), (10, -3), 0.25),  # the total cancels: D / 4 exactly
    ((3, 4), (0, 0), 4.0),  # D = 0: the factor is at its bound, the value stays 0
    ((0, 0), (0, 0), 0.25),  # 0 / eps
    ((1e-6, 1e-6), (1e-6, 1e-6), 0.5),  # D = C is not matched to a factor of 1 when it is as small as eps
])
def test_match_factor_by_hand(C, D, expected):
    factor = oracle.match_factor(tensor(*C), tensor(*D), RouterOptions())
    assert factor.item() == pytest.approx(expected, rel=1e-12)


def test_match_factor_axes_by_hand():
    # two sequences of two tokens, d = 1; D is 1 everywhere
    C = torch.tensor([[[1.0], [3.0]], [[2.0], [2.0]]], dtype=torch.float64)
    D = torch.ones_like(C)
    for axes, expected in {
        "token": [1, 3, 2, 2],
        "time": [5**0.5, 5**0.5, 2, 2],  # the first sequence: (1 + 9) / 2 = 5
        "batch": [4.5**0.5] * 4,  # (1 + 9 + 4 + 4) / 4 = 4.5
    }.items():
        factor = oracle.match_factor(C, D, RouterOptions(rms_axes=axes, eps=0.0)).expand(2, 2, 1)
        assert factor.flatten().tolist() == pytest.approx(expected)


def test_the_factor_is_a_constant_of_the_gradient():
    C, D = tensor(3, 4).requires_grad_(), tensor(1, 2).requires_grad_()
    factor = oracle.match_factor(C, D, RouterOptions()).item()
    for channel in range(2):
        matched = oracle.block_slots(1, C, D, RouterOptions())[1].value[0, 0, channel]
        to_c, to_d = torch.autograd.grad(matched, (C, D), allow_unused=True)
        assert to_c is None
        assert to_d.flatten().tolist() == [factor if j == channel else 0.0 for j in range(2)]


# ---- reads ----

def test_one_read_by_hand():
    # values 2 and -1 have keys 1 and -1, query 1. As C: weights e / (e + 1/e) = 0.880797 and 0.119203.
    # As a detail with bias -2 the second score is -3: weights 1 / (1 + e^-4) = 0.982014 and 0.017986.
    router, second = Router(tensor(1).flatten(), None, -2.0), tensor(-1)
    e = Source(("e",), tensor(2), tensor(2))
    plain = oracle.read([e, Source(("C", 1), second, second)], router, 0.0)
    assert plain.mixture.item() == pytest.approx(2 * 0.8807970780 - 0.1192029220)
    biased = oracle.read([e, Source(("D", 1), second, second)], router, 0.0)
    assert [z.item() for z in biased.scores] == [1, -3]
    assert biased.mixture.item() == pytest.approx(2 * 0.9820137900 - 0.0179862100)


def test_key_gain_weights_the_channels_of_the_key():
    # value (3, 3) has key (1, 1); gain (2, 5), query (1, -1): score 2 - 5 = -3
    router = Router(tensor(1, -1).flatten(), tensor(2, 5).flatten(), 0.0)
    assert oracle.read([Source(("e",), tensor(3, 3), tensor(3, 3))], router, 0.0).scores[0].item() == -3


def test_a_whole_router_by_hand():
    # d = 1, e = 1, f(x) = x + 1, two blocks of two, zero queries, bias 0: a read is the mean of its slots.
    #   event 0: [1] -> 1, u = 2         event 1: [1, 2, 2] -> 5/3, u = 8/3
    #   block 1: C = 14/3, D = 2 - 8/3 = -2/3; |C| / |D| = 7 is clipped to 4: D^ = -8/3
    #   event 2: [1, 14/3, -8/3] -> 1, u = 2      event 3: [1, 14/3, -8/3, 2, 2] -> 7/5, u = 12/5
    #   readout: [1, 14/3, 22/5] -> 151/45
    reads = oracle.depth_router(tensor(1), [lambda x: x + 1] * 4, [ZERO] * 4, ZERO, replace(HAND, blocks=2))
    mixtures = [read.mixture.item() for read in reads]
    assert mixtures == pytest.approx([1, 5 / 3, 1, 7 / 5, 151 / 45])
    assert labels(reads[-1]) == [("e",), ("C", 1), ("C", 2)]


def test_zero_detail_still_takes_mass():
    # m = 2 with equal outputs: D = 0. Zero queries, so that the slot holds a third of the mass of read 2.
    reads = run([6, 6, 0, 0], tensor(9), replace(HAND, blocks=2, key_eps=1e-6))
    assert [s.value.item() for s in reads[2].sources] == [9, 12, 0]
    assert reads[2].mixture.item() == pytest.approx(7)  # (9 + 12 + 0) / 3, not (9 + 12) / 2


def test_duplicate_is_one_slot_with_a_higher_score():
    # equal values with scores z and z + b are one slot with score z + log(1 + e^b): reads agree slot by slot
    generator = torch.Generator().manual_seed(3)
    e, C = torch.randn(2, 1, 3, 4, generator=generator, dtype=torch.float64)
    router = Router(torch.randn(4, generator=generator, dtype=torch.float64), None, -2.0)
    source_e = Source(("e",), e, e)
    two = oracle.read([source_e, Source(("C", 1), C, C), Source(("D", 1), C, C)], router, 1e-6)
    lone = replace(router, bias=math.log1p(math.exp(-2.0)))  # 0.1269
    one = oracle.read([source_e, Source(("D", 1), C, C)], lone, 1e-6)
    torch.testing.assert_close(two.mixture, one.mixture, rtol=1e-13, atol=1e-14)
    assert lone.bias == pytest.approx(0.1269, abs=5e-5)


@pytest.mark.parametrize("gain", [False, True])
@pytest.mark.parametrize("bias", [-2.0, -math.inf])
def test_two_phase_reads_equal_one_phase(gain, bias):
    options = RouterOptions(blocks=3, key_gain=gain, bias=bias)
    weights = random_weights(6, "router", options, seed=5)
    _, reads = oracle.trace(weights, TOKENS, 6, 2, "router", options)
    for start in (0, 4, 8):
        chosen, block = reads[start : start + 4], start // 4 + 1
        routers = [Router(weights[f"routers.{i}.query"], weights.get(f"routers.{i}.key_gain"), bias)
                   for i in range(start, start + 4)]
        active = [[source for source in read.sources if source.label[1:] == (block,)] for read in chosen]
        merged = oracle.two_phase_read(routers, chosen[0].sources, active)
        for mixture, read in zip(merged, chosen, strict=True):
            torch.testing.assert_close(mixture, read.mixture, rtol=1e-12, atol=1e-13)


# ---- whole models ----

def test_the_smallest_whole_model_by_hand():
    # one layer of zero maps: attention adds nothing, the MLP adds its down bias (0, -1). Token 0 is (3, 4).
    # h = (3, 3), normed to (1, 1); logits are the sums of the token rows: 7 and -1.
    names = oracle.weight_shapes(1, 2, 1, 2, "standard")
    weights = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in names.items()}
    weights |= {name: torch.ones(2, dtype=torch.float64) for name in names if "norm" in name}
    weights["embed"] = torch.tensor([[3.0, 4.0], [1.0, -2.0]], dtype=torch.float64)
    weights["events.1.b_down"] = torch.tensor([0.0, -1.0], dtype=torch.float64)
    logits = oracle.forward(weights, token := torch.tensor([[0]]), 1, 1, "standard", norm_eps=0.0)
    assert logits.flatten().tolist() == pytest.approx([7, -1])
    # deepnorm, alpha = 2^(1/4) = 1.1892: (3, 4) normed is (0.848528, 1.131371); alpha of it, less (0, 1):
    # (1.009076, 0.345434), RMS 0.754175: normed (x, y) = (1.337987, 0.458030); logits 3 x + 4 y and x - 2 y
    logits = oracle.forward(weights, token, 1, 1, "deepnorm", norm_eps=0.0)
    assert logits.flatten().tolist() == pytest.approx([5.846081, 0.421927], abs=1e-5)


@pytest.mark.parametrize("gain", [False, True])
def test_one_event_a_block_is_full_attention_residuals(gain):
    options = RouterOptions(blocks=6, detail="none", key_gain=gain)
    weights = random_weights(3, "full", options)
    block, full = forward(weights, 3, "router", options), forward(weights, 3, "full", options)
    torch.testing.assert_close(block, full, rtol=1e-12, atol=1e-13)
    assert (forward(weights, 3, "router", replace(options, blocks=5)) - full).abs().max() > 1e-3


@pytest.mark.parametrize("detail", ["half", "duplicate", "phase"])
def test_a_bias_of_minus_infinity_is_no_detail_to_the_bit(detail):
    none = RouterOptions(blocks=2, detail="none")
    weights = random_weights(3, "router", none)
    limit = replace(none, detail=detail, bias=-math.inf)
    expected, masked = forward(weights, 3, "router", none), forward(weights, 3, "router", limit)
    assert torch.equal(expected, masked)
    for wanted, given in zip(*(torch.autograd.grad(y.square().sum(), list(weights.values()))
                               for y in (expected, masked)), strict=True):
        torch.testing.assert_close(given, wanted, rtol=1e-13, atol=1e-13)
    assert (forward(weights, 3, "router", replace(limit, bias=-2.0)) - expected).abs().max() > 1e-4


@pytest.mark.parametrize(("scheme", "options"), [
    *[(scheme, None) for scheme in ("standard", "postnorm", "deepnorm", "rezero", "layerscale", "full")],
    ("router", RouterOptions(blocks=2, match="none", readout_details=True, readout_bias=None)),
    ("router", RouterOptions(blocks=[1, 3], detail="phase", match="none")),
])
def test_gradients_agree_with_differences(scheme, options):
    # Matching is off: its factor is no part of the gradient, on purpose, but differences would see it move.
    weights = random_weights(2, scheme, options, seed=2)
    generator = torch.Generator().manual_seed(7)
    probe = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    along = {n: torch.randn(w.shape, generator=generator, dtype=torch.float64) for n, w in weights.items()}

    def loss(changed):
        return (forward(weights | changed, 2, scheme, options) * probe).sum()

    grads = torch.autograd.grad(loss({}), list(weights.values()), allow_unused=True)
    for (name, w), grad in zip(weights.items(), grads, strict=True):
        step = 1e-6 * along[name]
        slope = (loss({name: w.detach() + step}) - loss({name: w.detach() - step})).item() / 2e-6
        assert (grad is None) == (name == "routers.0.bias"), name  # the first read has no detail to bias
        given = 0.0 if grad is None else (grad * along[name]).sum().item()
        assert given == pytest.approx(slope, rel=1e-6, abs=1e-6), name


def test_a_single_source_gives_its_query_no_gradient():
    weights = random_weights(2, "router", RouterOptions(blocks=2))
    forward(weights, 2, "router", RouterOptions(blocks=2)).square().sum().backward()
    assert weights["routers.0.query"].grad.abs().max() == 0
    assert weights["routers.1.query"].grad.abs().max() > 0


@pytest.mark.parametrize(("scheme", "axes"), [
    ("standard", "token"), ("full", "token"), ("router", "token"), ("router", "time"), ("router", "batch"),
])
def test_only_an_rms_over_time_reads_the_future(scheme, axes):
    options = RouterOptions(blocks=2, rms_axes=axes, gamma=1e6)  # a wide clip, so that the factor moves
    weights, edited = random_weights(3, scheme, options), TOKENS.clone()
    edited[:, -1] = 0
    before, after = (forward(weights, 3, scheme, options, tokens)[:, :-1] for tokens in (TOKENS, edited))
    assert torch.equal(before, after) is (axes == "token")


def test_weights_must_be_as_documented():
    weights = random_weights(1, "router", RouterOptions(blocks=1))
    missing = {name: w for name, w in weights.items() if name != "routers.1.bias"}
    unknown = weights | {"final_router.bias": weights["routers.1.bias"]}
    for wrong in (missing, unknown, weights | {"final_norm": torch.zeros(8)}):  # the last one is float32
        with pytest.raises(ValueError, match="bias|final_norm"):
            forward(wrong, 1, "router", RouterOptions(blocks=1))


# ---- counting ----

@pytest.mark.parametrize(("blocks", "detail", "mean", "peak", "final"), [
    (4, "none", 3.458, 5, 5), (4, "half", 5.917, 9, 5), (6, "none", 4.438, 7, 7), (6, "half", 7.875, 13, 7),
    (8, "none", 5.417, 9, 9), (8, "half", 9.833, 17, 9), (96, "none", 48.5, 96, 97),
])
def test_the_papers_source_counts(blocks, detail, mean, peak, final):
    counts = oracle.source_counts(48, blocks, detail)
    assert (counts["peak"], counts["final"]) == (peak, final)
    assert counts["mean"] == Fraction(sum(counts["reads"]), 96) == pytest.approx(mean, abs=5.1e-4)


@pytest.mark.parametrize("detail", ["half", "none", "duplicate", "phase"])
@pytest.mark.parametrize("readout", [False, True])
def test_definition_algorithm_and_counting_agree(detail, readout):
    # three roads: the slots by definition, those that the router really read, and the walk that only counts
    for layers in range(1, 5):
        for blocks in [*range(1, 2 * layers + 1), [2 * layers - 1, 1]]:
            options = replace(HAND, blocks=blocks, detail=detail, readout_details=readout)
            reads = run([10.0**i for i in range(2 * layers)], tensor(0.5), options)
            stated = oracle.symbolic_reads(layers, options)
            for read, slots in zip(reads, stated, strict=True):
                assert labels(read) == [label for label, _ in slots]
                for source, (_, signs) in zip(read.sources[1:], slots[1:], strict=True):
                    assert source.raw.item() == sum(sign * 10.0**i for i, sign in signs.items())
            counts = oracle.source_counts(layers, blocks, detail)
            assert counts["reads"] == [len(slots) for slots in stated[:-1]]
            assert readout or counts["final"] == len(stated[-1])
