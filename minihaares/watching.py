"""Watching a model that routes over depth: each of its reads, made a second time with the plain functions, or edited.

Nothing is hooked into the model. For the length of a `with` block its `Residual` is wrapped in another one
(`Watched`), which asks the same questions of it and passes the answers on. What a read was offered comes from the
state that the scheme holds anyway, so one way of looking serves every way of reading (lean, recompute, plain),
watching changes no bit of the output, and afterwards the model is as it was.

Works for attnres, block, haares and all their options, and for delta, whose weights are a softmax too. Sources are
named as in the book: e, then C1, D1, C2, D2, … by block. A read site is the number of its event; 2L is the head's.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import depth_read
from .model import DepthRouter, Residual, Transformer, choose
from .relatives import Delta

Halves = tuple[Tensor | None, Tensor | None]
"""A block's outputs so far, added up: those of sign +1 (early) and those of −1 (late); None where there are none."""


class ProbeError(ValueError):
    """A question that cannot be asked of this model; the message says why and what to do."""


def routed(model: Transformer) -> DepthRouter | Delta:
    """The model's router; raises ProbeError if its reads are no softmax over sources."""
    residual = model.residual.inner if isinstance(model.residual, Watched) else model.residual
    if not isinstance(residual, DepthRouter | Delta):
        raise ProbeError(
            f"Scheme {model.config.scheme} has no softmax over depth to look at; probe a model of scheme attnres, "
            "block, haares or delta."
        )
    return residual


def read_sites(model: Transformer) -> range:
    """The numbers of all routed reads: the events, and 2L for the head's, which delta does not route."""
    return range(model.config.events + isinstance(routed(model), DepthRouter))


def site_place(model: Transformer, site: int) -> tuple[str, int]:
    """What a read is for ("attention", "MLP" or "head"), and its block, counted from 1; for the head it is N + 1."""
    places = routed(model).places
    if site == len(places):
        return "head", places[-1].block + 2
    return ("MLP" if site % 2 else "attention"), places[site].block + 1


def source_names(model: Transformer, site: int) -> tuple[str, ...]:
    """What a read is offered, in order. Delta shows no unfinished block: its stream holds it."""
    residual = routed(model)
    seen, details = site_place(model, site)[1] - 1, isinstance(residual, DepthRouter) and residual.detailed
    if site == len(residual.places):
        details = details and residual.options.readout_details
    elif isinstance(residual, DepthRouter) and residual.places[site].offset > 0:
        seen += 1
    return ("e", *(f"{letter}{n}" for n in range(1, seen + 1) for letter in ("CD" if details else "C")))


def detail_sites(model: Transformer) -> list[int]:
    """The reads that see a detail; raises ProbeError if none does."""
    sites = [site for site in read_sites(model) if any(name[0] == "D" for name in source_names(model, site))]
    if not sites:
        raise ProbeError(
            f"No read of this model sees a detail (scheme {model.config.scheme}, options "
            f"{dict(model.config.options)}): only haares with detail slots has them."
        )
    return sites


# ------------------------------------------------------------------------------------------------ one read


class Read(NamedTuple):
    """A read as the model made it, without gradients: x = Σ_s w_s v_s, added to `stream` where there is one."""

    site: int
    names: tuple[str, ...]
    weights: Tensor  # [S, B, T]
    sources: tuple[Tensor, ...]  # S of [B, T, d], as the read sees them: a detail is matched
    halves: tuple[Halves, ...]  # of every block that has begun, [B, T, d] each
    x: Tensor  # [B, T, d]
    stream: Tensor | None = None  # [B, T, d], delta's


class Pair(NamedTuple):
    """A block in a read, in the coordinates of chapter 09: its share is early · E + late · F."""

    block: int  # from 1
    active: bool  # the block is not finished yet
    early: Tensor  # w_C + a w_D, [B, T]
    late: Tensor  # w_C − a w_D, [B, T]
    scale: Tensor  # a, [B, T]
    clip: Tensor  # −1 where a is at 1/γ, +1 where it is at γ, 0 where it matches the lengths; [B, T]


def pairs(model: Transformer, read: Read) -> list[Pair]:
    """The half coefficients (HAARES section 4.3) of every block of a read that shows its detail and has both halves.

    "Early" and "late" are the events of detail sign +1 and −1; with detail=phase they are attention and MLPs. A
    duplicate has no second half and gives no pair, nor does a swapped detail, or a block whose late half has not begun.
    """
    residual, found = routed(model), []
    for block, (E, F_) in enumerate(read.halves, 1):
        if E is None or F_ is None or f"D{block}" not in read.names:
            continue
        of_C, of_D = (read.names.index(f"{letter}{block}") for letter in "CD")
        if read.sources[of_C].data_ptr() == read.sources[of_D].data_ptr():  # swapped by an edit
            continue
        o, shape = residual.options, E.shape[:-1]
        size = {name: depth_read.rms(v, o.rms_axes) for name, v in (("C", E + F_), ("D", E - F_))}
        ratio = (size["C"] / (size["D"] + o.eps))[..., 0].expand(shape)
        clip = (ratio >= o.gamma).int() - (ratio <= 1 / o.gamma).int()
        scale = ratio.clamp(1 / o.gamma, o.gamma)  # eq. 6
        if not residual.matches:
            scale, clip = torch.ones_like(scale), torch.zeros_like(clip)
        w_C, w_D = read.weights[of_C], read.weights[of_D]
        unfinished = read.site < len(residual.places) and residual.places[read.site].block == block - 1
        found.append(Pair(block, unfinished, w_C + scale * w_D, w_C - scale * w_D, scale, clip))
    return found


# ------------------------------------------------------------------------------------------------ watching


@dataclass(frozen=True)
class Edit:
    """A change to what reads are offered.

    kind      mask: the sources are not there, and the others share their weight; as a score of −∞.
              duplicate: a block's detail is replaced by its sum, as key and as value; its bias stays.
    sources   names as in `source_names`; None: every detail
    sites     the reads that this is done to; None: all that have such a source
    """

    kind: str
    sources: tuple[str, ...] | None = None
    sites: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        choose("kind", self.kind, ("mask", "duplicate"))

    def touches(self, site: int, names: Sequence[str]) -> list[int]:
        """The positions of the sources that it changes in a read that is offered `names`."""
        if self.sites is not None and site not in self.sites:
            return []
        chosen = [name for name in names if name[0] == "D"] if self.sources is None else self.sources
        return [i for i, name in enumerate(names) if name in chosen]


def check_edits(model: Transformer, edits: Sequence[Edit]) -> None:
    """Raise ProbeError for an edit that changes nothing, copies onto what is no detail, or leaves a read nothing."""
    offered = {site: source_names(model, site) for site in read_sites(model)}
    for edit in edits:
        touched = {names[i] for site, names in offered.items() for i in edit.touches(site, names)}
        if not touched or touched != set(edit.sources or touched):
            missing = ", ".join(sorted(set(edit.sources or ("a detail",)) - touched))
            raise ProbeError(f"No read at these sites is offered {missing}: see `source_names(model, site)`.")
        if edit.kind == "duplicate" and any(name[0] != "D" for name in edit.sources or ()):
            raise ProbeError("Only details, D1, D2, …, have a sum to be replaced by; mask other sources.")
    masks = [edit for edit in edits if edit.kind == "mask"]
    for site, names in offered.items():
        if len({i for edit in masks for i in edit.touches(site, names)}) == len(names):
            raise ProbeError(f"Masking {', '.join(names)} leaves read {site} nothing; name the `sites` to do it at.")


class Seen(NamedTuple):
    """The state of a watched residual: that of the inner one, and the halves of every block so far."""

    inner: Any
    halves: tuple[Halves, ...] = ()


class Watched(Residual):
    """A residual that does what `inner` does, tells `note` of every routed read, and makes edited reads anew."""

    def __init__(self, model: Transformer, note: Callable[[Read], Any] | None, edits: Sequence[Edit]) -> None:
        super().__init__()
        self.inner, self.note, self.edits = routed(model), note, tuple(edits)
        self.offered = [source_names(model, site) for site in read_sites(model)]

    def begin(self, embedding: Tensor) -> Seen:
        return Seen(self.inner.begin(embedding))

    def read(self, state: Seen, event: int) -> tuple[Tensor, Seen]:
        x, inner = self.inner.read(state.inner, event)
        return self.look(state, event, x), state._replace(inner=inner)

    def write(self, state: Seen, event: int, output: Tensor) -> Seen:
        place, u = self.inner.places[event], output.detach().to(self.inner.query.dtype)
        done, now = state.halves[: place.block], (*state.halves, (None, None))[place.block]
        late = place.sign < 0
        now = (now[0], depth_read.add(now[1], u)) if late else (depth_read.add(now[0], u), now[1])
        return Seen(self.inner.write(state.inner, event, output), (*done, now))

    def readout(self, state: Seen) -> Tensor:
        x = self.inner.readout(state.inner)
        return self.look(state, len(self.inner.places), x) if len(self.offered) > len(self.inner.places) else x

    def look(self, state: Seen, site: int, x: Tensor) -> Tensor:
        """The read x of the inner residual, or that of the edited sources."""
        names = self.offered[site]
        edits = [(edit.kind, edit.touches(site, names)) for edit in self.edits]
        edited = any(places for _, places in edits)
        if not edited and self.note is None:
            return x
        with depth_read.full_precision(x):
            sources = self.sources(state.inner, site)
            for kind, places in edits:
                if kind == "duplicate":
                    sources = tuple(sources[i - 1] if i in places else v for i, v in enumerate(sources))
            weights = self.inner.weights(state.inner if isinstance(self.inner, Delta) else sources, site)
            weights = self.masked(weights, {i for kind, places in edits if kind == "mask" for i in places})
            stream = state.inner.stream if isinstance(self.inner, Delta) else None
            if edited:
                x = depth_read.mix(weights, sources)
                x = x if stream is None else stream + x
        if self.note is not None:
            stream = None if stream is None else stream.detach()
            sources = tuple(v.detach() for v in sources)
            self.note(Read(site, names, weights.detach(), sources, state.halves, x.detach(), stream))
        return x

    def sources(self, state: Any, site: int) -> tuple[Tensor, ...]:
        """What a plain read is offered at this state of the inner residual."""
        router = self.inner
        if isinstance(router, Delta):
            return state.sources
        if router.lean and state.active:  # half totals instead of the raw pair
            begun = any(half is not None for half in state.active)
            state = state._replace(active=depth_read.totals(*state.active)[: 1 + router.detailed] if begun else ())
        sources = router.sources(state)
        if site == len(router.places) and router.detailed and not router.options.readout_details:
            return (sources[0], *sources[1::2])
        return sources

    def masked(self, weights: Tensor, places: set[int]) -> Tensor:
        """The softmax over the sources that are left, from that over all; a null source of delta stays."""
        if not places:
            return weights
        null = (1 - weights.sum(0)).clamp(min=0) if isinstance(self.inner, Delta) and self.inner.null else 0
        kept = torch.stack([torch.zeros_like(w) if i in places else w for i, w in enumerate(weights)])
        return kept / (kept.sum(0) + null)


@contextmanager
def watch(model: Transformer, note: Callable[[Read], Any] | None = None, edits: Sequence[Edit] = ()) -> Iterator[None]:
    """For the length of the block, call note(read) for every routed read, in order, and apply `edits`.

    Raises ProbeError if the model has no routed reads, is watched already, or an edit makes no sense. With edits,
    a Read is what the edited model did. A checkpointed backward pass makes reads again, and they are noted again.
    """
    if isinstance(model.residual, Watched):
        raise ProbeError("This model is being watched already; give one `watch` its note and all its edits.")
    check_edits(model, edits)
    residual = model.residual
    model.residual = Watched(model, note, edits)
    try:
        yield
    finally:
        model.residual = residual


@torch.no_grad()
def reads(model: Transformer, tokens: Tensor, edits: Sequence[Edit] = ()) -> list[Read]:
    """Every routed read of one pass over tokens [B, T]: whole vectors, so take few tokens of a large model."""
    found: list[Read] = []
    with watch(model, found.append, edits):
        model(tokens.to(model.embed.weight.device))
    return found
