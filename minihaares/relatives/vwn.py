"""VWN, virtual width networks (arXiv 2511.11238): a stream of n slots, of which an event reads and writes m at a time.

The d channels of the backbone are m segments of d/m; the stream has D' = (n/m) d channels, n slots of the same width.

    x = A°^T H,   H <- B^T u + Â^T H        H [n, d/m]; x, u as [m, d/m]; A° [n, m], Â [n, n], B [m, n], per event
    [A° | Â | B^T] = static + S ∘ tanh(norm(H) W / τ),      W [d/m, 2m + n], S like the static part, τ = √(d/m)
    readout = Linear(GroupNorm(H)), D' -> d, groups of d; then the model's final norm and head

Start, as published: W = 0, S = 1; A° reads the first m slots, the carry Â is the identity, B[i, j] = 1 where i ≡ j
(mod m). Static parts have no weight decay and W has. Where d does not divide D' there is no GroupNorm (the paper
leaves it out at 1.5×).
Ours: `input`: the stream starts from a learned map of the embedding, initially the segments over and over ("linear"),
or from just that repetition ("repeat"); the paper's wide embedding table does not fit behind the seam, where the
table is tied to the head and d wide. The Linear starts as the mean of a segment's copies. So all events of the
untrained model read what they do in the standard one, to the bit, and the head sees that stream, normed. RMSNorm(H)
has no gain, which W can hold. S has no decay; the two linear maps have, like the matrices of the backbone.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..depth_read import full_precision
from ..model import ConfigError, ModelConfig, Residual, choose
from .hyper import mix_streams, tanh_part


@dataclass(frozen=True)
class VWNOptions:
    """`m` segments of the backbone, a divisor of its width; `n` slots, at least m; `input`: linear or repeat."""

    m: int = 2
    n: int = 4
    input: str = "linear"

    def __post_init__(self) -> None:
        choose("input", self.input, ("linear", "repeat"))
        if not 1 <= self.m <= self.n:
            raise ConfigError(f"m is {self.m} and n is {self.n}; they must be 1 <= m <= n.")


class VirtualWidth(Residual):
    """A stream of n slots, read and written through small matrices.

    The state is H [B, T, n, d/m]; from a read to the write after it, (H, the event's weights).
    """

    Options = VWNOptions

    def __init__(self, config: ModelConfig, options: VWNOptions, generator: torch.Generator) -> None:
        super().__init__()
        (m, n), d, events = (options.m, options.n), config.width, config.events
        if d % m:
            fits = [k for k in range(1, d + 1) if d % k == 0]
            raise ConfigError(f"width {d} does not split into {m} segments; choose m of {fits}.")
        self.m, self.n, self.eps, slot = m, n, config.norm_eps, d // m
        copies = torch.eye(m).repeat(math.ceil(n / m), 1)[:n]  # [n, m]: slot j is a copy of segment j mod m
        start = torch.cat((torch.eye(n, m), torch.eye(n), copies), dim=1)  # A°, Â, B^T
        self.static = nn.Parameter(start.repeat(events, 1, 1))
        self.scale = nn.Parameter(torch.ones(events, n, 2 * m + n))
        self.dynamic_map = nn.Parameter(torch.zeros(events, slot, 2 * m + n))
        widen = torch.kron(copies, torch.eye(slot))  # [D', d]
        self.norm = nn.GroupNorm(n // m, n * slot, config.norm_eps) if n % m == 0 else nn.Identity()
        self.reduce_map = nn.Parameter((widen / widen.sum(0)).T.contiguous())  # [d, D']
        self.decayed = ("dynamic_map", "reduce_map")
        self.input_map = None
        if options.input == "linear":
            self.input_map = nn.Parameter(widen)
            self.decayed += ("input_map",)

    def weights(self, H: Tensor, event: int) -> Tensor:
        """[A° | Â | B^T] for each token, [B, T, n, 2m + n]."""
        dynamic = tanh_part(H, self.dynamic_map[event] / math.sqrt(H.shape[-1]), self.eps)
        return torch.addcmul(self.static[event], self.scale[event], dynamic)

    def begin(self, embedding: Tensor) -> Tensor:
        with full_precision(embedding):
            if self.input_map is not None:
                return F.linear(embedding, self.input_map).unflatten(-1, (self.n, -1))
            segments = embedding.unflatten(-1, (self.m, -1))
            return segments[..., [slot % self.m for slot in range(self.n)], :]

    def read(self, state: Tensor, event: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        with full_precision(state):
            w = self.weights(state, event)
            return mix_streams(w[..., : self.m], state).flatten(-2), (state, w)

    def write(self, state: tuple[Tensor, Tensor], event: int, output: Tensor) -> Tensor:
        H, w = state
        with full_precision(H):
            segments = output.to(H.dtype).unflatten(-1, (self.m, -1))
            carried = mix_streams(w[..., self.m : -self.m], H)
            return carried + w[..., -self.m :] @ segments

    def readout(self, state: Tensor) -> Tensor:
        with full_precision(state):
            flat = state.flatten(-2)
            normed = self.norm(flat.flatten(0, -2)).view_as(flat)
            return F.linear(normed, self.reduce_map)
