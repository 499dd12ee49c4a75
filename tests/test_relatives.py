"""The relatives: each method's equations written out, its published start, and the options of each.

What holds for every scheme (causality, gradients, caches, checkpointing, autocast) is in test_model.py.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from schemes import Case, gradients, noise, shake, some_tokens, tensors, tiny
from torch import Tensor, nn

from minihaares.model import SCHEMES, ConfigError, Transformer, rotary_table, scheme_options
from minihaares.relatives.mhc import sinkhorn
from minihaares.train import parameter_groups

NEW = ("denseformer", "muddformer", "delta", "hc", "mhc", "vwn", "hires")


def fresh(scheme: str, seed: int = 3, layers: int = 4, **options) -> Transformer:
    """An untrained tiny model in float64 whose norms have no epsilon to speak of."""
    return Transformer(tiny(Case(scheme, scheme, options), layers=layers, norm_eps=1e-24), seed=seed).double()


def lively(scheme: str, layers: int = 4, **options) -> Transformer:
    """The same with noise on every weight."""
    return shake(fresh(scheme, layers=layers, **options), size=0.4)


def rope_of(model: Transformer, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return rotary_table(0, tokens.shape[1], model.config, model.embed.weight)


def head(model: Transformer, x: Tensor) -> Tensor:
    """The final norm and the tied head."""
    return model.norm(x) @ model.embed.weight.T


def unit(x: Tensor) -> Tensor:
    """x / RMS(x) over the last axis."""
    return x / x.square().mean(-1, keepdim=True).sqrt()


def rms(x: Tensor) -> Tensor:
    return x.square().mean(-1).sqrt()


def reads_of(model: Transformer, tokens: Tensor) -> tuple[list[Tensor], Tensor]:
    """What the sublayers read, and the logits."""
    reads: list[Tensor] = []
    hooks = [s.register_forward_pre_hook(lambda _, args: reads.extend(tensors(args[0]))) for s in model.sublayers]
    logits = model(tokens)
    for hook in hooks:
        hook.remove()
    return reads, logits


def layer_by_hand(model: Transformer, layer: int, stream: Tensor, tokens: Tensor, qkv: object = None) -> Tensor:
    """One ordinary PreNorm layer; attention reads `qkv` if given."""
    rope = rope_of(model, tokens)
    h = stream + model.sublayers[2 * layer](stream if qkv is None else qkv, rope)
    return h + model.sublayers[2 * layer + 1](h, rope)


def close(ours: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


def train(model: Transformer, steps: int, lr: float = 0.01, autocast: bool = False) -> Transformer:
    """A few AdamW steps on random tokens, with the groups of the recipe."""
    optimizer, tokens = torch.optim.AdamW(parameter_groups(model, 0.01), lr=lr), some_tokens(4, 9)
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


# ---- before the first step ----


@pytest.mark.parametrize(
    "scheme, options",
    [
        ("denseformer", {}),
        ("denseformer", {"dilation": 2, "period": 2}),
        ("muddformer", {}),
        ("muddformer", {"prepost": True}),
        ("delta", {}),
        ("delta", {"null": True}),
        ("hc", {}),
        ("hc", {"dynamic": False, "streams": 3}),
        ("mhc", {}),
        ("vwn", {"n": 3}),  # no GroupNorm, which would take the mean off
        ("vwn", {"n": 3, "input": "repeat"}),
    ],
    ids=str,
)
def test_these_start_as_the_standard_model(scheme, options):
    tokens = some_tokens()
    standard, model = fresh("standard"), fresh(scheme, **options)
    close(model(tokens), standard(tokens), 1e-12)
    assert (shake(model, size=0.1)(tokens) - shake(standard, size=0.1)(tokens)).abs().max() > 1e-3


def test_denseformer_starts_as_the_standard_model_to_the_bit():
    standard, model = (Transformer(tiny(Case(s, s)), seed=3) for s in ("standard", "denseformer"))
    assert torch.equal(model(some_tokens()), standard(some_tokens()))


@pytest.mark.parametrize("scheme, options", [("hc", {}), ("vwn", {}), ("vwn", {"m": 3, "n": 7})], ids=str)
def test_streams_and_slots_start_as_copies_of_the_standard_stream_to_the_bit(scheme, options):
    tokens, standard = some_tokens(), fresh("standard")
    (reads, _), (expected, _) = reads_of(fresh(scheme, **options), tokens), reads_of(standard, tokens)
    assert len(reads) == 8 and all(map(torch.equal, reads, expected))


def test_mhc_streams_start_as_copies_of_the_standard_stream():
    tokens, standard = some_tokens(), fresh("standard")
    (reads, _), (expected, _) = reads_of(fresh("mhc"), tokens), reads_of(standard, tokens)
    total = torch.sigmoid(torch.tensor(2.0, dtype=torch.float64)) + 3 * torch.sigmoid(torch.tensor(-2.0))
    for x, h in zip(reads, expected, strict=True):
        close(x, total * h, 1e-7)  # σ(±2) is rounded to float32 once


def test_delta_reads_a_multiple_of_the_stream_at_the_start_and_delta_block_does_not():
    tokens = some_tokens()
    expected, logits = reads_of(fresh("standard"), tokens)
    for event, (x, h) in enumerate(zip(reads_of(fresh("delta"), tokens)[0], expected, strict=True)):
        close(x, (1 + 1 / (event + 1)) * h, 1e-12)

    def distance(**options):
        return (fresh("delta", blocks=2, **options)(tokens) - logits).abs().max()

    assert distance() > 1.1 * distance(null=True) > 1e-3


@pytest.mark.parametrize("scheme", NEW)
def test_the_global_init_overwrites_no_start(scheme):
    kind, options = scheme_options(scheme, {})
    model = Transformer(tiny(Case(scheme, scheme)), seed=5)
    alone = kind(model.config, options, torch.Generator().manual_seed(6)).state_dict()
    assert alone and all(torch.equal(p, alone[name]) for name, p in model.residual.state_dict().items())


@pytest.mark.parametrize("scheme", NEW)
def test_a_few_steps_move_every_parameter(scheme):
    """So no start is a dead end, like two factors that are both zero."""
    options = {"layers_per_group": 2} if scheme == "hires" else {}
    model = Transformer(tiny(Case(scheme, scheme, options)), seed=1)
    before = {name: p.clone() for name, p in model.residual.named_parameters()}
    train(model, 5)
    for name, p in model.residual.named_parameters():
        moved = (p != before[name]).flatten(1).any(-1) if p.ndim > 1 else (p != before[name]).any()
        assert moved[scheme == "delta" :].all() if p.ndim > 1 else moved, name  # a lone source leaves nothing to choose


def test_what_decays():
    expected = {
        "denseformer": set(),
        "delta": set(),
        "muddformer": {f"{w}.{i}" for w in ("w1", "w2") for i in range(4)},
        "hc": {"dynamic_map"},
        "mhc": {"dynamic_map"},
        "vwn": {"dynamic_map", "input_map", "reduce_map"},
        "hires": {"input_map", "read_maps", "write_maps"},
    }
    for scheme, names in expected.items():
        model = Transformer(tiny(Case(scheme, scheme)))
        parameters = dict(model.residual.named_parameters())
        decayed = {id(p) for p in parameter_groups(model, 0.1)[0]["params"]}
        assert {name for name, p in parameters.items() if id(p) in decayed} == names, scheme
    static = Transformer(tiny(Case("hc", "hc", {"dynamic": False}))).residual
    assert [name for name, _ in static.named_parameters()] == ["static"] and not hasattr(static, "decayed")


# ---- DenseFormer, MUDDFormer, Delta ----


@pytest.mark.parametrize("dilation, period", [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_denseformer_by_hand(dilation, period):
    model, tokens = lively("denseformer", layers=5, dilation=dilation, period=period), some_tokens()
    X, Y, alphas = [model.embed(tokens)], model.embed(tokens), list(model.residual.alpha)
    for i in range(1, 6):
        X.append(layer_by_hand(model, i - 1, Y, tokens))
        Y = X[i]
        if i % period == 0:
            read = [j for j in range(i + 1) if (i - j) % dilation == 0]
            alpha = alphas.pop(0)
            assert len(alpha) == len(read)
            Y = sum(a * X[j] for a, j in zip(alpha, read, strict=True))
    assert not alphas
    close(model(tokens), head(model, Y))


def test_denseformer_has_half_a_square_of_parameters():
    assert fresh("denseformer", layers=12).residual.alpha[-1].tolist() == [0.0] * 12 + [1.0]
    assert sum(p.numel() for p in fresh("denseformer", layers=12).residual.parameters()) == 12 * 15 // 2


@pytest.mark.parametrize("prepost", [False, True])
def test_muddformer_by_hand(prepost):
    model, tokens = lively("muddformer", prepost=prepost), some_tokens()
    r = model.residual
    X = [model.embed(tokens)]
    ways: list[Tensor] = []
    for i in range(1, 5):
        if i == 1:
            X.append(layer_by_hand(model, 0, X[0], tokens))
        else:
            q, k, v, stream = ways
            X.append(layer_by_hand(model, i - 1, stream, tokens, qkv=(q, k, v)))
        C = 4 if i < 4 else 1
        w = F.gelu(unit(X[i]) @ r.w1[i - 1]) @ r.w2[i - 1]
        assert w.shape[-1] == C * (i + 1)
        sources = [unit(x) * r.inner[j].gain for j, x in enumerate(X)] if prepost else X
        ways = []
        for c in range(C):
            mixture = 0
            for j in range(i + 1):
                mixture = mixture + (w[..., c * (i + 1) + j] + r.static[i - 1][c, j])[..., None] * sources[j]
            ways.append(unit(mixture) * r.outer_gain[i - 1][c] + X[i] if prepost else mixture)
    close(model(tokens), head(model, ways[0]))


def test_delta_by_hand():
    for blocks in ("full", 2, (3, 1, 4)):
        for null in (False, True):
            model, tokens = lively("delta", blocks=blocks, null=null), some_tokens()
            r, rope = model.residual, rope_of(model, tokens)
            ends = {"full": list(range(1, 9)), 2: [4, 8]}.get(blocks, [3, 4, 8])
            h = model.embed(tokens)
            sources, start = [h], h
            for event, sublayer in enumerate(model.sublayers):
                z = [(unit(v) * r.key_gain[event]) @ r.query[event] for v in sources]
                w = torch.softmax(torch.stack([*z, torch.zeros_like(z[0])] if null else z), 0)
                x = h + sum(w[s][..., None] * v for s, v in enumerate(sources))
                h = h + sublayer(x, rope)
                if event + 1 in ends:
                    sources.append(h - start)
                    start = h
            close(model(tokens), head(model, h))


def test_the_changes_of_delta_blocks_telescope():
    """Outputs that sum to 1, 2, 3, 4, 5 in five blocks leave exactly these as sources (not 1, 2, 4, 6, 9)."""
    for blocks, outputs in (
        ((1, 2, 1, 3, 1), [1, 1, 1, 3, 1, 2, 1, 5]),
        ((2, 1, 2, 1, 2), [0.5, 0.5, 2, 1, 2, 4, 3, 2]),
    ):
        r = fresh("delta", blocks=blocks).residual
        state = r.begin(torch.zeros(1, 1, 12, dtype=torch.float64))
        for event, u in enumerate(outputs):
            _, state = r.read(state, event)
            state = r.write(state, event, torch.full((1, 1, 12), float(u), dtype=torch.float64))
        assert [v.unique().item() for v in state.sources] == [0, 1, 2, 3, 4, 5]
        assert state.change is None and r.readout(state).unique().item() == 15


# ---- Hyper-Connections ----


@pytest.mark.parametrize("dynamic", [False, True])
def test_hyper_connections_by_hand(dynamic):
    model, tokens = lively("hc", streams=3, dynamic=dynamic), some_tokens()
    r, rope = model.residual, rope_of(model, tokens)
    H = [model.embed(tokens)] * 3
    for event, sublayer in enumerate(model.sublayers):
        w = [[r.static[event, i, k] for k in range(5)] for i in range(3)]  # stream i: A_m, A_r (three), B
        if dynamic:
            for i in range(3):
                part = torch.tanh(unit(H[i]) @ r.dynamic_map[event])
                s = [r.scale[event, 0]] * 4 + [r.scale[event, 1]]
                w[i] = [w[i][k] + s[k] * part[..., k, None] for k in range(5)]
        u = sublayer(sum(w[i][0] * H[i] for i in range(3)), rope)
        H = [w[j][4] * u + sum(w[i][1 + j] * H[i] for i in range(3)) for j in range(3)]
    close(model(tokens), head(model, sum(H)))


def test_hyper_connections_start_as_published():
    r = fresh("hc", streams=3).residual
    for event in range(8):
        read, mix, write = r.static[event].split([1, 3, 1], dim=1)
        assert read.squeeze().tolist() == [float(i == event % 3) for i in range(3)]
        assert torch.equal(mix, torch.eye(3).double()) and (write == 1).all()
    assert not r.dynamic_map.any() and torch.allclose(r.scale, torch.tensor(0.01).double())


def test_hyper_connections_against_the_package_of_that_name():
    """The same weights in both; its RMSNorm has a gain, which our map takes in."""
    outside = pytest.importorskip("hyper_connections", reason="hyper-connections, an outside implementation")
    model = lively("hc", streams=3)
    r = model.residual
    H, u = noise(2, 5, 3, 12), noise(2, 5, 12, seed=1)
    for event in range(8):
        theirs = outside.HyperConnections(3, dim=12, layer_index=event).double()
        start = fresh("hc", streams=3).residual
        assert torch.equal(torch.cat((theirs.static_alpha, theirs.static_beta[:, None]), 1), start.static[event])
        with torch.no_grad():
            theirs.norm.gamma.copy_(noise(12, seed=2))
            ours = r.dynamic_map[event] / (theirs.norm.gamma + 1)[:, None]
            theirs.static_alpha.copy_(r.static[event, :, :-1])
            theirs.static_beta.copy_(r.static[event, :, -1])
            theirs.dynamic_alpha_fn.copy_(ours[:, :-1])
            theirs.dynamic_beta_fn.copy_(ours[:, -1])
            theirs.dynamic_alpha_scale.copy_(r.scale[event, 0])
            theirs.dynamic_beta_scale.copy_(r.scale[event, 1])
        streams = H.movedim(2, 1).flatten(0, 1)  # [(b n), T, d]
        x, mixed, weights = theirs.width_connection(streams)
        after = theirs.depth_connection(u, mixed, **weights).unflatten(0, (2, 3)).movedim(1, 2)
        ours, state = r.read(H, event)
        close(ours, x, 1e-12)
        close(r.write(state, event, u), after, 1e-12)


# ---- mHC ----


def sums_are_one(A: Tensor, tolerance: float) -> None:
    assert (A >= 0).all()
    for axis in (-1, -2):
        assert (A.sum(axis) - 1).abs().max() < tolerance


def test_mhc_by_hand():
    model, tokens = lively("mhc", streams=3, diagonal=2.0), some_tokens()
    r, rope = model.residual, rope_of(model, tokens)
    H = torch.stack([model.embed(tokens)] * 3, dim=-2)
    for event, sublayer in enumerate(model.sublayers):
        z = unit(H.flatten(-2)) @ r.dynamic_map[event]
        pre, post, res = (z * torch.cat([r.alpha[event, k].expand(n) for k, n in enumerate((3, 3, 9))])
                          + r.static[event]).split([3, 3, 9], dim=-1)  # fmt: skip
        A = res.unflatten(-1, (3, 3)).exp()
        for _ in range(20):
            A = A / A.sum(-2, keepdim=True)
            A = A / A.sum(-1, keepdim=True)
        u = sublayer(torch.einsum("btn,btnd->btd", torch.sigmoid(pre), H), rope)
        H = torch.einsum("btij,btjd->btid", A, H) + (2 * torch.sigmoid(post))[..., None] * u[..., None, :]
    close(model(tokens), head(model, H.sum(-2)))


def test_the_identity_before_sinkhorn_is_not_near_it_after():
    four = torch.eye(4, dtype=torch.float64)
    assert sinkhorn(four, 20).diagonal().tolist() == pytest.approx([0.475] * 4, abs=1e-3)
    assert sinkhorn(6 * four, 20).diagonal().tolist() == pytest.approx([1 / (1 + 3 * math.exp(-6))] * 4, rel=1e-12)


def test_sinkhorn_stays_finite_and_exact_in_bfloat16_and_far_out():
    for z in (30 * noise(50, 4, 4), 100 * noise(50, 4, 4).float(), noise(50, 4, 4).bfloat16()):
        A = sinkhorn(z, 20)
        assert A.dtype == (torch.float64 if z.dtype == torch.float64 else torch.float32) and A.isfinite().all()
        assert (A.sum(-1) - 1).abs().max() < 1e-6  # rows are scaled last
    assert torch.equal(A, sinkhorn(z.float(), 20))
    sums_are_one(A, 1e-4)


def test_sinkhorn_takes_long_near_the_identity():
    """Rows are exact; columns are off by less than stands off the diagonal, and more rounds help slowly."""
    z = 6 * torch.eye(4).double() + 0.5 * noise(20, 4, 4)
    errors = [(sinkhorn(z, rounds).sum(-2) - 1).abs().amax(-1) for rounds in (1, 20, 5000)]
    off = 1 - sinkhorn(z, 20).diagonal(dim1=-2, dim2=-1).amin(-1)
    assert (errors[1] < off).all() and (errors[1] > 0.1 * errors[0]).all() and errors[2].max() < 1e-6


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_mhc_mixing_is_doubly_stochastic_near_the_identity_at_first_and_learns(autocast):
    model, tokens = Transformer(tiny(Case("mhc", "mhc"), layers=2), seed=1), some_tokens()

    def mixings():
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            r, state, found = model.residual, model.residual.begin(model.embed(tokens)), []
            for event in range(4):
                found.append(r.mixing(r.logits(state, event)))
                state = model.step(state, event, rope_of(model, tokens))
        return torch.stack([A.expand(2, 7, 4, 4) for A in found])

    start = mixings()
    assert start.dtype == torch.float32
    sums_are_one(start, 1e-6)
    assert (start.diagonal(dim1=-2, dim2=-1) > 0.99).all()
    train(model, 30, lr=0.003, autocast=autocast)
    after = mixings()
    assert (after.sum(-1) - 1).abs().max() < 1e-6
    sums_are_one(after, 1e-3)
    assert ((after - start).abs().amax((1, 2, 3, 4)) > 1e-5)[1:].all()  # at event 0 all streams are equal
    assert (after[1:, 0, 0] - after[1:, 1, -1]).abs().max() > 1e-6  # and it depends on the token
    H = noise(2, 7, 4, 12).float()
    (_, (_, exact)), u = model.residual.read(H, 3), noise(2, 7, 12).float()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        _, state = model.residual.read(H, 3)
        assert torch.equal(state[1], exact)  # not one bit lost
        after = model.residual.write(state, 3, u)
    assert torch.equal(after, model.residual.write(state, 3, u))


def test_mhc_gradients_reach_the_mixing_from_its_start():
    model = shake(Transformer(tiny(Case("mhc", "mhc"))), size=0.05)
    with torch.no_grad():
        model.residual.static[:, 8:] = (6 * torch.eye(4)).flatten()
    grads = gradients(model, some_tokens())["residual.static"]
    assert (grads[1:, 8:].abs().amax(-1) > 1e-5).all()


def test_mhc_against_the_package_hyper_connections():
    """Its dynamic part norms streams one by one, so only static parts compare; its mixing stands transposed."""
    outside = pytest.importorskip("hyper_connections", reason="hyper-connections, an outside implementation")
    from hyper_connections.manifold_constrained_hyper_connections import log_domain_sinkhorn_knopps

    z = 2 * noise(30, 4, 4).float()
    torch.testing.assert_close(sinkhorn(z, 20), log_domain_sinkhorn_knopps(z, 20), rtol=1e-4, atol=1e-6)
    r = lively("mhc", diagonal=1.0).residual
    with torch.no_grad():
        r.dynamic_map.zero_()
    H, u = noise(2, 5, 4, 12), noise(2, 5, 12, seed=1)
    theirs = outside.mHC(4, dim=12, layer_index=0, sinkhorn_iters=200).double()
    r.rounds = 200  # rows or columns last makes no difference then
    with torch.no_grad():
        pre, post, res = r.static[3].split([4, 4, 16])
        theirs.static_alpha.copy_(torch.cat((pre[:, None], res.unflatten(0, (4, 4)).T), 1))
        theirs.static_beta.copy_(post)
    x, mixed, weights = theirs.width_connection(H.movedim(2, 1).flatten(0, 1))
    after = theirs.depth_connection(u, mixed, **weights).unflatten(0, (2, 4)).movedim(1, 2)
    ours, state = r.read(H, 3)
    close(ours, x, 1e-5)  # theirs are computed in float32
    close(r.write(state, 3, u), after, 1e-5)


# ---- VWN ----


@pytest.mark.parametrize("m, n, source", [(2, 4, "linear"), (2, 3, "linear"), (3, 6, "repeat"), (1, 2, "repeat")])
def test_vwn_by_hand(m, n, source):
    model, tokens = lively("vwn", m=m, n=n, input=source), some_tokens()
    r, rope = model.residual, rope_of(model, tokens)
    e, width = model.embed(tokens), 12 // m
    wide = e @ r.input_map.T if source == "linear" else torch.cat([e] * n, -1)[..., : n * width]
    H = wide.reshape(2, 7, n, width)
    for event, sublayer in enumerate(model.sublayers):
        tanh = torch.tanh(unit(H) @ r.dynamic_map[event] / width**0.5)
        read, carry, back = (r.static[event] + r.scale[event] * tanh).split([m, n, m], dim=-1)
        B = back.transpose(-1, -2)  # [m, n]
        u = sublayer((read.transpose(-1, -2) @ H).reshape(2, 7, 12), rope).reshape(2, 7, m, width)
        H = B.transpose(-1, -2) @ u + carry.transpose(-1, -2) @ H
    flat = H.reshape(2, 7, n * width)
    if n % m == 0:
        parts = flat.split(12, -1)
        parts = [(p - p.mean(-1, keepdim=True)) / p.std(-1, correction=0, keepdim=True) for p in parts]
        flat = torch.cat(parts, -1) * r.norm.weight + r.norm.bias
    close(model(tokens), head(model, flat @ r.reduce_map.T))


@pytest.mark.parametrize("m, n", [(2, 4), (2, 5), (3, 3), (1, 8)])
def test_vwn_starts_as_published(m, n):
    r = Transformer(tiny(Case("vwn", "vwn", {"m": m, "n": n}))).residual
    for event in range(8):
        read, carry, back = r.static[event].split([m, n, m], dim=1)
        assert torch.equal(carry, torch.eye(n))
        assert torch.equal(read[:m], torch.eye(m)) and not read[m:].any()
        assert [[back[j, i].item() for j in range(n)] for i in range(m)] == [
            [float(i == j % m) for j in range(n)] for i in range(m)
        ]
    assert not r.dynamic_map.any() and (r.scale == 1).all()


def test_vwn_reads_out_the_standard_stream_centred_by_its_group_norm():
    tokens, model, standard = some_tokens(), fresh("vwn"), fresh("standard")
    state = model.residual.begin(model.embed(tokens))
    h = model.embed(tokens)
    for event in range(8):
        state = model.step(state, event, rope_of(model, tokens))
        h = standard.step(h, event, rope_of(model, tokens))
    close(model.residual.readout(state), unit(h - h.mean(-1, keepdim=True)), 1e-12)


# ---- HiRes ----


def hires_by_hand(
    model: Transformer, tokens: Tensor, group: int, write: str, source: str
) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the outer stream X_0 … X_J."""
    r, e = model.residual, model.embed(tokens)
    D = r.read_maps.shape[-1]
    X = [e @ r.input_map.T if source == "linear" else torch.cat((e, torch.zeros(2, 7, D - 12).double()), -1)]
    for j in range(model.config.layers // group):
        h = X[j] @ r.read_maps[j].T
        y = h
        for layer in range(j * group, (j + 1) * group):
            y = layer_by_hand(model, layer, y, tokens)
        X.append(unit(X[j] + (y if write == "output" else y - h) @ r.write_maps[j].T) * r.norms[j].gain)
    return head(model, X[-1] @ r.read_maps[-1].T), X


@pytest.mark.parametrize(
    "ratio, group, write, source",
    [(2.0, 2, "output", "linear"), (1.5, 1, "delta", "pad"), (1.0, 4, "delta", "linear"), (1.0, 2, "output", "pad")],
)
def test_hires_by_hand(ratio, group, write, source):
    options = dict(ratio=ratio, layers_per_group=group, write=write, input=source)
    model, tokens = lively("hires", **options), some_tokens()
    logits, _ = hires_by_hand(model, tokens, group, write, source)
    close(model(tokens), logits)
    assert {tuple(m.shape) for m in model.residual.write_maps} == {(round(12 * ratio), 12)}


@pytest.mark.parametrize("ratio", [1.0, 2.0, 4.0])
def test_the_outer_stream_of_hires_has_unit_rms_in_any_weather(ratio):
    model, tokens = lively("hires", ratio=ratio, layers_per_group=1), some_tokens()
    with torch.no_grad():
        for norm in model.residual.norms:
            norm.gain.fill_(1)
        model.residual.write_maps.mul_(100)
    state = model.residual.begin(model.embed(tokens))
    for event in range(8):
        state = model.step(state, event, rope_of(model, tokens))
        if event % 2:
            close(rms(state.outer), torch.ones(2, 7).double(), 1e-12)
            assert state.outer.shape == (2, 7, round(12 * ratio))


def test_inside_a_group_of_hires_the_standard_stream_runs_to_the_bit():
    hires, standard = (Transformer(tiny(Case(s, s)), seed=3) for s in ("hires", "standard"))
    for ours, theirs in zip(hires.sublayers.parameters(), standard.sublayers.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    rope, h = rope_of(standard, some_tokens()), noise(2, 7, 12).float()
    state = hires.residual.begin(noise(2, 7, 12, seed=1).float())._replace(start=h, inner=h)
    for event in range(7):  # the eighth writes to the outer stream
        x, _ = hires.residual.read(state, event)
        assert torch.equal(x, h)
        state, h = hires.step(state, event, rope), standard.step(h, event, rope)
    assert torch.equal(state.inner, h)


@pytest.mark.parametrize("write, weight", [("output", 2), ("delta", 1)])
@pytest.mark.parametrize("source", ["linear", "pad"])
def test_hires_as_wide_as_its_layers_starts_as_a_stream_normed_after_each_group(write, weight, source):
    tokens = some_tokens()
    model = fresh("hires", ratio=1.0, layers_per_group=2, write=write, input=source)
    h = model.embed(tokens)
    for j in (0, 1):
        change = layer_by_hand(model, 2 * j + 1, layer_by_hand(model, 2 * j, h, tokens), tokens) - h
        h = unit(weight * h + change)
    close(model(tokens), head(model, h), 1e-12)
    one_group = fresh("hires", ratio=1.0, write=write, input=source)
    gap = (one_group(tokens) - fresh("standard")(tokens)).abs().max()
    assert gap < 1e-12 if write == "delta" else gap > 1e-3  # with one group, delta is the standard model itself


@pytest.mark.parametrize("ratio", [1.5, 2.0, 4.0])
def test_a_wider_hires_starts_from_the_same_channels_and_can_read_the_others_at_once(ratio):
    tokens, model = some_tokens(), fresh("hires", ratio=ratio, layers_per_group=2)
    r, wide = model.residual, round(12 * ratio)
    assert torch.equal(r.read_maps, torch.eye(12, wide).double().expand(3, 12, wide))
    for up in (r.input_map, *r.write_maps):
        assert torch.equal(up[:12], torch.eye(12).double()) and 0.5 < up[12:].std() * 12**0.5 < 1.5
    assert not torch.equal(r.write_maps[0], r.write_maps[1])
    _, X = hires_by_hand(model, tokens, 2, "output", "linear")
    change = layer_by_hand(model, 1, layer_by_hand(model, 0, X[0][..., :12], tokens), tokens) - X[0][..., :12]
    close(unit(X[1][..., :12]), unit(2 * X[0][..., :12] + change), 1e-12)  # as at D = d, up to a scale
    assert (rms(X[1][..., 12:]) / rms(X[1][..., :12])).log().abs().max() < 1.2
    grads = gradients(model, tokens)
    assert grads["residual.read_maps"][..., 12:].abs().amax(1).min() > 0


# ---- wrong options ----


@pytest.mark.parametrize(
    "scheme, options, words",
    [
        ("denseformer", {"dilation": 0}, "dilation is 0"),
        ("denseformer", {"period": 0}, "period is 0"),
        ("muddformer", {"prepost": "yes"}, "one of False, True"),
        ("delta", {"blocks": 3}, "choose one of"),
        ("delta", {"blocks": "half"}, "full"),
        ("delta", {"null": 2}, "one of False, True"),
        ("hc", {"streams": 0}, "at least 1"),
        ("hc", {"dynamic": "no"}, "one of False, True"),
        ("mhc", {"streams": 0}, "streams is 0"),
        ("mhc", {"rounds": 0}, "rounds is 0"),
        ("mhc", {"diagonal": -1.0}, "from 0 to 50"),
        ("mhc", {"diagonal": math.nan}, "from 0 to 50"),
        ("vwn", {"m": 3, "n": 2}, "1 <= m <= n"),
        ("vwn", {"m": 5, "n": 5}, r"choose m of \[1, 2, 3, 4, 6, 12\]"),
        ("vwn", {"input": "table"}, "linear, repeat"),
        ("hires", {"ratio": 0.5}, "at least 1"),
        ("hires", {"ratio": 1.3}, "not whole; choose 1.33"),
        ("hires", {"layers_per_group": 3}, r"layers_per_group of \[1, 2, 4\]"),
        ("hires", {"layers_per_group": 0}, r"layers_per_group of \[1, 2, 4\]"),
        ("hires", {"write": "sum"}, "output, delta"),
        ("hires", {"input": "table"}, "linear, pad"),
    ],
    ids=str,
)
def test_wrong_options_say_what_to_do(scheme, options, words):
    with pytest.raises(ConfigError, match=words):
        Transformer(tiny(Case(scheme, scheme, options)))


def test_each_method_is_its_own_class_behind_one_name():
    kinds = [SCHEMES[scheme][0] for scheme in NEW]
    assert len(set(kinds)) == len(NEW) and all(issubclass(kind, nn.Module) for kind in kinds)
    assert {kind.__module__.rpartition(".")[0] for kind in kinds} == {"minihaares.relatives"}
