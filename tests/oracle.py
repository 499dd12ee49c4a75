"""A slow, plain float64 reference of the forward passes, written from the equations and from nothing else.

The tests hold the package to it, so it shares no code with the package and prefers the obvious form: lists of
sources, one loop turn per event and per head, a softmax spelled out. Autograd works throughout, so gradients
can be compared too. Streams, sources and outputs are `[B, T, d]`; an event is one sublayer: 0, 2, 4, ... are
attention and 1, 3, 5, ... MLPs. Equation numbers are those of the HAARES paper.

Weights are one flat dict of float64 tensors. `i` is an event; linear maps are `[out, in]`, so `y = x @ W.T`:

    embed                         [V, d]   the token table, also the output head
    final_norm                    [d]
    events.{i}.norm               [d]      before the sublayer; after the sum in "postnorm" and "deepnorm"
    events.{i}.wq, wk, wv, wo     [d, d]   attention events
    events.{i}.w_gate, w_up       [ff, d]  MLP events
    events.{i}.b_gate, b_up       [ff]
    events.{i}.w_down, b_down     [d, ff], [d]
    events.{i}.scale              []       "rezero"; [d] for "layerscale"; absent otherwise
    routers.{i}.query             [d]      "router" and "full"
    routers.{i}.key_gain          [d]      if options.key_gain
    routers.{i}.bias              []       "router" with details and options.bias None (learned)
    final_router.query, key_gain  [d]      as for the other reads
    final_router.bias             []       "router" with details, readout_details, and readout_bias None
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Sublayer = Callable[[Tensor], Tensor]
Label = tuple[str] | tuple[str, int]  # ("e",), ("C", n) or ("D", n); blocks are counted from 1


# ---- the parts of the backbone ----

def rms_norm(x: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    """`gain * x / sqrt(mean(x^2) + eps)` over the last axis; no gain if it is None."""
    normed = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return normed if gain is None else normed * gain


def rotate(x: Tensor, base: float) -> Tensor:
    """RoPE on `[B, T, hd]`: channels `(i, i + hd/2)`, one complex number, turn by `t * base^(-2i/hd)`."""
    length, size = x.shape[-2:]
    half = size // 2
    angles = [[position * base ** (-2 * i / size) for i in range(half)] for position in range(length)]
    turn = torch.exp(1j * torch.tensor(angles, dtype=x.dtype))
    turned = torch.complex(x[..., :half], x[..., half:]) * turn
    return torch.cat([turned.real, turned.imag], dim=-1)


def attention(x: Tensor, w: Weights, heads: int, base: float) -> Tensor:
    """Causal self-attention on `[B, T, d]`, head by head; head h owns the h-th run of d/heads channels."""
    length, size, outputs = x.shape[-2], x.shape[-1] // heads, []
    allowed = torch.tensor([[past <= now for past in range(length)] for now in range(length)])
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        q, k, v = ((x @ w[name].T)[..., own] for name in ("wq", "wk", "wv"))
        scores = rotate(q, base) @ rotate(k, base).transpose(-1, -2) / math.sqrt(size)
        outputs.append(torch.softmax(scores.masked_fill(~allowed, -math.inf), dim=-1) @ v)
    return torch.cat(outputs, dim=-1) @ w["wo"].T


def swiglu(x: Tensor, w: Weights) -> Tensor:
    """`down(silu(gate x + b_g) * (up x + b_u)) + b_d`, with `silu(g) = g * sigmoid(g)`."""
    gate = x @ w["w_gate"].T + w["b_gate"]
    up = x @ w["w_up"].T + w["b_up"]
    return (gate * torch.sigmoid(gate) * up) @ w["w_down"].T + w["b_down"]


# ---- schemes that add to one stream ----

def deepnorm_constants(layers: int) -> tuple[float, float]:
    """`(alpha, beta)` of DeepNet (arXiv 2203.00555) for a decoder of M layers: `(2M)^(1/4)`, `(8M)^(-1/4)`.

    alpha multiplies the stream inside the norm; beta scales the initial value, output and MLP matrices.
    """
    return (2 * layers) ** 0.25, (8 * layers) ** -0.25


def additive_stream(
    scheme: str, embedding: Tensor, sublayers: Sequence[Sublayer], norms: Sequence[Sublayer],
    scales: Sequence[Tensor] = (), alpha: float = 1.0,
) -> list[Tensor]:
    """The stream before every event and after the last: `len(sublayers) + 1` tensors `[B, T, d]`.

    `sublayers[i]` (without a norm) and `norms[i]` are functions of a stream; `scales` belongs to "rezero" and
    "layerscale", `alpha` to "deepnorm". ValueError if the scheme is not one of these five.
    """
    steps = {
        "standard": lambda h, i: h + sublayers[i](norms[i](h)),
        "postnorm": lambda h, i: norms[i](h + sublayers[i](h)),
        "deepnorm": lambda h, i: norms[i](alpha * h + sublayers[i](h)),
        "rezero": lambda h, i: h + scales[i] * sublayers[i](norms[i](h)),
    }
    steps["layerscale"] = steps["rezero"]  # they differ in the shape of the scale only
    if scheme not in steps:
        raise ValueError(f"unknown scheme {scheme!r}: choose one of {(*steps, 'router', 'full')}")
    stream = [embedding]
    for event in range(len(sublayers)):
        stream.append(steps[scheme](stream[-1], event))
    return stream


# ---- the depth router ----

@dataclass(frozen=True)
class RouterOptions:
    """Everything the paper varies about the routed read. The defaults are HAARES, equations (1) to (8)."""

    blocks: int | Sequence[int] = 4  # how many blocks (see block_sizes), or the list of their sizes
    detail: str = "half"  # half | none | duplicate | random_sign | phase
    signs: Sequence[Sequence[int]] = ()  # for random_sign: one list of +1 and -1 per block, one per event
    match: str = "rms"  # rms (equation 6) | none (D as it is); a duplicate is never matched
    gamma: float = 4.0
    eps: float = 1e-6
    rms_axes: str = "token"  # token: over d | time: over (T, d) | batch: over (B, T, d)
    bias: float | None = None  # None: learned, one scalar a read; a float: fixed (-inf: details get no mass)
    key_gain: bool = True
    key_eps: float = 1e-6
    readout_details: bool = False  # does the final router see the details too?
    readout_bias: float | None = 0.0  # and with which bias (None: learned); the paper has none


@dataclass(frozen=True)
class Router:
    """The parameters of one read: query [d], key gain [d] or None, detail bias (a scalar)."""
    query: Tensor
    key_gain: Tensor | None
    bias: Tensor | float


@dataclass(frozen=True)
class Source:
    """One slot: its label, its raw accumulator, and the value given to the read (a matched D differs)."""
    label: Label
    raw: Tensor
    value: Tensor


@dataclass(frozen=True)
class Read:
    """One read: its slots, the score and the weight `[B, T]` of each, and the mixture `[B, T, d]`."""
    sources: list[Source]
    scores: list[Tensor]
    weights: list[Tensor]
    mixture: Tensor


def block_sizes(events: int, blocks: int | Sequence[int]) -> list[int]:
    """Sizes of contiguous blocks, as even as possible: the earlier ones take the extra events."""
    sizes = blocks if not isinstance(blocks, int) else [
        events // blocks + (1 if n < events % blocks else 0) for n in range(blocks)
    ]
    if not sizes or min(sizes) < 1 or sum(sizes) != events:
        raise ValueError(f"blocks of {sizes} events do not fit: at least 1 each and {events} together")
    return list(sizes)


def detail_sign(event: int, position: int, size: int, block: int, options: RouterOptions) -> int:
    """The sign of an event in D. `event` counts from 0; `block`, and `position` r in its block, from 1."""
    if options.detail == "half":
        return 1 if position <= math.ceil(size / 2) else -1
    if options.detail == "phase":
        return 1 if event % 2 == 0 else -1  # attention is counted up, the MLP down
    if options.detail == "random_sign":
        return options.signs[block - 1][position - 1]
    if options.detail in ("none", "duplicate"):
        return 1  # D then equals C: the duplicate shows that, "none" shows nothing
    raise ValueError(f"unknown detail {options.detail!r}: half, none, duplicate, random_sign or phase")


def match_factor(C: Tensor, D: Tensor, options: RouterOptions) -> Tensor:
    """`a` of equation (6), cut from the graph: `clip(RMS(C) / (RMS(D) + eps), 1/gamma, gamma)`."""
    axes = {"token": (-1,), "time": (-2, -1), "batch": (-3, -2, -1)}[options.rms_axes]
    rms_c, rms_d = (torch.sqrt((x.detach() ** 2).mean(axes, keepdim=True)) for x in (C, D))
    return torch.clamp(rms_c / (rms_d + options.eps), 1 / options.gamma, options.gamma)


def block_slots(block: int, C: Tensor, D: Tensor, options: RouterOptions) -> list[Source]:
    """The one or two slots that a block shows, given its accumulators so far."""
    slots = [Source(("C", block), C, C)]
    if options.detail != "none":
        unmatched = {"none": True, "rms": False}[options.match] or options.detail == "duplicate"
        slots.append(Source(("D", block), D, D if unmatched else match_factor(C, D, options) * D))
    return slots


def read(sources: list[Source], router: Router, key_eps: float) -> Read:
    """Equations (7) and (8): scores of normalised keys, a bias on details, softmax over slots, mixture."""
    scores = []
    for source in sources:
        z = (router.query * rms_norm(source.value, router.key_gain, key_eps)).sum(-1)
        scores.append(z + router.bias if source.label[0] == "D" else z)
    top = torch.stack(scores).detach().amax(0)  # for safety only: it cancels
    masses = [torch.exp(z - top) for z in scores]
    weights = [mass / sum(masses) for mass in masses]
    mixture = sum(w.unsqueeze(-1) * source.value for w, source in zip(weights, sources, strict=True))
    return Read(sources, scores, weights, mixture)


def depth_router(
    embedding: Tensor, sublayers: Sequence[Sublayer], routers: Sequence[Router], final: Router,
    options: RouterOptions,
) -> list[Read]:
    """Run the events in order; return their reads, and the final readout as the last one.

    `sublayers[i]` maps a mixture `[B, T, d]` to the output of event i, its norm included.
    """
    source_e, reads = Source(("e",), embedding, embedding), []
    completed: list[Source] = []
    for block, size in enumerate(block_sizes(len(sublayers), options.blocks), start=1):
        active: list[Source] = []  # nothing is shown of a block before its first write
        C = D = torch.zeros_like(embedding)
        for position in range(1, size + 1):
            event = len(reads)
            reads.append(read([source_e, *completed, *active], routers[event], options.key_eps))
            u = sublayers[event](reads[-1].mixture)
            C, D = C + u, D + detail_sign(event, position, size, block, options) * u  # equation (5)
            active = block_slots(block, C, D, options)
        completed = completed + active
    shown = [source for source in completed if source.label[0] == "C" or options.readout_details]
    reads.append(read([source_e, *shown], final, options.key_eps))
    return reads


def two_phase_read(
    routers: Sequence[Router], completed: list[Source], actives: Sequence[list[Source]], key_eps: float = 1e-6
) -> list[Tensor]:
    """The reads of one block by Algorithm 1 of Attention Residuals (arXiv 2603.15031), for realised sources.

    `actives[r]` holds the running block's slots that read r sees (none for the first). Phase one scores all
    queries on the completed slots in one product; phase two adds the active slots by the online softmax.
    """

    def partial(chosen: Sequence[Router], sources: list[Source]) -> tuple[Tensor, Tensor, Tensor]:
        values = torch.stack([source.value for source in sources])  # [S, B, T, d]
        queries = torch.stack([r.query if r.key_gain is None else r.query * r.key_gain for r in chosen])
        biases = torch.stack([torch.as_tensor(r.bias, dtype=values.dtype) for r in chosen])  # [R]
        is_detail = torch.tensor([source.label[0] == "D" for source in sources])[:, None, None]
        scores = torch.einsum("rd,sbtd->rsbt", queries, rms_norm(values, None, key_eps))
        scores = torch.where(is_detail, scores + biases[:, None, None, None], scores)
        top = scores.amax(1)  # [R, B, T]
        masses = torch.exp(scores - top.unsqueeze(1))
        return top, masses.sum(1), torch.einsum("rsbt,sbtd->rbtd", masses, values)

    mixtures = []
    for r, (top, total, weighted) in enumerate(zip(*partial(routers, completed), strict=True)):
        if actives[r]:
            new_top, new_total, new_weighted = (x[0] for x in partial(routers[r : r + 1], actives[r]))
            merged = torch.maximum(top, new_top)
            old, new = torch.exp(top - merged), torch.exp(new_top - merged)
            total = total * old + new_total * new
            weighted = weighted * old.unsqueeze(-1) + new_weighted * new.unsqueeze(-1)
        mixtures.append(weighted / total.unsqueeze(-1))
    return mixtures


def full_attention_residuals(
    embedding: Tensor, sublayers: Sequence[Sublayer], routers: Sequence[Router], final: Router,
    key_eps: float = 1e-6,
) -> Tensor:
    """The readout of full Attention Residuals (arXiv 2603.15031): a read takes `e` and every output so far.

    Written with stacked tensors and torch's softmax, so that it also checks `depth_router`.
    """

    def mix(values: list[Tensor], router: Router) -> Tensor:
        stacked = torch.stack(values)  # [S, B, T, d]
        scores = rms_norm(stacked, router.key_gain, key_eps) @ router.query
        return torch.einsum("sbt,sbtd->btd", torch.softmax(scores, dim=0), stacked)

    values = [embedding]
    for sublayer, router in zip(sublayers, routers, strict=True):
        values.append(sublayer(mix(values, router)))
    return mix(values, final)


# ---- whole models ----

def weight_shapes(
    layers: int, width: int, ff: int, vocab: int, scheme: str, options: RouterOptions | None = None
) -> dict[str, tuple[int, ...]]:
    """The exact names and shapes that `forward` wants: the table at the top of this file, as code."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (vocab, width), "final_norm": (width,)}
    for i in range(2 * layers):
        if i % 2 == 0:
            event = dict.fromkeys(("wq", "wk", "wv", "wo"), (width, width))
        else:
            event = {"w_gate": (ff, width), "w_up": (ff, width), "w_down": (width, ff)}
            event |= {"b_gate": (ff,), "b_up": (ff,), "b_down": (width,)}
        if scheme in ("rezero", "layerscale"):
            event["scale"] = () if scheme == "rezero" else (width,)
        shapes |= {f"events.{i}.{name}": shape for name, shape in (event | {"norm": (width,)}).items()}
    if scheme in ("router", "full"):
        options = options or RouterOptions()
        details = scheme == "router" and options.detail != "none"
        for site in [f"routers.{i}" for i in range(2 * layers)] + ["final_router"]:
            shapes[f"{site}.query"] = (width,)
            if options.key_gain:
                shapes[f"{site}.key_gain"] = (width,)
            reads_details = details and (options.readout_details or site != "final_router")
            if reads_details and (options.readout_bias if site == "final_router" else options.bias) is None:
                shapes[f"{site}.bias"] = ()
    return shapes


def trace(
    weights: Weights, tokens: Tensor, layers: int, heads: int, scheme: str,
    options: RouterOptions | None = None, norm_eps: float = 1e-6, rope_base: float = 1e4,
) -> tuple[Tensor, list[Read] | list[Tensor]]:
    """Logits `[B, T, V]` of `tokens [B, T]`, and what happened along depth.

    `scheme` is "router" (HAARES, Block Attention Residuals), "full", or a scheme of `additive_stream`. The
    second part is the reads of the router, the streams of an additive scheme, or empty for "full". ValueError
    if the weights are not exactly as documented.
    """
    options = options or RouterOptions()
    (vocab, width), ff = weights["embed"].shape, weights["events.1.w_gate"].shape[0]
    wanted = weight_shapes(layers, width, ff, vocab, scheme, options)
    given = {name: tuple(w.shape) for name, w in weights.items() if w.dtype == torch.float64}
    wrong = sorted(n for n in weights.keys() | wanted if n not in weights or given.get(n) != wanted.get(n))
    if wrong:
        raise ValueError(f"weights missing, unknown, of a wrong shape, or not float64: {wrong}")

    def sublayer(event: int) -> Sublayer:
        own = {name.split(".")[2]: w for name, w in weights.items() if name.startswith(f"events.{event}.")}
        return (lambda x: swiglu(x, own)) if event % 2 else (lambda x: attention(x, own, heads, rope_base))

    def router(site: str, fixed: float | None) -> Router:
        bias = weights.get(f"{site}.bias", 0.0) if fixed is None else fixed  # 0.0: a read that has no details
        return Router(weights[f"{site}.query"], weights.get(f"{site}.key_gain"), bias)

    events, embedding = range(2 * layers), weights["embed"][tokens]
    sublayers = [sublayer(i) for i in events]
    norms = [lambda x, i=i: rms_norm(x, weights[f"events.{i}.norm"], norm_eps) for i in events]
    along: list[Read] | list[Tensor] = []
    if scheme in ("router", "full"):
        prenormed = [lambda x, i=i: sublayers[i](norms[i](x)) for i in events]  # equation (1)
        routers = [router(f"routers.{i}", options.bias) for i in events]
        final = router("final_router", options.readout_bias)
        if scheme == "router":
            along = depth_router(embedding, prenormed, routers, final, options)
            last = along[-1].mixture
        else:
            last = full_attention_residuals(embedding, prenormed, routers, final, options.key_eps)
    else:
        scales = [weights.get(f"events.{i}.scale") for i in events]
        along = additive_stream(scheme, embedding, sublayers, norms, scales, deepnorm_constants(layers)[0])
        last = along[-1]
    return rms_norm(last, weights["final_norm"], norm_eps) @ weights["embed"].T, along


def forward(*args, **kwargs) -> Tensor:
    """The logits `[B, T, V]` alone; arguments as for `trace`."""
    return trace(*args, **kwargs)[0]


# ---- reads without numbers ----

def symbolic_reads(layers: int, options: RouterOptions) -> list[list[tuple[Label, dict[int, int]]]]:
    """What every read sees: for each slot its label and its raw accumulator as `{event: sign}` (`e`: empty).

    Stated by definition rather than by running the algorithm: before event i a block shows its events that
    come before i, and shows nothing if there are none. The last entry is the final readout.
    """
    sizes = block_sizes(2 * layers, options.blocks)
    reads = []
    for i in range(2 * layers + 1):
        slots: list[tuple[Label, dict[int, int]]] = [(("e",), {})]
        for block, size in enumerate(sizes, start=1):
            start = sum(sizes[: block - 1])
            written = range(start, min(start + size, i))
            if not written:
                continue
            slots.append((("C", block), dict.fromkeys(written, 1)))
            if options.detail != "none" and (i < 2 * layers or options.readout_details):
                signs = {j: detail_sign(j, j - start + 1, size, block, options) for j in written}
                slots.append((("D", block), signs))
        reads.append(slots)
    return reads


def source_counts(layers: int, blocks: int | Sequence[int], detail: str = "half") -> dict:
    """Slots of each event's read, their exact mean, peak, and the final readout's: counted by events."""
    sizes = block_sizes(2 * layers, blocks)
    completed, reads = 1, []  # the embedding counts as one
    for size in sizes:
        active = 0
        for _ in range(size):
            reads.append(completed + active)
            active = 1 if detail == "none" else 2
        completed += active
    return dict(reads=reads, mean=Fraction(sum(reads), len(reads)), peak=max(reads), final=len(sizes) + 1)
