"""Looking inside: what is observed is what the model does, watching leaves no trace, and edits are the schemes they
claim to be. Held to oracle.py, to plain softmaxes written out here, and to the models that an edit should turn into."""

import gc
import math
import weakref

import numpy as np
import oracle
import pytest
import sympy as sp
import torch
import torch.nn.functional as F
from schemes import EVERYTHING, LEAKING, RELATIVES, ROUTED, Case, by_name, shaken, some_tokens, tiny
from test_against_oracle import reference_options, reference_weights

from minihaares import algebra, probes
from minihaares.data import EOT, PAD, train_bpe, train_char
from minihaares.model import DepthRouter, Transformer
from minihaares.probes import Edit, ProbeError, reads, watch
from minihaares.watching import Watched

ROUTERS = ROUTED + LEAKING
DELTA = [case for case in RELATIVES if case.scheme == "delta"]
PROBED = ROUTERS + DELTA
DETAILED = [c for c in ROUTERS if c.scheme == "haares" and c.options.get("bias") != "masked"]
EXACT = dict(rtol=1e-12, atol=1e-12)


def mixture(weights, sources):
    return torch.einsum("sbt,sbtd->btd", weights, torch.stack(sources))


def actual_reads(model, tokens):
    """What the sublayers were given, and the final norm: seen from outside."""
    seen = []
    hooks = [m.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for m in (*model.sublayers, model.norm)]
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()
    return seen


# ---- what is observed is what the model does ----


@pytest.mark.parametrize("case", PROBED, ids=str)
def test_a_read_is_rebuilt_from_its_weights_and_sources(case):
    model, tokens = shaken(case), some_tokens()
    found, actual = reads(model, tokens), actual_reads(model, tokens)
    assert [read.site for read in found] == list(range(len(found)))
    assert len(found) == model.config.events + (case.scheme != "delta")
    for read, x in zip(found, actual, strict=False):
        torch.testing.assert_close(read.x, x, rtol=0, atol=0)
        stream = 0 if read.stream is None else read.stream
        torch.testing.assert_close(stream + mixture(read.weights, read.sources), x, **EXACT)
        assert len(read.names) == len(read.sources) == len(read.weights)
        total = read.weights.sum(0)
        if case.options.get("null"):
            assert (total < 1).all()
        else:
            torch.testing.assert_close(total, torch.ones_like(total), **EXACT)


@pytest.mark.parametrize("case", ROUTERS, ids=str)
def test_names_and_weights_are_those_of_the_reference(case):
    model, tokens = shaken(case), some_tokens()
    c = model.config
    # The reference's full Attention Residuals keep no reads; as a router of one block an event they do.
    _, wanted = oracle.trace(
        reference_weights(model), tokens, c.layers, c.heads, "router", reference_options(model), c.norm_eps, c.rope_base
    )
    for read, theirs in zip(reads(model, tokens), wanted, strict=True):
        kept = [i for i, s in enumerate(theirs.sources) if s.label[0] != "D" or "masked" not in case.name]
        names = ["".join(map(str, theirs.sources[i].label)) for i in kept]
        assert list(read.names) == names
        torch.testing.assert_close(read.weights, torch.stack([theirs.weights[i] for i in kept]).detach(), **EXACT)
        torch.testing.assert_close(
            torch.stack(read.sources), torch.stack([theirs.sources[i].value for i in kept]).detach(), **EXACT
        )


@pytest.mark.parametrize("case", PROBED, ids=str)
def test_watching_changes_no_bit_and_holds_no_graph(case):
    model, tokens = shaken(case, dtype=torch.float32), some_tokens()
    before, found = model(tokens), []
    wanted = torch.autograd.grad(before.square().sum(), list(model.parameters()), allow_unused=True)
    with watch(model, found.append):
        logits = model(tokens)
        gradients = torch.autograd.grad(logits.square().sum(), list(model.residual.inner.parameters()))
    assert torch.equal(logits, before)
    own = {id(p): g for p, g in zip(model.parameters(), wanted, strict=True)}
    assert all(torch.equal(g, own[id(p)]) for p, g in zip(model.residual.parameters(), gradients, strict=True))
    assert len(found) >= model.config.events
    for read in found:
        halves = [half for pair in read.halves for half in pair if half is not None]
        assert not any(t.requires_grad for t in (read.weights, read.x, *read.sources, *halves))


@pytest.mark.parametrize("case", [Case("haares", "haares", {"blocks": 2}), DELTA[1]], ids=str)
def test_watching_under_checkpointing_and_autocast_changes_no_bit(case):
    model, tokens = shaken(case, dtype=torch.float32, checkpointing=True), some_tokens()
    wanted = model(tokens)
    with watch(model, lambda read: None):
        assert torch.equal(model(tokens), wanted)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted, found = model(tokens), []
        with watch(model, found.append):
            assert torch.equal(model(tokens), wanted)
    assert all(read.weights.dtype == torch.float32 for read in found)
    for read in found:
        stream = 0 if read.stream is None else read.stream
        torch.testing.assert_close(stream + mixture(read.weights, read.sources), read.x, rtol=1e-4, atol=1e-4)


def test_nothing_is_left_behind_also_after_an_error():
    model, tokens = shaken(Case("haares", "haares", {"blocks": 2})), some_tokens()
    residual, names, before = model.residual, list(model.state_dict()), model(tokens)

    def fail(read):
        raise KeyError(read.site)

    with pytest.raises(KeyError), watch(model, fail):
        model(tokens)
    assert model.residual is residual
    with watch(model, edits=[Edit("mask")]):
        inside = weakref.ref(model.residual)
        assert isinstance(inside(), Watched) and not torch.equal(model(tokens), before)
    gc.collect()
    assert inside() is None and model.residual is residual
    assert list(model.state_dict()) == names and torch.equal(model(tokens), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert "read" not in vars(residual) and "write" not in vars(residual)


def test_a_model_is_watched_once_at_a_time():
    model = shaken(Case("haares", "haares", {"blocks": 2}))
    with watch(model):
        assert probes.source_names(model, 1) == ("e", "C1", "D1")
        with pytest.raises(ProbeError, match="one `watch`"), watch(model):
            pass
        assert isinstance(model.residual, Watched)


@pytest.mark.parametrize("case", [c for c in EVERYTHING if c not in PROBED], ids=str)
def test_other_schemes_are_refused_in_a_sentence(case):
    model = shaken(case)
    with pytest.raises(ProbeError, match="no softmax over depth.*attnres"):
        reads(model, some_tokens())
    assert not isinstance(model.residual, Watched)


# ---- halves ----


@pytest.mark.parametrize("case", DETAILED, ids=str)
def test_a_read_is_rebuilt_from_halves_and_their_coefficients(case):
    model, tokens = shaken(case), some_tokens()
    early, late = (sp.lambdify((algebra.w_C, algebra.w_D, algebra.a), form) for form in
                   algebra.routed_coefficients().forms.values())  # fmt: skip
    met = 0
    for read in reads(model, tokens):
        named = dict(zip(read.names, zip(read.weights, read.sources, strict=True), strict=True))
        rebuilt = 0
        for p in probes.pairs(model, read):
            (w_C, _), (w_D, detail) = named.pop(f"C{p.block}"), named.pop(f"D{p.block}")
            E, L = read.halves[p.block - 1]
            torch.testing.assert_close(p.scale[..., None] * (E - L), detail, **EXACT)
            torch.testing.assert_close(p.early, early(w_C, w_D, p.scale), **EXACT)
            torch.testing.assert_close(p.late, late(w_C, w_D, p.scale), **EXACT)
            assert (p.late.abs() <= p.early).all()
            assert p.active == (read.site < 8 and model.residual.places[read.site].block == p.block - 1)
            rebuilt = rebuilt + p.early[..., None] * E + p.late[..., None] * L
            met += 1
        for weight, source in named.values():
            rebuilt = rebuilt + weight[..., None] * source
        torch.testing.assert_close(rebuilt, read.x, **EXACT)
    assert bool(met) == (case.options["blocks"] != "full" and case.options.get("detail") != "duplicate")


def test_a_swapped_detail_is_no_pair():
    model = shaken(Case("", "haares", {"blocks": 2}))
    plain = [(read.site, p.block) for read in reads(model, some_tokens()) for p in probes.pairs(model, read)]
    edited = reads(model, some_tokens(), [Edit("duplicate", ("D1",))])
    assert [(read.site, p.block) for read in edited for p in probes.pairs(model, read)] == [
        place for place in plain if place[1] == 2
    ] != []


@pytest.mark.parametrize("gamma", [1.0, 1.2, 50.0])
def test_the_clip_is_where_the_multiplier_says(gamma):
    model = shaken(Case("", "haares", {"blocks": 2, "gamma": gamma}))
    clips = [p for read in reads(model, some_tokens(3, 20)) for p in probes.pairs(model, read)]
    scale, clip = (torch.cat([getattr(p, name).flatten() for p in clips]) for name in ("scale", "clip"))
    assert ((scale == gamma) == (clip == 1)).all() or gamma == 1
    assert ((scale == 1 / gamma) == (clip == -1)).all() or gamma == 1
    assert clip.unique().tolist() == {1.0: [-1, 1], 1.2: [-1, 0, 1], 50.0: [0]}[gamma]


# ---- edits ----


MASKABLE = by_name("haares", "haares-uneven", "haares-nogain", "haares-readout", "phase")


@pytest.mark.parametrize("case", MASKABLE, ids=str)
def test_masking_all_details_is_the_block_model(case):
    model, tokens = shaken(case), some_tokens()
    kept = ("blocks", "key_gain", "read")
    block = Transformer(tiny(Case("", "block", {k: v for k, v in case.options.items() if k in kept}))).double()
    block.load_state_dict({k: v for k, v in model.state_dict().items() if "detail_bias" not in k})
    with watch(model, edits=[Edit("mask")]):
        masked = model(tokens)
    torch.testing.assert_close(masked, block(tokens), **EXACT)
    assert (masked - model(tokens)).abs().max() > 1e-3


@pytest.mark.parametrize("case", by_name("haares", "haares-uneven", "haares-readout", "phase", "random-sign"), ids=str)
def test_swapping_all_details_is_the_duplicate_model(case):
    model, tokens = shaken(case), some_tokens()
    copy = Transformer(tiny(Case("", "haares", case.options | {"detail": "duplicate"}))).double()
    copy.load_state_dict(model.state_dict())
    with watch(model, edits=[Edit("duplicate")]):
        swapped = model(tokens)
    torch.testing.assert_close(swapped, copy(tokens), **EXACT)
    assert (swapped - model(tokens)).abs().max() > 1e-3


@pytest.mark.parametrize("read", ["lean", "recompute", "plain"])
def test_one_read_is_edited_and_the_ones_before_are_not(read):
    model, tokens, site = shaken(Case("", "haares", {"blocks": 2, "read": read})), some_tokens(), 6
    plain = reads(model, tokens)
    assert plain[site].names == ("e", "C1", "D1", "C2", "D2")
    for kind, chosen in (("mask", ("D1",)), ("mask", ("e", "C2")), ("duplicate", ("D2",))):
        edited = reads(model, tokens, [Edit(kind, chosen, (site,))])
        router, old, new = model.residual, plain[site], edited[site]
        values = list(old.sources)
        if kind == "duplicate":
            values[4] = values[3]
        gain = router.key_gain[site] * router.query[site]
        z = torch.stack([v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt() @ gain for v in values])
        z[[2, 4]] += router.detail_bias[site]
        if kind == "mask":
            z[[old.names.index(name) for name in chosen]] = -math.inf
        weights = torch.softmax(z, 0).detach()
        torch.testing.assert_close(new.weights, weights, **EXACT)
        torch.testing.assert_close(new.x, mixture(weights, values), **EXACT)
        assert all(torch.equal(a.x, b.x) for a, b in zip(plain[:site], edited[:site], strict=True))
        assert not any(torch.allclose(a.x, b.x, rtol=1e-9) for a, b in zip(plain[site:], edited[site:], strict=True))
        assert all(len(a.names) == len(b.names) for a, b in zip(plain, edited, strict=True))


def test_the_sum_of_a_block_can_be_masked_in_attention_residuals():
    model, tokens = shaken(Case("", "attnres", {})), some_tokens()
    edited = reads(model, tokens, [Edit("mask", ("C1",))])
    assert all((read.weights[1] == 0).all() for read in edited if len(read.names) > 1)
    torch.testing.assert_close(edited[3].weights.sum(0), torch.ones(2, 7, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("null", [False, True])
def test_a_source_of_delta_can_be_masked(null):
    model, tokens, site = shaken(Case("", "delta", {"blocks": 4, "null": null})), some_tokens(), 5
    new = reads(model, tokens, [Edit("mask", ("C1",), (site,))])[site]
    assert new.names == ("e", "C1", "C2")
    d = model.residual
    z = torch.stack([v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt() @ (d.key_gain[site] * d.query[site])
                     for v in new.sources])  # fmt: skip
    z = torch.cat((z, torch.zeros_like(z[:1]) - (0 if null else math.inf)))
    z[1] = -math.inf
    weights = torch.softmax(z, 0)[:3].detach()
    torch.testing.assert_close(new.weights, weights, **EXACT)
    torch.testing.assert_close(new.x, new.stream + mixture(weights, new.sources), **EXACT)


@pytest.mark.parametrize(
    "edits, words",
    [
        ([Edit("mask", ("D9",))], "offered D9"),
        ([Edit("mask", ("D1", "D9"))], "offered D9"),
        ([Edit("mask", None, (0,))], "offered a detail"),
        ([Edit("mask", ("D1",), (99,))], "offered D1"),
        ([Edit("duplicate", ("C1",))], "Only details"),
        ([Edit("mask", ("e",))], "leaves read 0 nothing"),
        ([Edit("mask", ("e", "C1"), (1,)), Edit("mask", ("D1",))], "leaves read 1 nothing"),
    ],
    ids=str,
)
def test_an_edit_without_sense_is_refused_in_a_sentence(edits, words):
    model = shaken(Case("haares", "haares", {"blocks": 2}))
    with pytest.raises(ProbeError, match=words), watch(model, edits=edits):
        pass
    assert isinstance(model.residual, DepthRouter)
    with pytest.raises(ValueError, match="mask, duplicate"):
        Edit("swap")


# ---- over a text ----


def some_chunks(n=5, length=9, vocab=13):
    """Chunks [n, length + 1] without special tokens, some of them padded."""
    chunks = some_tokens(n, length + 1, vocab - 4, seed=3).numpy() + 4
    chunks[1, 4:] = PAD
    chunks[3, 2:] = PAD
    return chunks


def test_kinds_of_characters_by_hand():
    text = "It's 5 o'clock, 'Bob'.\nNo"
    tokenizer = train_char([text])
    chunks = np.concatenate([tokenizer.encode(text), [EOT, PAD]])[None]
    letters = {"first": "f", "word start": "W", "letter": "l", "space": "s", "punctuation": "p", "other": "o"}
    shown = np.full(chunks.shape, " ")
    for name, mask in probes.token_kinds(tokenizer, chunks).items():
        assert (shown[mask] == " ").all(), "kinds overlap"
        shown[mask] = letters[name]
    assert "".join(shown[0]) == "fllls" + "os" + "Wllllllp" + "s" + "pWllpps" + "Wl" + "oo"
    with pytest.raises(ProbeError, match="characters"):
        probes.token_kinds(train_bpe([text * 9], 270), chunks)


@pytest.mark.parametrize("case", by_name("haares") + [Case("", "block", {"blocks": 2}), DELTA[1]], ids=str)
def test_routing_is_the_mean_over_real_tokens(case):
    model, chunks = shaken(case), some_chunks()
    kinds = {"small": chunks < 8, "large": chunks >= 8, "none": chunks > 99}
    table = probes.routing(model, chunks, kinds, batch_size=2)
    inputs = torch.from_numpy(chunks[:, :-1]).long()
    assert set(table["kind"]) == {"all", "small", "large"}
    rows = table.set_index(["site", "source", "kind"])
    for read in reads(model, inputs):
        for kind, mask in {"all": inputs >= 0, "small": inputs < 8, "large": inputs >= 8}.items():
            mask = mask & (inputs != PAD)
            entropy = -(read.weights * read.weights.log()).sum(0)[mask].mean()
            for name, w in zip(read.names, read.weights, strict=True):
                row = rows.loc[read.site, name, kind]
                wanted = [w[mask].mean(), w[mask].std(correction=0), entropy, mask.sum()]
                np.testing.assert_allclose(row[["weight", "spread", "entropy", "tokens"]].astype(float), wanted, 1e-7)
    by_site = table.groupby(["site", "kind"])["weight"].sum()
    if case.scheme != "delta":
        np.testing.assert_allclose(by_site, 1, rtol=1e-12)
        assert table[table["site"] == 8]["sublayer"].unique().tolist() == ["head"]
    assert table[table["site"] == 3]["sublayer"].unique().tolist() == ["MLP"]


def test_zero_queries_route_evenly():
    model = Transformer(tiny(Case("", "block", {"blocks": 2})))
    table = probes.routing(model, some_chunks())
    for _, rows in table.groupby("site"):
        np.testing.assert_allclose(rows["weight"], 1 / len(rows), rtol=1e-6)
        np.testing.assert_allclose(rows["entropy"], math.log(len(rows)), rtol=1e-6, atol=1e-12)


def test_biases_are_the_parameters():
    model = shaken(Case("", "haares", {"blocks": 2}))
    table = probes.biases(model)
    assert table["bias"].tolist() == model.residual.detail_bias.tolist()
    assert table["block"].tolist() == [1] * 4 + [2] * 4 and table["sublayer"].tolist() == ["attention", "MLP"] * 4
    assert len(probes.biases(shaken(Case("", "haares", {"blocks": 2, "readout_details": True})))) == 9
    for case in (Case("", "block", {}), Case("", "haares", {"bias": "masked"}), Case("", "delta", {})):
        with pytest.raises(ProbeError, match="sees a detail"):
            probes.biases(shaken(case))


@pytest.mark.parametrize("case", by_name("haares", "haares-gamma2", "haares-uneven", "phase"), ids=str)
def test_coefficients_are_means_of_pairs(case):
    model, chunks = shaken(case), some_chunks()
    table = probes.coefficients(model, chunks, batch_size=2).set_index(["site", "block"])
    inputs = torch.from_numpy(chunks[:, :-1]).long()
    real, met = inputs != PAD, 0
    for read in reads(model, inputs):
        for p in probes.pairs(model, read):
            row, met = table.loc[(read.site, p.block)], met + 1
            facts = dict(early=p.early, late=p.late, negative=p.late < 0, low=p.clip == -1, high=p.clip == 1)
            for name, fact in facts.items():
                assert row[name] == pytest.approx(fact[real].double().mean().item(), rel=1e-9), name
            assert row["tokens"] == real.sum() and row["active"] == p.active
    assert met == len(table) > 0 and table["negative"].between(0.01, 0.99).any()


def test_models_without_a_second_half_say_so():
    for options in ({"detail": "duplicate", "blocks": 2}, {"blocks": "full"}):
        with pytest.raises(ProbeError, match="no.* late half|late half: a duplicate"):
            probes.coefficients(shaken(Case("", "haares", options)), some_chunks())


# ---- interventions ----


def test_losses_are_cross_entropies_of_real_targets():
    model, chunks = shaken(Case("", "haares", {"blocks": 2})), some_chunks()
    losses, counts = probes.chunk_losses(model, chunks, batch_size=2)
    assert counts.tolist() == [9, 3, 9, 1, 9]
    for row, loss, count in zip(torch.from_numpy(chunks).long(), losses, counts, strict=True):
        logits = model(row[None, :-1])[0, :count]
        assert loss == pytest.approx(F.cross_entropy(logits, row[1 : count + 1], reduction="sum").item(), rel=1e-12)
    again, _ = probes.chunk_losses(model, chunks, batch_size=16)
    np.testing.assert_allclose(again, losses, rtol=1e-12)


def test_effects_are_differences_per_token_and_group():
    model, chunks = shaken(Case("", "haares", {"blocks": 2})), some_chunks()
    edits = {"masked": [Edit("mask")], "one": [Edit("mask", ("D1",), (5,)), Edit("duplicate", ("D2",), (6,))]}
    found = probes.effects(model, chunks, edits, groups=["a", "a", "b", "b", "c"])
    before, counts = probes.chunk_losses(model, chunks)
    for name, edit in edits.items():
        change = probes.chunk_losses(model, chunks, edit)[0] - before
        wanted = [change[:2].sum() / 12, change[2:4].sum() / 10, change[4] / 9]
        np.testing.assert_allclose(found[name], wanted, rtol=1e-12)
    assert found.index.tolist() == ["a", "b", "c"] and found.abs().min().min() > 0
    assert len(probes.effects(model, chunks, edits)) == 5


def test_text_of_another_model_is_refused():
    model = shaken(Case("", "block", {"blocks": 2}))
    for chunks in (some_chunks() + 9, np.zeros((0, 10), dtype=int)):
        for question in (probes.routing, probes.chunk_losses):
            with pytest.raises(ProbeError, match="own tokenizer"):
                question(model, chunks)
