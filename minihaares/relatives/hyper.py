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
from torch import Tensor, nn

from ..depth_read import full_precision
from ..model import ConfigError, ModelConfig, Residual, choose


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / RMS(x) over the last axis, which stays with size 1. Scaling W's products by it spares a normed copy of x."""
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def tanh_part(H: Tensor, weight: Tensor, eps: float) -> Tensor:
    """tanh(norm(H) W), row by row: H [..., n, d], W [d, k] -> [..., n, k]."""
    return torch.tanh(inverse_rms(H, eps) * (H @ weight))


def mix_streams(weights: Tensor, H: Tensor) -> Tensor:
    """Columns of weights [..., n, k] mix the streams: w^T H, H [..., n, d] -> [..., k, d]."""
    return torch.einsum("...nk,...nd->...kd", weights, H)


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
    """n streams. The state is H [B, T, n, d]."""

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

    def weights(self, H: Tensor, event: int, columns: slice) -> Tensor:
        """Columns of [A_m | A_r | B]: [n, k], or [B, T, n, k] if dynamic."""
        static = self.static[event, :, columns]
        if not self.dynamic:
            return static
        a, b = self.scale[event].split(1)
        scale = torch.cat((a.expand(self.streams + 1), b))[columns]
        return static + scale * tanh_part(H, self.dynamic_map[event, :, columns], self.eps)

    def begin(self, embedding: Tensor) -> Tensor:
        return embedding[..., None, :].expand(*embedding.shape[:-1], self.streams, -1)

    def read(self, state: Tensor, event: int) -> tuple[Tensor, Tensor]:
        with full_precision(state):
            return mix_streams(self.weights(state, event, slice(0, 1)), state).squeeze(-2), state

    def write(self, state: Tensor, event: int, output: Tensor) -> Tensor:
        with full_precision(state):
            w = self.weights(state, event, slice(1, None))
            return mix_streams(w[..., :-1], state) + w[..., -1:] * output.to(state.dtype)[..., None, :]

    def readout(self, state: Tensor) -> Tensor:
        return state.sum(-2)
