"""The classic variants of one running sum: PostNorm, DeepNorm, ReZero, LayerScale.

    PostNorm    h <- Norm(h + f(h))               Vaswani et al. 2017; Xiong et al., arXiv 2002.04745
    DeepNorm    h <- Norm(α h + f(h))             Wang et al., arXiv 2203.00555, its constants for decoders
    ReZero      h <- h + g u, scalar g = 0        Bachlechner et al., arXiv 2003.04887
    LayerScale  h <- h + λ ⊙ u, per channel       Touvron et al., arXiv 2103.17239, start by depth as in the paper

u = f(Norm(h)) is a PreNorm sublayer's output. Under PostNorm and DeepNorm sublayers do not normalise their input,
the stream itself is normalised after every event, and the model's final norm stays (ours: a norm of a normed
stream). At the start ReZero is the identity map and LayerScale nearly so.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..model import Attention, ModelConfig, Residual, RMSNorm, choose


@dataclass(frozen=True)
class StreamOptions:
    """One stream. `norm`: pre `h + g·u`, post `Norm(h + u)`, deep `Norm(αh + u)`; `gate` g: none, scalar, channel."""

    norm: str = "pre"
    gate: str = "none"
    gate_init: float | None = None  # None: 0 for a scalar (ReZero); 0.1, 1e-5, 1e-6 by depth for channels (LayerScale)

    def __post_init__(self) -> None:
        choose("norm", self.norm, ("pre", "post", "deep"))
        choose("gate", self.gate, ("none", "scalar", "channel"))


class Stream(Residual):
    """The residual stream as one running sum, and its classic variants.

    PreNorm and PostNorm (2002.04745), DeepNorm (2203.00555, decoder constants), ReZero (2003.04887), LayerScale
    (2103.17239). The state is the stream h [B, T, d].
    """

    Options = StreamOptions

    def __init__(self, config: ModelConfig, options: StreamOptions, generator: torch.Generator) -> None:
        super().__init__()
        self.options, events, d = options, config.events, config.width
        self.prenorm = options.norm == "pre"
        if not self.prenorm:
            self.norms = nn.ModuleList(RMSNorm(d, config.norm_eps) for _ in range(events))
        self.alpha, self.beta = 1.0, 1.0
        if options.norm == "deep":
            self.alpha, self.beta = (2 * config.layers) ** 0.25, (8 * config.layers) ** -0.25
        if options.gate != "none":
            start = options.gate_init
            if start is None:
                by_depth = 0.1 if config.layers <= 18 else 1e-5 if config.layers <= 24 else 1e-6
                start = by_depth if options.gate == "channel" else 0.0
            self.gates = nn.Parameter(torch.full((events, d if options.gate == "channel" else 1), start))

    def begin(self, embedding: Tensor) -> Tensor:
        return embedding

    def read(self, state: Tensor, event: int) -> tuple[Tensor, Tensor]:
        return state, state

    def write(self, state: Tensor, event: int, output: Tensor) -> Tensor:
        if self.options.gate != "none":
            output = self.gates[event] * output
        if self.prenorm:
            return state + output
        return self.norms[event](self.alpha * state + output)

    def readout(self, state: Tensor) -> Tensor:
        return state

    def prepare(self, sublayers: nn.ModuleList) -> None:
        if self.options.norm != "deep":
            return
        with torch.no_grad():  # DeepNet scales what writes to the stream: MLPs, attention's values and output
            for sublayer in sublayers:
                if isinstance(sublayer, Attention):
                    sublayer.qkv.weight.chunk(3)[2].mul_(self.beta)
                    sublayer.out.weight.mul_(self.beta)
                else:
                    sublayer.gate_up.weight.mul_(self.beta)
                    sublayer.down.weight.mul_(self.beta)
