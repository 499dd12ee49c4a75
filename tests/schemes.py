"""Small helpers of the tests: every scheme and option as a list of cases, and tiny models of them.

A test that should hold for all of them says `@pytest.mark.parametrize("case", EVERYTHING, ids=str)`. A new read
implementation is one more entry of `READS`; a new scheme is one more line of `STREAMS`, `_ROUTED` or `RELATIVES`.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minihaares.model import DepthRouter, ModelConfig, Transformer


@dataclass(frozen=True)
class Case:
    """A scheme with its options, and the name a test shows for it."""

    name: str
    scheme: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


STREAMS = [
    Case("standard", "standard"),
    Case("postnorm", "postnorm"),
    Case("deepnorm", "deepnorm"),
    Case("rezero", "rezero"),
    Case("layerscale", "layerscale", {"gate_init": 0.3}),
]

READS = ["lean", "recompute", "plain"]
"""The implementations of a routed read. The first is the default, and adds nothing to a case's name."""

_ROUTED = [
    Case("attnres", "attnres"),
    Case("block", "block", {"blocks": 2}),
    Case("block-uneven", "block", {"blocks": (3, 1, 4)}),
    Case("block-nogain", "block", {"blocks": 2, "key_gain": False}),
    Case("haares", "haares", {"blocks": 2}),
    Case("haares-full", "haares", {"blocks": "full"}),
    Case("haares-uneven", "haares", {"blocks": (3, 5)}),
    Case("haares-nogain", "haares", {"blocks": 2, "key_gain": False}),
    Case("haares-unmatched", "haares", {"blocks": 2, "match": "none"}),
    Case("haares-gamma2", "haares", {"blocks": 2, "gamma": 2.0, "eps": 1e-3}),
    Case("haares-fixed", "haares", {"blocks": 2, "bias": "fixed", "bias_init": -1.0}),
    Case("haares-masked", "haares", {"blocks": 2, "bias": "masked"}),
    Case("haares-readout", "haares", {"blocks": 2, "readout_details": True}),
    Case("duplicate", "haares", {"blocks": 2, "detail": "duplicate"}),
    Case("random-sign", "haares", {"blocks": 2, "detail": "random_sign", "sign_seed": 3}),
    Case("phase", "haares", {"blocks": 2, "detail": "phase"}),
]
_LEAKING = [
    Case("haares-time", "haares", {"blocks": 2, "rms_axes": "time", "allow_leak": True}),
    Case("haares-batch", "haares", {"blocks": 2, "rms_axes": "batch", "allow_leak": True}),
]


RELATIVES = [
    Case("delta", "delta"),
    Case("delta-blocks", "delta", {"blocks": (3, 5), "null": True}),
    Case("denseformer", "denseformer"),
    Case("denseformer-sparse", "denseformer", {"dilation": 2, "period": 2}),
    Case("muddformer", "muddformer"),
    Case("muddformer-prepost", "muddformer", {"prepost": True}),
    Case("hc", "hc"),
    Case("hc-static", "hc", {"streams": 2, "dynamic": False}),
    Case("mhc", "mhc", {"streams": 3, "rounds": 4, "diagonal": 2.0}),
    Case("vwn", "vwn"),
    Case("vwn-repeat", "vwn", {"m": 2, "n": 3, "input": "repeat"}),
    Case("hires", "hires", {"layers_per_group": 2}),
    Case("hires-delta", "hires", {"layers_per_group": 1, "ratio": 1.5, "write": "delta", "input": "pad"}),
]


def under_every_read(cases: list[Case]) -> list[Case]:
    """The cases under each read implementation."""
    suffix = {read: "" if read == READS[0] else f"-{read}" for read in READS}
    return [Case(c.name + suffix[read], c.scheme, c.options | {"read": read}) for read in READS for c in cases]


# Every option stands under the default read. Under the others a few are enough: test_against_oracle.py draws the rest.
_SAMPLE = ("attnres", "block", "block-uneven", "haares", "haares-uneven", "haares-nogain", "haares-readout", "phase")
ROUTED = [
    c
    for c in under_every_read(_ROUTED)
    if c.options["read"] == READS[0] or c.name.removesuffix(f"-{c.options['read']}") in _SAMPLE
]
LEAKING = _LEAKING  # these axes are always read plainly
CAUSAL = STREAMS + ROUTED + RELATIVES
EVERYTHING = CAUSAL + LEAKING


def by_name(*names: str) -> list[Case]:
    """The cases of these names (without the suffix of a read), under every read implementation."""
    found = [c for c in CAUSAL if c.name in {n + suffix for n in names for suffix in ("", *(f"-{r}" for r in READS))}]
    assert {c.name for c in found} >= set(names)
    return found


def tiny(case: Case, **sizes: Any) -> ModelConfig:
    """4 layers of width 12: 8 events, so that every case's blocks fit; `sizes` overrides."""
    defaults = dict(vocab_size=13, layers=4, width=12, heads=2, ff=20, max_context=64)
    return ModelConfig(**(defaults | sizes), scheme=case.scheme, options=case.options)


def shake(model: Transformer, seed: int = 0, size: float = 0.5) -> Transformer:
    """Add normal noise to every parameter, so that no zero start hides a term; returns the model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
    return model


def shaken(case: Case, seed: int = 0, dtype: torch.dtype = torch.float64, **sizes: Any) -> Transformer:
    """A tiny model of the case with lively weights; `checkpointing` and sizes may be given."""
    checkpointing = sizes.pop("checkpointing", False)
    return shake(Transformer(tiny(case, **sizes), seed=seed, checkpointing=checkpointing).to(dtype), seed)


def some_tokens(batch: int = 2, length: int = 7, vocab: int = 13, seed: int = 0) -> Tensor:
    """Tokens [batch, length] from a private generator."""
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers from a private generator."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gradients(model: Transformer, tokens: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Gradients of a fixed random linear function of the logits, by parameter name (zeros where unused)."""
    model.zero_grad()
    logits = model(tokens)
    (logits * noise(*logits.shape, seed=seed).to(logits)).sum().backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def tensors(state: Any) -> list[Tensor]:
    """Every tensor in a residual's state, however nested."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, (tuple, list)):
        return [t for part in state for t in tensors(part)]
    if isinstance(state, dict):
        return tensors(tuple(state.values()))
    if hasattr(state, "__dataclass_fields__"):
        return tensors(tuple(vars(state).values()))
    return []


def events_of(router: DepthRouter, embedding: Tensor, outputs: list[Tensor]) -> list[Any]:
    """States before each event and at the end, when event i outputs `outputs[i]` whatever it read."""
    states = [router.begin(embedding)]
    for event, output in enumerate(outputs):
        _, state = router.read(states[-1], event)
        states.append(router.write(state, event, output))
    return states
