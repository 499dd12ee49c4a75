"""Delta Attention Residuals (Luo et al., arXiv 2605.18855): the standard stream, plus a routed read of its changes.

    x = h + Σ_s w_s v_s,   w = softmax_s(q · RMSNorm(v_s)),   h <- h + u

The sources v are the embedding and the changes of the stream: every output u ("full"), or, in Delta Block, what each
finished block of events added, h_end − h_start. One query and key gain per event; the head sees h, without routing.
Unlike Attention Residuals the mixture is added to the stream and does not replace it.

Start: all queries 0, so the mixture is the plain mean of the sources. In full, S sources add up to h, so x is
(1 + 1/S) h, and the untrained model is the standard one up to the epsilon of its norms; in Delta Block it is not, as
the mean lacks the unfinished block. With `null` a source of zeros joins the softmax with score 0, which takes weight
off the others and brings Delta Block nearer to standard.
Ours: a block's change is kept as the sum of its outputs, which is h_end − h_start without subtracting two large
vectors; the unfinished block is not a source of its own (h holds it); the null source stays zero (the released code
trains it); nothing here decays.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import depth_read
from ..model import ModelConfig, Residual, choose
from .hyper import inverse_rms


@dataclass(frozen=True)
class DeltaOptions:
    """`blocks` as for attnres: a number, "full" (one event each), or the list of lengths; `null`: a zero source."""

    blocks: int | str | tuple[int, ...] = "full"
    null: bool = False

    def __post_init__(self) -> None:
        choose("null", self.null, (False, True))
        if isinstance(self.blocks, str):
            choose("blocks", self.blocks, ("full",))
        elif not isinstance(self.blocks, int):
            object.__setattr__(self, "blocks", tuple(self.blocks))


class Changes(NamedTuple):
    """The stream h [B, T, d], the finished sources with 1 / RMS [B, T] of each, and the change of the unfinished block
    (None while empty)."""

    stream: Tensor
    sources: tuple[Tensor, ...]
    scales: tuple[Tensor, ...]
    change: Tensor | None


class Delta(Residual):
    """Reads h plus a softmax mixture of the embedding and the changes so far."""

    Options = DeltaOptions

    def __init__(self, config: ModelConfig, options: DeltaOptions, generator: torch.Generator) -> None:
        super().__init__()
        self.places = depth_read.places(config.events, options.blocks, "none")
        self.null, self.eps = options.null, config.norm_eps
        self.query = nn.Parameter(torch.zeros(config.events, config.width))
        self.key_gain = nn.Parameter(torch.ones(config.events, config.width))

    def begin(self, embedding: Tensor) -> Changes:
        return Changes(embedding, (embedding,), (inverse_rms(embedding, self.eps)[..., 0],), None)

    def weights(self, state: Changes, event: int) -> Tensor:
        """The softmax weights [S, B, T] of the sources; with a null source they sum to less than 1."""
        key = self.query[event] * self.key_gain[event]
        z = torch.stack([rho * (v @ key) for v, rho in zip(state.sources, state.scales, strict=True)])
        if self.null:
            z = torch.cat((z, torch.zeros_like(z[:1])))
        return torch.softmax(z, dim=0)[: len(state.sources)]

    def read(self, state: Changes, event: int) -> tuple[Tensor, Changes]:
        with depth_read.full_precision(state.stream):  # scores and sums stay float32
            x = state.stream + depth_read.mix(self.weights(state, event), state.sources)
        return x, state

    def write(self, state: Changes, event: int, output: Tensor) -> Changes:
        u = output.to(self.query.dtype)
        change = depth_read.add(state.change, u)
        if not self.places[event].last:
            return state._replace(stream=state.stream + u, change=change)
        scales = (*state.scales, inverse_rms(change, self.eps)[..., 0])
        return Changes(state.stream + u, (*state.sources, change), scales, None)

    def readout(self, state: Changes) -> Tensor:
        return state.stream
