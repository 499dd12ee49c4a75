"""Hyper-Connections (Zhu et al., arXiv 2409.19606): n copies of the stream, with learned reads, writes and mixing.

    H_0 = n copies of e                                              H [n, d]
    x = A_m^T H,   H <- B u + A_r^T H                                A_m [n], A_r [n, n], B [n], per event
    the head sees the sum of the streams, through the model's final norm

Static: the numbers are parameters. Dynamic: they also depend on the token, one row for each stream,
    [A_m | A_r | B] = static + s · tanh(norm(H) W),                  W [d, n + 2]; one s for A_m and A_r, one for B

Start: A_m of event i is 1 for stream i mod n and 0 elsewhere, A_r = I, B = 1, W = 0, s = 0.01. So every stream is
the standard stream, and the untrained model is the standard one up to the epsilon of the final norm, which divides
the n-fold sum out again. Static parts have no weight decay and W has, as published.
Ours: the norm is RMSNorm without a gain, which W can hold (the paper's is LayerNorm); the weights of the output
matrices are not rescaled at the start (the paper does, by √n), as every scheme here starts from one backbone.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..depth_read import full_precision
from ..model import ConfigError, ModelConfig, Residual, choose


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / RMS(x) over the last axis, which stays with size 1. Scaling W's products by it spares a normed copy of x."""
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def thin(x: Tensor, weight: Tensor) -> Tensor:
    """x W for a W [d, k] of a few columns, which a CPU multiplies twice as quickly turned."""
    return F.linear(x, weight.T.contiguous())


def tanh_part(H: Tensor, weight: Tensor, eps: float) -> Tensor:
    """tanh(norm(H) W), row by row: H [..., n, d], W [d, k] -> [..., n, k]."""
    return torch.tanh(inverse_rms(H, eps) * thin(H, weight))


def mix_streams(weights: Tensor, H: Tensor) -> Tensor:
    """Columns of weights [..., n, k] mix the streams: w^T H, H [..., n, d] -> [..., k, d]."""
    return weights.mT @ H


@dataclass(frozen=True)
class HyperOptions:
    """`streams` n; `dynamic`: whether the weights also depend on the token."""

    streams: int = 4
    dynamic: bool = True

    def __post_init__(self) -> None:
        choose("dynamic", self.dynamic, (False, True))
        if self.streams < 1:
            raise ConfigError(f"streams is {self.streams}; there must be at least 1.")


class HyperConnections(Residual):
    """n streams. The state is H [B, T, n, d]; from a read to the write after it, (H, the event's weights)."""

    Options = HyperOptions

    def __init__(self, config: ModelConfig, options: HyperOptions, generator: torch.Generator) -> None:
        super().__init__()
        n, d, events, self.eps = options.streams, config.width, config.events, config.norm_eps
        self.streams, self.dynamic = n, options.dynamic
        eye = torch.eye(n)
        starts = [torch.cat((eye[:, [event % n]], eye, torch.ones(n, 1)), dim=1) for event in range(events)]
        self.static = nn.Parameter(torch.stack(starts))  # [events, n, n + 2]: A_m, A_r, B
        if self.dynamic:
            self.dynamic_map = nn.Parameter(torch.zeros(events, d, n + 2))
            self.scale = nn.Parameter(torch.full((events, 2), 0.01))  # of A_m and A_r, of B
            self.decayed = ("dynamic_map",)

    def weights(self, H: Tensor, event: int) -> Tensor:
        """[A_m | A_r | B] for each token, [B, T, n, n + 2]."""
        if not self.dynamic:
            return self.static[event].expand(*H.shape[:-1], -1)
        a, b = self.scale[event].split(1)
        scale = torch.cat((a.expand(self.streams + 1), b))
        return self.static[event] + scale * tanh_part(H, self.dynamic_map[event], self.eps)

    def begin(self, embedding: Tensor) -> Tensor:
        return embedding[..., None, :].expand(*embedding.shape[:-1], self.streams, -1)

    def read(self, state: Tensor, event: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        with full_precision(state):
            w = self.weights(state, event)
            return (w[..., :1] * state).sum(-2), (state, w)

    def write(self, state: tuple[Tensor, Tensor], event: int, output: Tensor) -> Tensor:
        H, w = state
        with full_precision(H):
            mixed = mix_streams(w[..., 1:-1], H)
            return torch.addcmul(mixed, w[..., -1:], output.to(H.dtype)[..., None, :])

    def readout(self, state: Tensor) -> Tensor:
        return state.sum(-2)
