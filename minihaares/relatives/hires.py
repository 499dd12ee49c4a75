"""HiRes, hierarchical residuals: a stream of D > d channels between groups of layers that stay d wide.

    X_0 = W_in e                                                     W_in [D, d]
    h   = R_j X_j                                                    R_j [d, D]: read
    y   = group_j(h)           g ordinary PreNorm layers; their own stream starts at h
    X_j+1 = RMSNorm_D(X_j + W_j y)                                   W_j [D, d]: write, then PostNorm
    the head sees RMSNorm_d(R_J X_J)                                 the model's final norm

Source: an article about the method ("Hierarchical Residuals", no arXiv id known to us) that names its parts: groups
of consecutive layers with unchanged PreNorm inside, a wider PostNorm stream between them, one learned dense
projection each way at every boundary, nothing but matrix products and norms. All that follows is ours.

    write     y as the article says ("output"), or only what the group changed, y − h ("delta")
    input     the wide stream starts from a learned map of the embedding ("linear"), or from the embedding and zeros
              ("pad"; the last D − d columns of R_0 then have nothing to read). A wide embedding table would not fit:
              the table is tied to the head and d wide, and `begin` sees vectors, not tokens; "linear" is a wide table
              of rank d
    start     W_in = [I; G], R_j = [I 0], W_j = [I; G_j], with fresh G of variance 1/d. So every group starts with
              the first d channels, and the others hold random views, as large as what they view, of the embedding
              and of each group's output. R_j learns to read them from the first step: its zero columns have
              gradients, and were both G and those columns zero, neither would ever move
    norms     one gain of D channels per group, starting at 1; X_0 has no norm
    decay     all maps decay, like the matrices of the backbone

At D = d the untrained model is a stream normed after each group, h <- RMSNorm(h + Δ) with write=delta and
h <- RMSNorm(2h + Δ) with write=output, Δ the sum of the group's outputs: "output" writes h once more, so what a group
adds counts half. At D > d it is so for the first d channels, up to one scale per token.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..depth_read import full_precision
from ..model import ConfigError, ModelConfig, Residual, RMSNorm, choose


@dataclass(frozen=True)
class HiResOptions:
    """`ratio` D/d, at least 1; `layers_per_group` g, a divisor of the layers; `write`: output or delta; `input`:
    linear or pad."""

    ratio: float = 2.0
    layers_per_group: int = 4
    write: str = "output"
    input: str = "linear"

    def __post_init__(self) -> None:
        choose("write", self.write, ("output", "delta"))
        choose("input", self.input, ("linear", "pad"))
        if not self.ratio >= 1:
            raise ConfigError(f"ratio is {self.ratio}; the outer stream needs a ratio of at least 1.")


class Nested(NamedTuple):
    """The outer stream X [B, T, D], the inner stream [B, T, d], and where that started its group, if a write asks."""

    outer: Tensor
    inner: Tensor
    start: Tensor | None


class HiRes(Residual):
    """Groups of PreNorm layers, d wide, between reads from and writes to one D-wide PostNorm stream."""

    Options = HiResOptions

    def __init__(self, config: ModelConfig, options: HiResOptions, generator: torch.Generator) -> None:
        super().__init__()
        d, g = config.width, options.layers_per_group
        if g < 1 or config.layers % g:
            fits = [n for n in range(1, config.layers + 1) if config.layers % n == 0]
            raise ConfigError(f"groups of {g} do not fill {config.layers} layers; choose layers_per_group of {fits}.")
        self.options, self.wide, groups = options, round(options.ratio * d), config.layers // g
        if self.wide != options.ratio * d:
            raise ConfigError(f"ratio {options.ratio} times width {d} is not whole; choose {self.wide / d} instead.")
        rest = self.wide - d

        def upward(*count: int) -> nn.Parameter:
            """Maps [I; G] from d to D channels, [*count, D, d]."""
            fresh = torch.empty(*count, rest, d).normal_(0, d**-0.5, generator=generator)
            return nn.Parameter(torch.cat((torch.eye(d).expand(*count, d, d), fresh), dim=-2))

        self.read_maps = nn.Parameter(F.pad(torch.eye(d), (0, rest)).repeat(groups + 1, 1, 1))  # the last one: readout
        self.write_maps = upward(groups)
        self.decayed = ("read_maps", "write_maps")
        if options.input == "linear":
            self.input_map = upward()
            self.decayed += ("input_map",)
        self.norms = nn.ModuleList(RMSNorm(self.wide, config.norm_eps) for _ in range(groups))

    def enter(self, outer: Tensor, group: int) -> Nested:
        """The state at the first event of a group, or, behind the last group, at the readout."""
        h = F.linear(outer, self.read_maps[group])
        return Nested(outer, h, h if self.options.write == "delta" else None)

    def begin(self, embedding: Tensor) -> Nested:
        with full_precision(embedding):
            if self.options.input == "pad":
                return self.enter(F.pad(embedding, (0, self.wide - embedding.shape[-1])), 0)
            return self.enter(F.linear(embedding, self.input_map), 0)

    def read(self, state: Nested, event: int) -> tuple[Tensor, Nested]:
        return state.inner, state

    def write(self, state: Nested, event: int, output: Tensor) -> Nested:
        h = state.inner + output
        group, place = divmod(event, 2 * self.options.layers_per_group)
        if place < 2 * self.options.layers_per_group - 1:
            return state._replace(inner=h)
        with full_precision(h):
            y = h if state.start is None else h - state.start
            outer = self.norms[group](state.outer + F.linear(y, self.write_maps[group]))
            return self.enter(outer, group + 1)

    def readout(self, state: Nested) -> Tensor:
        return state.inner
