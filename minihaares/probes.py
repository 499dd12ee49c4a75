"""Looking inside a trained model: what its reads over depth take from a text, and what a source is worth to them.

Tables of weights, biases and half coefficients, and the change in loss when a source is masked or a detail swapped for
its sum. Every answer is a DataFrame with a row for each read. How a model is watched and edited: `watching.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from .data import IGNORED, PAD, SPECIALS, CharTokenizer, Tokenizer
from .model import Transformer
from .watching import Edit, ProbeError, Read, detail_sites, pairs, reads, routed, site_place, source_names, watch

__all__ = [
    "Edit",
    "ProbeError",
    "Read",
    "biases",
    "chunk_losses",
    "coefficients",
    "detail_sites",
    "effects",
    "pairs",
    "reads",
    "routing",
    "site_place",
    "source_names",
    "token_kinds",
    "watch",
]


def token_kinds(tokenizer: Tokenizer, chunks: np.ndarray) -> dict[str, np.ndarray]:
    """Which tokens of chunks [n, T] are what, one mask a kind: "first" of a chunk (it has nothing to look back at),
    then "word start", "letter" (inside a word), "space", "punctuation" and "other" (digits, special tokens).

    Raises ProbeError for a tokenizer whose tokens are no characters.
    """
    if not isinstance(tokenizer, CharTokenizer):
        raise ProbeError("Kinds of tokens are kinds of characters; this model reads other tokens: leave kinds out.")
    sign = np.array([""] * len(SPECIALS) + list(tokenizer.characters))[chunks]
    letter = np.char.isalpha(sign)
    after, before = (np.pad(part, ((0, 0), ends)) for part, ends in ((letter[:, 1:], (0, 1)), (letter[:, :-1], (1, 0))))
    letter |= np.isin(sign, ["'", "’"]) & before & after  # an apostrophe inside a word belongs to it
    before = np.pad(letter[:, :-1], ((0, 0), (1, 0)))
    mark = ~(letter | np.char.isspace(sign) | np.char.isdecimal(sign) | (sign == ""))
    first = np.arange(chunks.shape[1]) == 0
    names = ("first", "word start", "letter", "space", "punctuation", "other")
    kind = np.select([first, letter & ~before, letter, np.char.isspace(sign), mark], names[:-1], names[-1])
    return {name: kind == name for name in names}


def batches(model: Transformer, chunks: np.ndarray, size: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows of chunks [n, T+1], with their inputs and targets [·, T] on the model's device; padding is IGNORED."""
    if not 0 <= np.max(chunks, initial=-1) < model.config.vocab_size:
        raise ProbeError("There are no chunks, or their ids are not this model's: encode text with its own tokenizer.")
    for start in range(0, len(chunks), size):
        rows = slice(start, start + size)
        tokens = torch.from_numpy(np.asarray(chunks[rows]).astype(np.int64)).to(model.embed.weight.device)
        yield rows, tokens[:, :-1], tokens[:, 1:].masked_fill(tokens[:, 1:] == PAD, IGNORED)


@torch.no_grad()
def over_text(
    model: Transformer, chunks: np.ndarray, batch_size: int, seen: Callable[[Read, slice, Tensor], Any]
) -> None:
    """Call seen(read, rows, real) for every read of every batch; real [B, T] is true where there is no padding."""
    for rows, inputs, _ in batches(model, chunks, batch_size):
        real = inputs != PAD
        with watch(model, lambda read, rows=rows, real=real: seen(read, rows, real)):
            model(inputs)


def routing(
    model: Transformer, chunks: np.ndarray, kinds: Mapping[str, np.ndarray] | None = None, batch_size: int = 16
) -> pd.DataFrame:
    """How the reads share out their weight over chunks [n, T+1]: a row for each read, source and kind of input token.

    Columns: site, sublayer, block, source, kind ("all", and those of `kinds`, masks [n, T] or [n, T+1] by name), weight
    (mean over tokens), spread (standard deviation over tokens), entropy (of the read's weights in nats, mean over
    tokens), tokens. A kind that no token is of has no rows.
    """
    kinds = {"all": np.ones(chunks.shape, dtype=bool), **(kinds or {})}
    sums: dict[int, np.ndarray] = {}

    def seen(read: Read, rows: slice, real: Tensor) -> None:
        chosen = np.stack([mask[rows, : real.shape[1]] for mask in kinds.values()])  # [K, B, T]
        of_kind = (torch.from_numpy(chosen) & real.cpu()).flatten(1).double().T
        w = read.weights.cpu().double().flatten(1)  # [S, B·T]; on the CPU, as not every device has float64
        entropy = torch.special.entr(w).sum(0).expand_as(w)
        new = torch.stack([x @ of_kind for x in (w, w.square(), entropy, torch.ones_like(w))]).numpy()
        sums[read.site] = sums.get(read.site, 0) + new  # [4, S, K]

    over_text(model, chunks, batch_size, seen)
    table = []
    for site, (total, square, entropy, tokens) in sums.items():
        sublayer, block = site_place(model, site)
        for (s, source), (k, kind) in product(enumerate(source_names(model, site)), enumerate(kinds)):
            if n := int(tokens[s, k]):
                mean = total[s, k] / n
                spread = max(square[s, k] / n - mean**2, 0.0) ** 0.5
                table.append((site, sublayer, block, source, kind, mean, spread, entropy[s, k] / n, n))
    columns = ["site", "sublayer", "block", "source", "kind", "weight", "spread", "entropy", "tokens"]
    return pd.DataFrame(table, columns=columns)


def biases(model: Transformer) -> pd.DataFrame:
    """The detail bias of every read that has one: site, sublayer, block, bias. Raises ProbeError if none has."""
    values = routed(model).detail_bias.tolist() if detail_sites(model) else []
    table = [(site, *site_place(model, site), bias) for site, bias in enumerate(values)]
    return pd.DataFrame(table, columns=["site", "sublayer", "block", "bias"])


def coefficients(model: Transformer, chunks: np.ndarray, batch_size: int = 16) -> pd.DataFrame:
    """Where the reads stand in the cone of chapter 09: a row for each read and each block that it sees both halves of.

    Columns: site, sublayer, block (of the source), active (it is not finished), early and late (mean coefficients over
    tokens), negative (share of tokens whose late coefficient is below 0), low and high (shares with a at 1/γ and at γ),
    tokens. Raises ProbeError if no read sees a detail with two halves.
    """
    detail_sites(model)
    sums: dict[tuple, np.ndarray] = {}

    def seen(read: Read, rows: slice, real: Tensor) -> None:
        for p in pairs(model, read):
            facts = (p.early, p.late, p.late < 0, p.clip < 0, p.clip > 0, torch.ones_like(p.early))
            new = torch.stack([fact[real].cpu().double().sum() for fact in facts]).numpy()
            key = (read.site, site_place(model, read.site)[0], p.block, p.active)
            sums[key] = sums.get(key, 0) + new

    over_text(model, chunks, batch_size, seen)
    if not sums:
        raise ProbeError("No block of this model has a late half: a duplicate has none, nor has a block of one event.")
    table = [(*key, *(total[:-1] / total[-1]), int(total[-1])) for key, total in sums.items()]
    names = ["site", "sublayer", "block", "active", "early", "late", "negative", "low", "high", "tokens"]
    return pd.DataFrame(table, columns=names)


# ------------------------------------------------------------------------------------------------ interventions


@torch.no_grad()
def chunk_losses(
    model: Transformer, chunks: np.ndarray, edits: Sequence[Edit] = (), batch_size: int = 16
) -> tuple[np.ndarray, np.ndarray]:
    """Of each chunk of [n, T+1] the summed loss in nats, float64 [n], under the edits, and its predicted tokens [n]."""
    losses, counts = [], []
    with watch(model, edits=edits):
        for _, inputs, targets in batches(model, chunks, batch_size):
            logits, targets = model(inputs).cpu().double(), targets.cpu()
            losses.append(F.cross_entropy(logits.mT, targets, ignore_index=IGNORED, reduction="none").sum(1))
            counts.append((targets != IGNORED).sum(1))
    return torch.cat(losses).numpy(), torch.cat(counts).numpy()


def effects(
    model: Transformer, chunks: np.ndarray, edits: Mapping[str, Sequence[Edit]], groups: Sequence[Any] | None = None
) -> pd.DataFrame:
    """By how much edits raise the loss, in nats per predicted token: a row a group of chunks, a column an entry.

    `groups` [n] says what chunk belongs to what, such as its story, since chunks of one text are not independent;
    without it every chunk of [n, T+1] is a group. The spread is .agg(["mean", "std", "sem"]) of what is returned.
    Raises ProbeError as `watch` does.
    """
    groups = np.arange(len(chunks)) if groups is None else np.asarray(groups)
    before, counts = chunk_losses(model, chunks)
    raised = {name: chunk_losses(model, chunks, edit)[0] - before for name, edit in edits.items()}
    summed = pd.DataFrame({**raised, "": counts}).groupby(groups).sum()
    return summed.drop(columns="").div(summed[""], axis=0)
