"""MUDDFormer (Xiao et al., arXiv 2502.12170): per-token mixtures of all layers, one each for q, k, v and the stream.

    X_0 = e,  X_i = layer_i(X^q, X^k, X^v, X^r)           X^c of the state before the layer; for the first, all are e
    X_A = attention(Norm X^q, Norm X^k, Norm X^v) + X^r,  layer = X_A + MLP(Norm X_A)
    X^c = Σ_j≤i w_cj X_j,   w = GELU(RMSNorm(X_i) W_1) W_2 + a,  C(i+1) numbers per token for C ways

C = 4 behind all layers but the last, whose only mixture the head sees. There is no softmax: weights may be negative.

With `prepost` (their PrePostDANorm, which the authors use for deep and narrow models) sources are normed, and the
normed mixture is added to the newest state:  X^c = RMSNorm(Σ_j w_cj RMSNorm(X_j)) + X_i.

Start: W_1 from N(0, 1/d) and W_2 = 0, as published; a = 1 for the newest state and 0 for the others, so the untrained
model is the standard one, to rounding. With `prepost` a = 0, and the gains start at 1 (inner) and 1e-3 (outer).
Ours: 1/d is a variance; the hidden layer has as many units as there are weights (the released code widens it here
and there); no gain in RMSNorm(X_i), which W_1 can hold; q, k and v are normed apart but share one gain, which their
three matrices can hold; all four ways have the outer norm; MLPs keep one width (theirs grow with depth); W_1 and W_2
decay like the matrices of the backbone, a does not.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..depth_read import full_precision
from ..model import ModelConfig, Residual, RMSNorm, choose
from .hyper import inverse_rms


@dataclass(frozen=True)
class MUDDFormerOptions:
    """`prepost`: norm sources and mixtures, and add the newest state to the mixtures."""

    prepost: bool = False

    def __post_init__(self) -> None:
        choose("prepost", self.prepost, (False, True))


class Sources(NamedTuple):
    """The stream [B, T, d] inside the current layer, and X_0 … X_i, normed if `prepost`."""

    stream: Tensor
    sources: tuple[Tensor, ...]


class Mixture(torch.autograd.Function):
    """Σ_s w_s v_s for C ways at once: weights [..., C, S] and S sources [..., d] give [..., C, d].

    Keeps the weights and refers to the sources; they are stacked for the time of a product only.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, *sources: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *sources)
        return weights @ torch.stack(sources, dim=-2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        weights, *sources = ctx.saved_tensors
        with full_precision(g):
            return g @ torch.stack(sources, dim=-1), *(weights.mT @ g).unbind(-2)


class MUDDFormer(Residual):
    """Dynamic dense connections in four ways; attention reads a triple (q, k, v)."""

    Options = MUDDFormerOptions

    def __init__(self, config: ModelConfig, options: MUDDFormerOptions, generator: torch.Generator) -> None:
        super().__init__()
        self.prepost, self.eps, d, layers = options.prepost, config.norm_eps, config.width, config.layers
        self.w1, self.w2, self.static = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()
        for i in range(1, layers + 1):
            ways = 4 if i < layers else 1
            hidden = ways * (i + 1)
            newest = torch.zeros(ways, i + 1)
            newest[:, -1] = 0 if self.prepost else 1
            self.w1.append(torch.empty(d, hidden).normal_(0, d**-0.5, generator=generator))
            self.w2.append(torch.zeros(hidden, hidden))
            self.static.append(newest)
        self.decayed = tuple(f"{name}.{i}" for name in ("w1", "w2") for i in range(layers))
        if self.prepost:
            self.inner = nn.ModuleList(RMSNorm(d, self.eps) for _ in range(layers + 1))
            self.outer_gain = nn.ParameterList(torch.full(a.shape[:1] + (d,), 1e-3) for a in self.static)

    def source(self, X: Tensor, i: int) -> Tensor:
        """X_i as later mixtures take it."""
        return self.inner[i](X) if self.prepost else X

    def mixtures(self, state: Sources) -> tuple[Tensor, ...]:
        """(X^q, X^k, X^v, X^r) behind layer i, or (X^r,) behind the last."""
        X, sources = state
        i = len(sources) - 2
        with full_precision(X):
            w = F.gelu(inverse_rms(X, self.eps) * (X @ self.w1[i])) @ self.w2[i]
            w = w.unflatten(-1, self.static[i].shape) + self.static[i]
            x = Mixture.apply(w, *sources)
            if self.prepost:
                x = F.rms_norm(x, x.shape[-1:], eps=self.eps) * self.outer_gain[i] + X[..., None, :]
            return x.unbind(-2)

    def begin(self, embedding: Tensor) -> Sources:
        return Sources(embedding, (self.source(embedding, 0),))

    def read(self, state: Sources, event: int) -> tuple[Tensor | tuple[Tensor, ...], Sources]:
        if event == 0 or event % 2:
            return state.stream, state
        q, k, v, stream = self.mixtures(state)
        return (q, k, v), state._replace(stream=stream)

    def write(self, state: Sources, event: int, output: Tensor) -> Sources:
        h = state.stream + output
        return Sources(h, (*state.sources, self.source(h, event // 2 + 1)) if event % 2 else state.sources)

    def readout(self, state: Sources) -> Tensor:
        (stream,) = self.mixtures(state)
        return stream
