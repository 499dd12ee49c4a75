"""One file, one Transformer, one seam: a decoder-only model whose residual stream is a part you can swap.

The backbone is that of the HAARES paper (arXiv 2606.06564, section 5.2): PreNorm, affine RMSNorm, rotary
positions, SwiGLU, scaled dot-product attention, tied embeddings. Everything that lives along *depth* belongs to
a `Residual`, which answers four questions (verbs): how the stream begins, what a sublayer reads, what becomes
of what it wrote, and what the head sees. The schemes here are

    standard                      the running sum, `Standard`
    attnres (full), block, haares and all its ablations: stored sources, read by softmax over depth, `DepthRouter`

and `minihaares.relatives` adds others behind the same seam.

Shapes: B sequences, T tokens, d channels. "Event" counts sublayers: 0 attention, 1 MLP, 2 attention, ...
This file needs torch and `depth_read.py`, nothing else: copy the two.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from . import depth_read
from .depth_read import ConfigError, choose

FAMILIES: dict[str, dict[str, int]] = {
    "pocket": dict(width=32, heads=2, ff=128),  # ours: for laptops
    "small": dict(width=128, heads=8, ff=1024),  # the paper's three (its Table 5)
    "medium": dict(width=512, heads=8, ff=2048),
    "large": dict(width=768, heads=8, ff=3072),
}


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the backbone, and the residual scheme with its options (see `StreamOptions`, `RouterOptions`)."""

    vocab_size: int = 256
    layers: int = 12
    width: int = 128
    heads: int = 8
    ff: int = 1024
    max_context: int = 2048
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6
    mlp_bias: bool = False  # the paper's parameter counts come out exactly without
    scheme: str = "standard"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "layers", "width", "heads", "ff", "max_context"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        good = [h for h in range(1, self.width + 1) if self.width % (2 * h) == 0]  # rotary positions pair channels up
        if self.heads not in good:
            split = f"{self.heads} heads do not divide width {self.width} into an even head size"
            raise ConfigError(f"{split}; heads can be one of {good}." if good else f"{split}; choose an even width.")

    @property
    def events(self) -> int:
        """Number of sublayers, 2L."""
        return 2 * self.layers


# ---------------------------------------------------------------------------------------------- backbone


class RMSNorm(nn.Module):
    """x / RMS(x) times a learned gain, over the last axis, in the gain's dtype (arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return depth_read.rms_norm(x.to(self.gain.dtype), self.gain, self.eps)


def rotary_table(start: int, length: int, config: ModelConfig, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, h/2] of the angles position · base^(-2i/h), exact to the dtype of `like`."""
    half = config.width // config.heads // 2
    rate = config.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(start, start + length, dtype=torch.float64)[:, None] * rate
    return angle.cos().to(like), angle.sin().to(like)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions (arXiv 2104.09864): turn the channel pairs (i, i + h/2) of x [B, heads, T, h]."""
    cos, sin = (t.to(x.dtype) for t in table)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class KVCache:
    """Keys and values of past tokens, one pair of [B, heads, capacity, h] tensors per attention event."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length, self.store = capacity, 0, {}

    def append(self, event: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v [B, heads, T, h] behind the `length` tokens already held; return all of them."""
        end = self.length + k.shape[-2]
        if end > self.capacity:
            raise ConfigError(f"the cache holds {self.capacity} tokens and {end} were asked for; make it larger.")
        if event not in self.store:
            room = (*k.shape[:2], self.capacity, k.shape[-1])
            self.store[event] = k.new_zeros(room), v.new_zeros(room)
        for held, new in zip(self.store[event], (k, v), strict=True):
            held[:, :, self.length : end] = new
        keys, values = self.store[event]
        return keys[:, :, :end], values[:, :, :end]


class Attention(nn.Module):
    """Causal self-attention on its own normalised input; no biases. x [B, T, d] -> [B, T, d].

    x may also be a triple: separate inputs for queries, keys and values (MUDDFormer reads that way).
    """

    def __init__(self, config: ModelConfig, prenorm: bool) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm = RMSNorm(config.width, config.norm_eps) if prenorm else nn.Identity()
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Any, rope: tuple[Tensor, Tensor], cache: KVCache | None = None, event: int = 0) -> Tensor:
        if isinstance(x, tuple):
            parts = zip(x, self.qkv.weight.chunk(3), strict=True)
            q, k, v = (F.linear(self.norm(part), weight) for part, weight in parts)
        else:
            q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        past = cache.length if cache is not None else 0
        q, k = rotate(q, rope), rotate(k, rope)
        if cache is not None:
            k, v = cache.append(event, k, v)
        T, S = q.shape[-2], k.shape[-2]
        mask = None if past == 0 or T == 1 else torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=past == 0 and T > 1)
        return self.out(y.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """SwiGLU (arXiv 2002.05202) on its own normalised input: down(silu(gate x) · up x). x [B, T, d] -> [B, T, d]."""

    def __init__(self, config: ModelConfig, prenorm: bool) -> None:
        super().__init__()
        self.norm = RMSNorm(config.width, config.norm_eps) if prenorm else nn.Identity()
        self.gate_up = nn.Linear(config.width, 2 * config.ff, bias=config.mlp_bias)
        self.down = nn.Linear(config.ff, config.width, bias=config.mlp_bias)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: KVCache | None = None, event: int = 0) -> Tensor:
        gate, up = self.gate_up(self.norm(x)).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


# ---------------------------------------------------------------------------------------------- the seam


class Residual(nn.Module):
    """Everything that lives along depth. A state is an immutable value; nothing is stored on `self`."""

    prenorm = True  # whether sublayers normalise their own input

    @abstractmethod
    def begin(self, embedding: Tensor) -> Any:
        """The state before the first event. embedding [B, T, d]."""

    @abstractmethod
    def read(self, state: Any, event: int) -> tuple[Any, Any]:
        """What sublayer `event` sees, [B, T, d], and the state after the read."""

    @abstractmethod
    def write(self, state: Any, event: int, output: Tensor) -> Any:
        """The state after sublayer `event` made `output` [B, T, d]."""

    @abstractmethod
    def readout(self, state: Any) -> Tensor:
        """What the final norm and the head see, [B, T, d]."""

    def prepare(self, sublayers: nn.ModuleList) -> None:
        """Rescale freshly drawn backbone weights, where a scheme asks for it (DeepNorm does)."""


@dataclass(frozen=True)
class StandardOptions:
    """The standard stream has no options."""


class Standard(Residual):
    """The PreNorm residual stream h <- h + u: a running sum of the embedding and all outputs. State: h [B, T, d]."""

    Options = StandardOptions

    def __init__(self, config: ModelConfig, options: StandardOptions, generator: torch.Generator) -> None:
        super().__init__()

    def begin(self, embedding: Tensor) -> Tensor:
        return embedding

    def read(self, state: Tensor, event: int) -> tuple[Tensor, Tensor]:
        return state, state

    def write(self, state: Tensor, event: int, output: Tensor) -> Tensor:
        return state + output

    def readout(self, state: Tensor) -> Tensor:
        return state


# ------------------------------------------------------------------------------------- routing over depth


@dataclass(frozen=True)
class RouterOptions:
    """Block and full Attention Residuals, HAARES, and every ablation of the paper.

    blocks       number of equal blocks, "full" (one event each), or the list of block lengths
    detail       a block's second source: none, half (HAARES), duplicate (of C), random_sign, phase (attention − MLP)
    match        rms: scale the detail to the cumulative source (eq. 6), or none
    gamma, eps   clip of that scale, and what keeps it finite
    rms_axes     what RMS(C), RMS(D) run over: token (d); time (T, d) and batch (B, T, d) leak the future
    bias         of detail slots: learned, fixed, or masked (−∞: no detail slots at all)
    bias_init    where it starts, or stays
    key_gain     whether the key norm has a learned gain
    readout_details   whether the final read sees details too
    sign_seed    draws the signs of random_sign
    allow_leak   build a model with leaking rms_axes all the same, to look at the leak
    read         how: lean; recompute (leaner: mixtures are not kept but rebuilt); plain (as the equations are written)
    """

    blocks: int | str | tuple[int, ...] = 4
    detail: str = "half"
    match: str = "rms"
    gamma: float = 4.0
    eps: float = 1e-6
    rms_axes: str = "token"
    bias: str = "learned"
    bias_init: float = -2.0
    key_gain: bool = True
    readout_details: bool = False
    sign_seed: int = 0
    allow_leak: bool = False
    read: str = "lean"

    def __post_init__(self) -> None:
        choose("detail", self.detail, ("none", "half", "duplicate", "random_sign", "phase"))
        choose("match", self.match, ("rms", "none"))
        choose("rms_axes", self.rms_axes, ("token", "time", "batch"))
        choose("bias", self.bias, ("learned", "fixed", "masked"))
        choose("read", self.read, ("lean", "recompute", "plain"))
        if isinstance(self.blocks, str):
            choose("blocks", self.blocks, ("full",))
        elif not isinstance(self.blocks, int):
            object.__setattr__(self, "blocks", tuple(self.blocks))
        if not self.gamma >= 1:
            raise ConfigError(f"gamma is {self.gamma}; the clip 1/gamma … gamma needs gamma >= 1.")
        if not self.eps > 0:
            raise ConfigError(f"eps is {self.eps}; it must be positive.")
        if not math.isfinite(self.bias_init):
            raise ConfigError("bias_init must be finite; for −∞ say bias=masked.")
        if self.rms_axes != "token" and not self.allow_leak:
            raise ConfigError(
                f"rms_axes={self.rms_axes} lets a token see later ones, so its loss means nothing; "
                "use rms_axes=token, or allow_leak=true to build the leaking model on purpose."
            )


class Bank(NamedTuple):
    """What a depth router stores: finished sources (e, C_1, D̂_1, C_2, …) and the active block.

    Read plainly, the block is its raw sums: () before its first write, then (C,) or (C, D). Read leanly, it is the
    totals (P, M) of its events of sign +1 and −1, None while empty, and its reads' finished parts are `ahead`.
    """

    sources: tuple[Tensor, ...]
    active: tuple[Tensor | None, ...]
    ahead: tuple[depth_read.Finished, ...] = ()


class DepthRouter(Residual):
    """Each sublayer reads a softmax mixture of stored sources; the mixture replaces its input (eqs. 1–8).

    Attention Residuals (2603.15031) store each block's sum C; HAARES (2606.06564) adds the difference D of its early
    and late halves. One query, key gain and detail bias per read site; the last site feeds the head.
    """

    Options = RouterOptions

    def __init__(self, config: ModelConfig, options: RouterOptions, generator: torch.Generator) -> None:
        super().__init__()
        self.options, self.key_eps, sites = options, config.norm_eps, config.events + 1
        self.detailed = options.detail != "none" and options.bias != "masked"
        detail = options.detail if self.detailed else "none"
        self.places = depth_read.places(config.events, options.blocks, detail, options.sign_seed)
        self.matches = options.match == "rms" and options.detail != "duplicate"  # a duplicate is C itself
        self.lean = options.read != "plain" and options.rms_axes == "token"  # other axes are read plainly
        self.settings = depth_read.ReadSettings(self.detailed, self.matches, options.gamma, options.eps, self.key_eps)
        self.query = nn.Parameter(torch.zeros(sites, config.width))
        self.key_gain = nn.Parameter(torch.ones(sites, config.width)) if options.key_gain else None
        if self.detailed:
            start = torch.full((sites if options.readout_details else sites - 1,), float(options.bias_init))
            if options.bias == "learned":
                self.detail_bias = nn.Parameter(start)
            else:
                self.register_buffer("detail_bias", start)

    def keys(self, sites: int | slice) -> Tensor:
        """Query times key gain of read sites [d] or [R, d]; a score is its product with the unit-RMS source."""
        return self.query[sites] if self.key_gain is None else self.query[sites] * self.key_gain[sites]

    def sources(self, state: Bank) -> tuple[Tensor, ...]:
        """What a plain read at this state sees, in order: e, C_1, D̂_1, …, then the active pair once it exists."""
        return state.sources + self.exposed(*state.active)

    def exposed(self, *block: Tensor) -> tuple[Tensor, ...]:
        """A block's raw sums (C, D) as reads see them: D matched to C."""
        if len(block) < 2 or not self.matches:
            return block
        o = self.options
        return block[0], depth_read.matched(*block, o.gamma, o.eps, o.rms_axes)

    def weights(self, sources: tuple[Tensor, ...], site: int) -> Tensor:
        """Softmax weights [S, B, T] of read `site` (an event, or 2L for the readout) over `sources`."""
        gain = None if self.key_gain is None else self.key_gain[site]
        z = depth_read.depth_scores(sources, self.query[site], gain, self.key_eps)
        if self.detailed and site < len(self.detail_bias):
            z[2::2] += self.detail_bias[site]  # e, C, D̂, C, D̂, …
        return torch.softmax(z, dim=0)

    def begin(self, embedding: Tensor) -> Bank:
        return self.open_block((embedding,), 0)

    def open_block(self, sources: tuple[Tensor, ...], event: int) -> Bank:
        """The state before the first event of a block; when lean, all its reads of finished sources are made here."""
        if not self.lean or event == len(self.places):
            return Bank(sources, ())
        sites = slice(event, event + self.places[event].length)
        bias = self.detail_bias[sites] if self.detailed else None
        with depth_read.full_precision(sources[0]):
            ahead = depth_read.completed_reads(sources, self.keys(sites), bias, self.key_eps)
        return Bank(sources, (None, None), ahead)

    def read(self, state: Bank, event: int) -> tuple[Tensor, Bank]:
        with depth_read.full_precision(state.sources[0]):  # scores and sums stay float32
            if not self.lean:
                sources = self.sources(state)
                return depth_read.mix(self.weights(sources, event), sources), state
            (o, lse, w), ahead = state.ahead[0], state.ahead[1:]
            if state.active != (None, None):
                bias = self.detail_bias[event] if self.detailed else None
                rebuild = self.options.read == "recompute" and not torch.compiler.is_compiling()
                parts = (w, *state.sources) if rebuild else ()
                o = depth_read.ActiveRead.apply(self.settings, self.keys(event), bias, o, lse, *state.active, *parts)
            return o.contiguous(), state._replace(ahead=ahead)

    def write(self, state: Bank, event: int, output: Tensor) -> Bank:
        place, u = self.places[event], output.to(self.query.dtype)
        if self.lean:
            P, M = state.active
            active = (P, depth_read.add(M, u)) if place.sign < 0 else (depth_read.add(P, u), M)
        else:  # eq. 5: C <- C + u, D <- D + s u
            signed = (u, place.sign * u) if self.detailed else (u,)
            active = tuple(map(depth_read.add, state.active or (None,) * len(signed), signed))
        if not place.last:
            return state._replace(active=active)
        if self.lean:
            active = depth_read.totals(*active)[: 1 + self.detailed]
        return self.open_block(state.sources + self.exposed(*active), event + 1)

    def readout(self, state: Bank) -> Tensor:
        sources = state.sources
        if self.detailed and not self.options.readout_details:
            sources = (sources[0], *sources[1::2])
        with depth_read.full_precision(sources[0]):
            return depth_read.mix(self.weights(sources, len(self.places)), sources)


# ------------------------------------------------------------------------------------------ the registry

SCHEMES: dict[str, tuple[type[Residual], dict[str, Any]]] = {
    "standard": (Standard, {}),
    "attnres": (DepthRouter, {"detail": "none", "blocks": "full"}),
    "block": (DepthRouter, {"detail": "none"}),
    "haares": (DepthRouter, {}),
}
"""A scheme's name, its class, and the options that make it what it is. `relatives` adds more."""


def scheme_options(scheme: str, given: Mapping[str, Any]) -> tuple[type[Residual], Any]:
    """The class and the complete options of a scheme; raises ConfigError for an unknown scheme or option."""
    choose("scheme", scheme, SCHEMES)
    kind, preset = SCHEMES[scheme]
    known = {f.name for f in fields(kind.Options)}
    for name in given:
        if name not in known:
            raise ConfigError(f"scheme {scheme} has no option {name!r}; it has {', '.join(sorted(known))}.")
    try:
        return kind, kind.Options(**{**preset, **given})
    except TypeError as error:
        raise ConfigError(f"scheme {scheme} cannot take {dict(given)}: {error}.") from None


# --------------------------------------------------------------------------------------- the Transformer


class Transformer(nn.Module):
    """Tokens [B, T] -> logits [B, T, V]. Equal `seed` gives equal backbone weights under every scheme."""

    def __init__(self, config: ModelConfig, seed: int = 42, checkpointing: bool = False) -> None:
        super().__init__()
        self.config, self.checkpointing = config, checkpointing
        kind, options = scheme_options(config.scheme, config.options)
        generator = torch.Generator().manual_seed(seed)
        self.residual = kind(config, options, torch.Generator().manual_seed(seed + 1))
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.sublayers = nn.ModuleList(
            (MLP if event % 2 else Attention)(config, self.residual.prenorm) for event in range(config.events)
        )
        self.norm = RMSNorm(config.width, config.norm_eps)
        with torch.no_grad():
            self.embed.weight.normal_(0, 0.02, generator=generator)
            for module in self.sublayers.modules():
                if isinstance(module, nn.Linear):
                    module.weight.normal_(0, 0.02, generator=generator)
                    if module.bias is not None:
                        module.bias.zero_()
        self.residual.prepare(self.sublayers)

    def compile_sublayers(self) -> None:
        """Run sublayers through torch.compile (it needs a compiler on the machine); the residual scheme stays eager."""
        for sublayer in self.sublayers:
            sublayer.compile(dynamic=False)

    def step(self, state: Any, event: int, rope: tuple[Tensor, Tensor], cache: KVCache | None = None) -> Any:
        """One event: read, compute, write."""
        x, state = self.residual.read(state, event)
        return self.residual.write(state, event, self.sublayers[event](x, rope, cache, event))

    def forward(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        past = cache.length if cache is not None else 0
        if past + tokens.shape[1] > self.config.max_context:
            raise ConfigError(f"{past + tokens.shape[1]} tokens exceed max_context {self.config.max_context}.")
        embedding = self.embed(tokens)
        rope = rotary_table(past, tokens.shape[1], self.config, embedding)
        state = self.residual.begin(embedding)
        for event in range(self.config.events):
            if self.checkpointing and cache is None and torch.is_grad_enabled():
                state = checkpoint(self.step, state, event, rope, use_reentrant=False)
            else:
                state = self.step(state, event, rope, cache)
        if cache is not None:
            cache.length += tokens.shape[1]
        return F.linear(self.norm(self.residual.readout(state)), self.embed.weight)


@torch.no_grad()
def generate(
    model: Transformer,
    tokens: Tensor,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    stop_token: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continue tokens [B, T] by up to `max_new_tokens`; temperature 0 takes the likeliest token.

    Rows that drew `stop_token` are filled with it; generation ends when all have. Raises ConfigError if it cannot."""
    if tokens.shape[1] == 0:
        raise ConfigError("the prompt is empty; give at least one token.")
    if temperature < 0 or (top_k is not None and top_k < 1):
        raise ConfigError("temperature must be at least 0 and top_k at least 1.")
    if tokens.shape[1] + max_new_tokens > model.config.max_context:
        raise ConfigError(f"prompt and {max_new_tokens} new tokens exceed max_context {model.config.max_context}.")
    cache = KVCache(tokens.shape[1] + max_new_tokens)
    done = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    new = tokens
    for _ in range(max_new_tokens):
        logits = model(new, cache)[:, -1].float()
        if top_k is not None:
            kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
            logits = logits.masked_fill(logits < kth, -torch.inf)
        if temperature == 0:
            new = logits.argmax(-1, keepdim=True)
        else:
            new = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)
        if stop_token is not None:
            new = new.masked_fill(done[:, None], stop_token)
            done = done | (new[:, 0] == stop_token)
        tokens = torch.cat((tokens, new), dim=1)
        if done.all():
            break
    return tokens
