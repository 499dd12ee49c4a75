"""DenseFormer (Pagliardini et al., arXiv 2402.02622): behind layers, a learned average over all earlier layers.

    X_0 = e,  X_i = layer_i(Y_i−1),  Y_0 = e
    Y_i = Σ_j α_ij X_j,  over j = 0 … i with j ≡ i mod `dilation`,  if `period` divides i;  otherwise Y_i = X_i

X_i is the raw output of layer i, its own residual sum included; inside a layer the standard stream runs, from Y_i−1.
The α are plain numbers, the same for all tokens and channels; the head sees Y_L, through the model's final norm.

Start: α_ii = 1 and all others 0, so that the untrained model is the standard one, to the bit.
Ours: no weight decay on α. If `period` does not divide the number of layers, nothing is averaged behind the last one
(so do the authors).
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..depth_read import mix
from ..model import ConfigError, ModelConfig, Residual


@dataclass(frozen=True)
class DenseFormerOptions:
    """`dilation`: of the layers, counting back from the newest, every which one to average; `period`: behind every
    which layer to do it."""

    dilation: int = 1
    period: int = 1

    def __post_init__(self) -> None:
        for name in ("dilation", "period"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")


class Layers(NamedTuple):
    """The stream [B, T, d] inside the current layer, and X_0 … X_l of the layers before it."""

    stream: Tensor
    outputs: tuple[Tensor, ...]


class DenseFormer(Residual):
    """Depth-weighted averages with static weights, behind every `period`-th layer."""

    Options = DenseFormerOptions

    def __init__(self, config: ModelConfig, options: DenseFormerOptions, generator: torch.Generator) -> None:
        super().__init__()
        self.dilation, self.period = options.dilation, options.period
        starts = [torch.zeros(i // self.dilation + 1) for i in range(self.period, config.layers + 1, self.period)]
        for start in starts:
            start[-1] = 1
        self.alpha = nn.ParameterList(starts)

    def begin(self, embedding: Tensor) -> Layers:
        return Layers(embedding, (embedding,))

    def read(self, state: Layers, event: int) -> tuple[Tensor, Layers]:
        return state.stream, state

    def write(self, state: Layers, event: int, output: Tensor) -> Layers:
        h, i = state.stream + output, event // 2 + 1
        if event % 2 == 0:  # attention: layer i goes on
            return state._replace(stream=h)
        outputs = (*state.outputs, h)
        if i % self.period == 0:
            h = mix(self.alpha[i // self.period - 1], outputs[i % self.dilation :: self.dilation])
        return Layers(h, outputs)

    def readout(self, state: Layers) -> Tensor:
        return state.stream
