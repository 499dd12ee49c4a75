"""mHC, manifold-constrained Hyper-Connections (Xie et al., arXiv 2512.24880): n streams that are only ever averaged.

    H_0 = n copies of e;   x = A_pre H,   H <- A_res H + C u         H [n, d]; A_pre, C [n]; A_res [n, n], per event
    with z = α · (RMSNorm(vec H) W) + S:                             W [n d, 2n + n²]; one α for each of the three
    A_pre = σ(z_pre),   C = 2 σ(z_post),   A_res = Sinkhorn(exp z_res)
    the head sees the sum of the streams, through the model's final norm

Sinkhorn divides columns and rows by their sums in turn, 20 times, towards a doubly stochastic matrix, which neither
amplifies nor loses at any depth. It runs in float32 and on logarithms (a log_softmax each way), so no entry
underflows, and its rounds are computed again in the backward pass instead of being kept, as in the paper. Rows are
divided last and sum to 1 exactly. Columns do at the start; once S_res or W have moved they do only roughly, for near
the identity each round removes little of their error, which stays under what stands off the diagonal.

Start: α = 0.01 as published; W and S are not published, so they are ours: W = 0. S_res has `diagonal` on the diagonal
and 0 elsewhere; S_res = I would not do, its Sinkhorn has 0.475 on the diagonal at n = 4. At 6 it has 0.993; much
higher, the gradients of what is off the diagonal vanish. S_pre = 2 for stream i mod n at event i and −2 for the
others, so that, as in Hyper-Connections, events read different streams: else all would stay equal for good.
S_post = 0, so C = 1. The streams then start as copies of the standard stream, and the untrained model is the standard
one up to the epsilon of its norms.
Also ours: no gain in RMSNorm(vec H), which W can hold; W decays, α and S do not (as for Hyper-Connections).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..depth_read import full_precision
from ..model import ConfigError, ModelConfig, Residual
from .hyper import inverse_rms, thin


def sinkhorn(logits: Tensor, rounds: int) -> Tensor:
    """exp(logits) [..., n, n] scaled towards doubly stochastic; rows are scaled last. In float32 or better."""
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    z = z.movedim((-2, -1), (0, 1)).contiguous()  # tokens last: sums over n neighbours would be six times as slow
    for _ in range(rounds):
        z = z.log_softmax(0).log_softmax(1)
    return z.exp().movedim((0, 1), (-2, -1)).contiguous()


class Remade(torch.autograd.Function):
    """`sinkhorn` that keeps its logits alone and does its rounds again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, rounds: int) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.rounds = rounds
        return sinkhorn(logits, rounds)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        with full_precision(g), torch.enable_grad():
            logits = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(sinkhorn(logits, ctx.rounds), logits, g)[0], None


@dataclass(frozen=True)
class MHCOptions:
    """`streams` n; `rounds` of Sinkhorn; `diagonal`: how far the diagonal of S_res starts above the rest."""

    streams: int = 4
    rounds: int = 20
    diagonal: float = 6.0

    def __post_init__(self) -> None:
        for name in ("streams", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not 0 <= self.diagonal <= 50:
            raise ConfigError(f"diagonal is {self.diagonal}; from 0 to 50 (above 8 the mixing hardly learns).")


class ManifoldHyperConnections(Residual):
    """n streams with doubly stochastic mixing. The state is H [B, T, n, d]; from a read to the next write, (H, z)."""

    Options = MHCOptions

    def __init__(self, config: ModelConfig, options: MHCOptions, generator: torch.Generator) -> None:
        super().__init__()
        n, events, self.eps = options.streams, config.events, config.norm_eps
        self.streams, self.rounds = n, options.rounds
        prefers = 4 * torch.eye(n)[torch.arange(events) % n] - 2
        mixing = (options.diagonal * torch.eye(n)).flatten().expand(events, n * n)
        self.static = nn.Parameter(torch.cat((prefers, torch.zeros(events, n), mixing), dim=1))  # S: pre, post, res
        self.dynamic_map = nn.Parameter(torch.zeros(events, n * config.width, 2 * n + n * n))
        self.alpha = nn.Parameter(torch.full((events, 3), 0.01))
        self.decayed = ("dynamic_map",)

    def logits(self, H: Tensor, event: int) -> Tensor:
        """z [B, T, 2n + n²]: pre, post, res."""
        flat, n = H.flatten(-2), self.streams
        dynamic = inverse_rms(flat, self.eps) * thin(flat, self.dynamic_map[event])
        alpha = torch.cat([a.expand(size) for a, size in zip(self.alpha[event], (n, n, n * n), strict=True)])
        return self.static[event] + alpha * dynamic

    def mixing(self, z: Tensor) -> Tensor:
        """A_res [B, T, n, n]."""
        n = self.streams
        return Remade.apply(z[..., 2 * n :].unflatten(-1, (n, n)), self.rounds)

    def begin(self, embedding: Tensor) -> Tensor:
        return embedding[..., None, :].expand(*embedding.shape[:-1], self.streams, -1)

    def read(self, state: Tensor, event: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        with full_precision(state):
            z = self.logits(state, event)
            pre = torch.sigmoid(z[..., : self.streams])
            return (pre[..., None] * state).sum(-2), (state, z)

    def write(self, state: tuple[Tensor, Tensor], event: int, output: Tensor) -> Tensor:
        (H, z), n = state, self.streams
        with full_precision(H):
            post = 2 * torch.sigmoid(z[..., n : 2 * n])
            mixed = self.mixing(z).to(H.dtype) @ H
            return torch.addcmul(mixed, post[..., None], output.to(H.dtype)[..., None, :])

    def readout(self, state: Tensor) -> Tensor:
        return state.sum(-2)
