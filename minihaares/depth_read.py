"""Depth as a place to read from: blocks of events, and the routed read over their sources.

A depth router stores sources v_s [B, T, d] and gives a sublayer the mixture Σ_s w_s v_s, with weights
w = softmax_s(q · RMSNorm(v_s) + bias). Everything here works per token: nothing runs over time unless asked to.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class ConfigError(ValueError):
    """A setting that cannot work; the message says which and what to do."""


def choose(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raise ConfigError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(map(str, allowed))}.")


def partition(events: int, blocks: int | str | tuple[int, ...]) -> list[int]:
    """Lengths of the contiguous blocks that cut `events` sublayers; raises ConfigError if they do not fit."""
    if blocks == "full":
        return [1] * events
    if isinstance(blocks, bool):
        raise ConfigError(f"blocks is {blocks}; give a number, full, or the block lengths.")
    if isinstance(blocks, int):
        if 1 <= blocks <= events and events % blocks == 0:
            return [events // blocks] * blocks
        if not 1 <= blocks <= events:
            raise ConfigError(f"{events} events cannot be cut into {blocks} blocks; choose 1 to {events}.")
        even = [events // blocks + (i < events % blocks) for i in range(blocks)]
        divisors = [n for n in range(1, events + 1) if events % n == 0]
        raise ConfigError(
            f"{events} events do not cut into {blocks} equal blocks; choose one of {divisors}, "
            f"or give the block lengths, for example {even}."
        )
    if sum(blocks) != events or min(blocks, default=0) < 1:
        raise ConfigError(f"block lengths {list(blocks)} must be positive and add up to {events} events.")
    return list(blocks)


class Place(NamedTuple):
    """Where an event stands: its block n, its place r in it (from 0), the block's length m, its detail sign."""

    block: int
    offset: int
    length: int
    sign: int

    @property
    def last(self) -> bool:
        return self.offset == self.length - 1


def places(events: int, blocks: int | str | tuple[int, ...], detail: str, sign_seed: int = 0) -> list[Place]:
    """The `Place` of every event; an odd block gives its extra event to the early half."""
    coin = torch.Generator().manual_seed(sign_seed)
    found: list[Place] = []
    for block, length in enumerate(partition(events, blocks)):
        for offset in range(length):
            heads = int(torch.randint(2, (), generator=coin, device="cpu"))
            sign = {
                "half": 1 if offset < (length + 1) // 2 else -1,
                "phase": 1 if len(found) % 2 == 0 else -1,
                "random_sign": 1 if heads else -1,
            }.get(detail, 1)
            found.append(Place(block, offset, length, sign))
    return found


def full_precision(x: Tensor) -> AbstractContextManager:
    """A stretch without autocast on the device of x."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def rms(x: Tensor, axes: str) -> Tensor:
    """Root mean square of x [B, T, d] over "token" (d), "time" (T, d) or "batch" (B, T, d), kept as size-1 axes."""
    return x.square().mean({"token": -1, "time": (-2, -1), "batch": (0, 1, 2)}[axes], keepdim=True).sqrt()


def matched(C: Tensor, D: Tensor, gamma: float, eps: float, axes: str = "token") -> Tensor:
    """D̂ = a D with a = clip(RMS(C) / (RMS(D) + ε), 1/γ, γ), and no gradient through a (paper eq. 6)."""
    with torch.no_grad():
        a = (rms(C, axes) / (rms(D, axes) + eps)).clamp(1 / gamma, gamma)
    return a * D


def depth_scores(sources: Iterable[Tensor], query: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    """q · RMSNorm(v) for each source v [B, T, d], stacked to [S, B, T] (paper eq. 7, before the bias)."""
    key = query if gain is None else gain * query
    return torch.stack([(v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)) @ key for v in sources])


def mix(weights: Tensor, sources: Iterable[Tensor]) -> Tensor:
    """Σ_s w_s v_s (paper eq. 8), added in order so that a weight of zero changes not one bit."""
    total: Tensor | None = None
    for w, v in zip(weights, sources, strict=True):
        total = w[..., None] * v if total is None else total + w[..., None] * v
    return total


# ------------------------------------------------------------------------------------------ the lean read
#
# The same mixture for less (equations §4; the two phases are Algorithm 1 of Attention Residuals, arXiv 2603.15031):
#   1. Finished sources no longer change, so all reads of a block score and mix them in one go (`CompletedReads`).
#   2. The active block is kept as half totals, P of its events with sign +1 and M of those with −1, so that an event
#      writes one of them; C = P + M and D = P − M exist only while their norms are taken (`ActiveRead`).
#   3. The two parts join by an online softmax, which is exact.
# The backward passes are written out: they keep references to tensors that exist anyway and a few scalars per token.
# Chapter 12 derives them.


class ReadSettings(NamedTuple):
    """What an active read needs to know besides tensors: is there a detail slot, and how is it matched."""

    paired: bool
    match: bool
    gamma: float
    eps: float
    key_eps: float


def mean_square(x: Tensor) -> Tensor:
    """Mean of x² over the last axis, without a temporary of the size of x."""
    return torch.linalg.vector_norm(x, dim=-1).square_().div_(x.shape[-1])


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner products over the last axis."""
    return (x * y).sum(-1)


class CompletedReads(torch.autograd.Function):
    """All R reads of a block over its S finished sources [..., d].

    keys [R, d] are query ⊙ gain; bias [R] (or None) is added to the scores of details, which stand at places 2, 4, …
    Gives the softmax mixtures [..., R, d], the log-sum-exp of their scores [..., R], and the weights [n, S, R] over n
    tokens, through which no gradient flows.
    """

    @staticmethod
    def forward(ctx: Any, eps: float, keys: Tensor, bias: Tensor | None, *sources: Tensor) -> tuple[Tensor, ...]:
        V = torch.stack(sources, dim=-2).flatten(0, -3)  # [n, S, d]; gone when this call returns
        rho = torch.rsqrt(mean_square(V) + eps)[..., None]
        z = (V @ keys.T).mul_(rho)
        if bias is not None:
            z[:, 2::2] += bias
        lse = torch.logsumexp(z, dim=1)
        w = z.sub_(lse[:, None]).exp_()
        ctx.save_for_backward(keys, w, rho, *sources)
        ctx.biased = bias is not None
        ctx.mark_non_differentiable(w)
        ctx.set_materialize_grads(False)
        shape = sources[0].shape[:-1]
        return (w.mT @ V).unflatten(0, shape), lse.unflatten(0, shape), w

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, g_lse: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        keys, w, rho, *sources = ctx.saved_tensors
        with full_precision(g):
            V = torch.stack(sources, dim=-2).flatten(0, -3)
            g = g.flatten(0, -3)
            gw = V @ g.mT
            dz = gw.sub_((w * gw).sum(1, keepdim=True))
            if g_lse is not None:  # a block of one event has no active read that would use it
                dz.add_(g_lse.flatten(0, -2)[:, None])
            dz.mul_(w)
            d_bias = dz[:, 2::2].sum((0, 1)) if ctx.biased else None
            pull = (dz * (V @ keys.T)).sum(-1, keepdim=True).mul_(rho.pow(3)).div_(-V.shape[-1])
            dz.mul_(rho)
            d_keys = dz.flatten(0, 1).T @ V.flatten(0, 1)
            dV = torch.bmm(w, g).add_(dz @ keys).addcmul_(V, pull)
        return None, d_keys, d_bias, *dV.unflatten(0, sources[0].shape[:-1]).unbind(-2)


class ActiveRead(torch.autograd.Function):
    """One read: a finished mixture o [..., d] with its log-sum-exp [...], joined by the active block's (C, D̂) or C.

    P, M [..., d] are the block's half totals, one of them None while empty; key [d] is query ⊙ gain; bias, the
    detail's offset, is a 0-d tensor or None. Gives the mixture h [..., d].

    The backward pass needs h, and so does that of the norm behind it. It is saved once for both; or, if `parts` gives
    the weights [..., S] and the S sources that o was mixed from, not at all: both then ask `unpacked` for it.
    """

    @staticmethod
    def forward(
        ctx: Any, settings: ReadSettings, key: Tensor, bias: Tensor | None, o: Tensor, lse: Tensor,
        P: Tensor | None, M: Tensor | None, *parts: Tensor,
    ) -> Tensor:  # fmt: skip
        C, D, sign = _raw_pair(P, M)
        ms_C, q_C = mean_square(C), C @ key
        # What is small is measured on the small vector itself: P·key − M·key would drown in rounding where P ≈ M.
        ms_D, q_D = (ms_C, sign * q_C) if D is None else (mean_square(D), D @ key)
        rho_C = torch.rsqrt(ms_C + settings.key_eps)
        scores, a, rho_D = [lse, rho_C * q_C], None, None
        if settings.paired:
            a = torch.ones_like(ms_C)
            if settings.match:
                a = (ms_C.sqrt() / (ms_D.sqrt() + settings.eps)).clamp_(1 / settings.gamma, settings.gamma)
            rho_D = a * torch.rsqrt(a * a * ms_D + settings.key_eps)  # of the raw D: RMSNorm(aD) = rho_D D
            scores.append(torch.addcmul(bias, rho_D, q_D))
        w = torch.softmax(torch.stack(scores, dim=-1), dim=-1)
        h = _join(o, P, M, w, a)
        ctx.rebuilds = bool(parts)
        ctx.save_for_backward(key, None if parts else h, P, M, w, a, rho_C, rho_D, q_C, q_D, *parts)
        return h

    @staticmethod
    def unpacked(ctx: Any) -> tuple[Tensor | None, ...]:
        """What was saved, with the mixture h made again from its sources if it was not.

        The norm asks first and leaves what it got on the node: checkpointing lets nothing be unpacked twice.
        """
        if "kept" in vars(ctx):
            return vars(ctx).pop("kept")
        key, h, *saved = ctx.saved_tensors
        if h is None:
            P, M, w, a, *_ = saved
            weights, *sources = saved[8:]
            h = _join(mix(weights.unbind(-1), sources), P, M, w, a)
        return key, h, *saved

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        key, h, P, M, w, a, rho_C, rho_D, q_C, q_D, *parts = ActiveRead.unpacked(ctx)
        with full_precision(g):
            C, D, sign = _raw_pair(P, M)
            g_h, g_C = dot(g, h), dot(g, C)
            dz_C = w[..., 1] * (g_C - g_h)
            s_C = dz_C * rho_C
            t_C = s_C * q_C * rho_C.square() / -g.shape[-1]
            c_C, d_lse, d_bias = w[..., 1], -dz_C, None
            if a is not None:
                dz_D = w[..., 2] * (a * (sign * g_C if D is None else dot(g, D)) - g_h)
                s_D = dz_D * rho_D
                t_D = s_D * q_D * rho_D.square() / -g.shape[-1]
                c_D, d_lse, d_bias = a * w[..., 2], d_lse - dz_D, dz_D.sum()
            if D is None:  # one half alone: C is it, and D is ± it
                if a is not None:
                    c_C, s_C, t_C = c_C + sign * c_D, s_C + sign * s_D, t_C + t_D
                d_C = _pull(g, key, C, c_C, s_C, t_C)
                halves = (d_C, None) if M is None else (None, d_C)
            else:
                d_C = _pull(g, key, C, c_C, s_C, t_C)
                d_D = _pull(g, key, D, c_D, s_D, t_D) if a is not None else 0.0
                halves = (d_C + d_D, d_C - d_D)
            d_key = C.flatten(0, -2).T @ s_C.flatten()
            if D is not None and a is not None:
                d_key.addmv_(D.flatten(0, -2).T, s_D.flatten())
        return None, d_key, d_bias, g * w[..., :1], d_lse, *halves, *(None for _ in parts)


def _raw_pair(P: Tensor | None, M: Tensor | None) -> tuple[Tensor, Tensor | None, int]:
    """C and D of an active block; while one half is empty D is None, and C times the sign that is given as well."""
    if M is None:
        return P, None, 1
    return (M, None, -1) if P is None else (P + M, P - M, 0)


def _pull(g: Tensor, key: Tensor, x: Tensor, c: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """The gradient c g + s key + t x of one source x [..., d], with scalars c, s, t [...] per token."""
    return (g * c[..., None]).addcmul_(s[..., None], key).addcmul_(x, t[..., None])


def _join(o: Tensor, P: Tensor | None, M: Tensor | None, w: Tensor, a: Tensor | None) -> Tensor:
    """The mixture of o and the half totals with weights w [..., 2 or 3] of (o, C, D̂)."""
    h = o * w[..., :1]
    for half, c in zip((P, M), _half_weights(w, a), strict=True):
        if half is not None:
            h.addcmul_(half, c[..., None])
    return h


def _half_weights(w: Tensor, a: Tensor | None) -> tuple[Tensor, Tensor]:
    """What the two half totals weigh in a read: w_C + a w_D and w_C − a w_D."""
    if a is None:
        return w[..., 1], w[..., 1]
    late = a * w[..., 2]
    return w[..., 1] + late, w[..., 1] - late


def add(total: Tensor | None, u: Tensor) -> Tensor:
    """A running sum that is None while empty. Out of place: a past read may hold the old total."""
    return u if total is None else total + u


def totals(P: Tensor | None, M: Tensor | None) -> tuple[Tensor, Tensor]:
    """The raw pair (C, D) = (P + M, P − M) of a block's half totals."""
    if M is None:
        return P, P
    return (M, -M) if P is None else (P + M, P - M)


class Finished(NamedTuple):
    """What a read takes from its finished sources: their mixture o [..., d], log-sum-exp [...], weights [..., S]."""

    mixture: Tensor
    lse: Tensor
    weights: Tensor


def completed_reads(
    sources: tuple[Tensor, ...], keys: Tensor, bias: Tensor | None, eps: float
) -> tuple[Finished, ...]:
    """`CompletedReads`, read by read; a lone source is its own mixture."""
    if len(sources) > 1:
        mixtures, lse, w = CompletedReads.apply(eps, keys, bias, *sources)
        w = w.unflatten(0, lse.shape[:-1])
        return tuple(map(Finished, mixtures.unbind(-2), lse.unbind(-1), w.unbind(-1)))
    (only,) = sources
    lse = (only * torch.rsqrt(only.square().mean(-1, keepdim=True) + eps)) @ keys.T
    one = lse.new_ones(()).expand(*lse.shape[:-1], 1)
    return tuple(Finished(only, z, one) for z in lse.unbind(-1))


class RMSNormFunction(torch.autograd.Function):
    """x / RMS(x) ⊙ gain over the last axis, keeping one scalar per token and x, unless `read` (the node of an
    `ActiveRead` that made x) can rebuild it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float, read: Any) -> Tensor:
        rho = torch.rsqrt(mean_square(x) + eps)[..., None]
        ctx.read = read
        ctx.save_for_backward(x if read is None else None, gain, rho)
        return (x * rho).mul_(gain)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, gain, rho = ctx.saved_tensors
        if x is None:
            ctx.read.kept = ActiveRead.unpacked(ctx.read)
            x = ctx.read.kept[1]
        unit = x * rho
        d_gain = (g * unit).flatten(0, -2).sum(0)
        d_unit = g * gain
        pull = dot(d_unit, unit)[..., None].div_(-x.shape[-1])
        return d_unit.addcmul_(unit, pull).mul_(rho), d_gain, None, None


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / RMS(x) ⊙ gain over the last axis (arXiv 1910.07467); x [..., d], gain [d]."""
    node = None if torch.compiler.is_compiling() else x.grad_fn
    return RMSNormFunction.apply(x, gain, eps, node if getattr(node, "rebuilds", False) else None)
