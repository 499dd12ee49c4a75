"""The whole model against the reference of `oracle.py`: logits, reads and the gradients of all weights, in float64.

The reference was written from the equations alone. Its weights are made here as slices of the model's parameters, so
both sides are differentiated by the same leaves.
"""

import math

import oracle
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from schemes import READS, events_of, noise, shake, some_tokens

from minihaares.model import Attention, DepthRouter, ModelConfig, RouterOptions, Transformer

AGREEMENT = 1e-12
"""Greatest difference, relative to the greatest absolute value of the tensor it is in (or to 1, if that is less)."""


def reference_options(model: Transformer) -> oracle.RouterOptions | None:
    """What the reference calls the model's router options."""
    router = model.residual
    if not isinstance(router, DepthRouter):
        return None
    o, signs = router.options, [place.sign for place in router.places]
    sizes = [place.length for place in router.places if place.last]
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    bias = {"learned": None, "fixed": o.bias_init, "masked": -math.inf}[o.bias]
    return oracle.RouterOptions(
        blocks=o.blocks if isinstance(o.blocks, int) else sizes,
        detail=o.detail,
        signs=[signs[end - size : end] for size, end in zip(sizes, ends, strict=True)],  # the coins are the model's
        match=o.match,
        gamma=o.gamma,
        eps=o.eps,
        rms_axes=o.rms_axes,
        bias=bias,
        key_gain=o.key_gain,
        key_eps=model.config.norm_eps,
        readout_details=o.readout_details,
        readout_bias=bias if o.readout_details else 0.0,
    )


def reference_weights(model: Transformer) -> oracle.Weights:
    """The model's parameters under the reference's names; missing MLP biases are zeros."""
    config, residual = model.config, model.residual
    weights = {"embed": model.embed.weight, "final_norm": model.norm.gain}
    for i, sublayer in enumerate(model.sublayers):
        own = {"norm": sublayer.norm.gain if residual.prenorm else residual.norms[i].gain}
        if isinstance(sublayer, Attention):
            own |= dict(zip(("wq", "wk", "wv"), sublayer.qkv.weight.chunk(3), strict=True), wo=sublayer.out.weight)
        else:
            own |= dict(zip(("w_gate", "w_up"), sublayer.gate_up.weight.chunk(2), strict=True))
            own["w_down"] = sublayer.down.weight
            inner = sublayer.gate_up.bias if config.mlp_bias else torch.zeros(2 * config.ff, dtype=torch.float64)
            own |= dict(zip(("b_gate", "b_up"), inner.chunk(2), strict=True))
            own["b_down"] = sublayer.down.bias if config.mlp_bias else torch.zeros(config.width, dtype=torch.float64)
        if config.scheme in ("rezero", "layerscale"):
            own["scale"] = residual.gates[i].squeeze() if config.scheme == "rezero" else residual.gates[i]
        weights |= {f"events.{i}.{name}": w for name, w in own.items()}
    if isinstance(residual, DepthRouter):
        learned = residual.detailed and residual.options.bias == "learned"
        for i in range(config.events + 1):
            site = f"routers.{i}" if i < config.events else "final_router"
            weights[f"{site}.query"] = residual.query[i]
            if residual.key_gain is not None:
                weights[f"{site}.key_gain"] = residual.key_gain[i]
            if learned and i < len(residual.detail_bias):
                weights[f"{site}.bias"] = residual.detail_bias[i]
    return weights


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((ours - theirs).abs().max() / max(1.0, theirs.abs().max().item())).item()


def disagreement(model: Transformer, tokens: torch.Tensor) -> dict[str, float]:
    """Distances of logits, of what sublayers read, and of the gradients of all parameters."""
    scheme = {"attnres": "full", "block": "router", "haares": "router"}.get(model.config.scheme, model.config.scheme)
    seen: list[torch.Tensor] = []
    hooks = [s.register_forward_pre_hook(lambda module, args: seen.append(args[0])) for s in model.sublayers]
    logits = model(tokens)
    for hook in hooks:
        hook.remove()
    c = model.config
    expected, along = oracle.trace(
        reference_weights(model), tokens, c.layers, c.heads, scheme, reference_options(model), c.norm_eps, c.rope_base
    )
    found = {"logits": distance(logits, expected)}
    if scheme != "full":
        reads = [step.mixture if scheme == "router" else step for step in along]
        found["reads"] = max(map(distance, seen, reads[:-1]))
    names, parameters = zip(*model.named_parameters(), strict=True)
    cotangent = noise(*logits.shape)
    ours, theirs = (
        torch.autograd.grad((y * cotangent).sum(), parameters, allow_unused=True, materialize_grads=True)
        for y in (logits, expected)
    )
    assert all(g.abs().max() > 0 for n, g in zip(names, theirs, strict=True) if n.startswith("sublayers"))
    return found | {f"gradient of {n}": distance(*pair) for n, *pair in zip(names, ours, theirs, strict=True)}


def assert_agreement(model: Transformer, tokens: torch.Tensor) -> None:
    found = disagreement(model, tokens)
    worst = max(found, key=found.__getitem__)
    assert found[worst] < AGREEMENT, f"{worst} differs by {found[worst]:.1e}"


# ---- what is drawn ----


@st.composite
def backbones(draw) -> dict:
    """Sizes of a small model, with a batch of tokens and a seed."""
    heads = draw(st.integers(1, 3))
    return dict(
        layers=draw(st.integers(1, 4)),
        width=heads * draw(st.sampled_from([2, 4])),
        heads=heads,
        ff=draw(st.integers(1, 6)),
        vocab_size=draw(st.integers(2, 7)),
        norm_eps=draw(st.sampled_from([1e-6, 1e-3])),
        rope_base=draw(st.sampled_from([1e4, 50.0])),
        mlp_bias=draw(st.booleans()),
    )


@st.composite
def splits(draw, events: int) -> int | tuple[int, ...] | str:
    """A number of equal blocks, "full", or a list of lengths."""
    kind = draw(st.sampled_from(["equal", "list", "full"]))
    if kind == "equal":
        return draw(st.sampled_from([n for n in range(1, events + 1) if events % n == 0]))
    if kind == "full":
        return "full"
    cuts = sorted(draw(st.sets(st.integers(1, events - 1))))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, events], strict=True))


@st.composite
def routed(draw) -> ModelConfig:
    sizes = draw(backbones())
    options = dict(
        blocks=draw(splits(2 * sizes["layers"])),
        detail=draw(st.sampled_from(["half", "none", "duplicate", "random_sign", "phase"])),
        match=draw(st.sampled_from(["rms", "none"])),
        gamma=draw(st.sampled_from([4.0, 1.0, 1.5, 50.0])),
        eps=draw(st.sampled_from([1e-6, 0.1])),
        rms_axes=draw(st.sampled_from(["token", "token", "token", "time", "batch"])),
        bias=draw(st.sampled_from(["learned", "fixed", "masked"])),
        bias_init=draw(st.sampled_from([-2.0, 0.0, -4.0, 1.0])),
        key_gain=draw(st.booleans()),
        readout_details=draw(st.booleans()),
        sign_seed=draw(st.integers(0, 99)),
        read=draw(st.sampled_from(READS)),
        allow_leak=True,
    )
    return ModelConfig(**sizes, scheme="haares", options=options)


batches = st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(0, 2**20))


def lively(config: ModelConfig, batch: tuple[int, int, int]) -> tuple[Transformer, torch.Tensor]:
    """A float64 model in which every weight, query, gain and bias is random, and tokens for it."""
    B, T, seed = batch
    model = shake(Transformer(config, seed).double(), seed, size=0.3)
    return model, some_tokens(B, T, config.vocab_size, seed)


# ---- the properties ----

PAPER = dict(layers=3, width=8, heads=2, ff=12, vocab_size=11)


@settings(max_examples=200)
@given(routed(), batches)
@example(ModelConfig(**PAPER, scheme="haares", options={"blocks": 2}), (2, 5, 1))
@example(ModelConfig(**PAPER, scheme="block", options={"blocks": 2}), (2, 5, 1))
def test_every_router_is_the_reference(config, batch):
    assert_agreement(*lively(config, batch))


@settings(max_examples=30)
@given(backbones(), st.booleans(), st.sampled_from(READS), batches)
def test_full_attention_residuals_are_the_reference(sizes, key_gain, read, batch):
    config = ModelConfig(**sizes, scheme="attnres", options={"key_gain": key_gain, "read": read})
    assert_agreement(*lively(config, batch))


@settings(max_examples=75)
@given(backbones(), st.sampled_from(["standard", "postnorm", "deepnorm", "rezero", "layerscale"]), batches)
def test_every_single_stream_is_the_reference(sizes, scheme, batch):
    assert_agreement(*lively(ModelConfig(**sizes, scheme=scheme), batch))


@pytest.mark.parametrize("scheme", ["standard", "block", "haares"])
def test_a_deep_model_is_the_reference_at_its_own_initial_weights(scheme):
    config = ModelConfig(layers=12, width=16, heads=2, ff=24, vocab_size=20, scheme=scheme)
    assert_agreement(Transformer(config, seed=3).double(), some_tokens(2, 12, 20))


@settings(max_examples=60)
@given(st.integers(1, 7).flatmap(lambda L: st.tuples(st.just(L), splits(2 * L))), st.sampled_from(["half", "phase"]))
def test_reads_see_what_the_definition_says(drawn, detail):
    layers, blocks = drawn
    config = ModelConfig(layers=layers, width=2, heads=1)
    options = RouterOptions(blocks=blocks, detail=detail, match="none", readout_details=True, read="plain")
    router = DepthRouter(config, options, torch.Generator()).double()
    outputs = [torch.full((1, 1, 2), 10.0**i, dtype=torch.float64) for i in range(2 * layers)]
    states = events_of(router, torch.zeros(1, 1, 2, dtype=torch.float64), outputs)
    sizes = [place.length for place in router.places if place.last]
    wanted = oracle.symbolic_reads(layers, oracle.RouterOptions(blocks=sizes, detail=detail, readout_details=True))
    for state, slots in zip(states, wanted, strict=True):
        values = [int(v[0, 0, 0]) for v in router.sources(state)]
        assert values == [sum(sign * 10**i for i, sign in events.items()) for _, events in slots]
    counts = oracle.source_counts(layers, sizes)
    assert [len(router.sources(state)) for state in states[:-1]] == counts["reads"]
