"""What counting knows: character n-grams of a corpus, as level lines under the learning curves.

Chapter 02 builds the same model with dictionaries. Here it is counted on the very chunks that a run trains on, and
asked about the very targets that its evaluations predict, with no more context than the model sees.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from .checkpoints import write_whole
from .data import PAD, DataConfig, load_corpus
from .experiments import FULL_PRECISION, STORE, commit

TEXT = ("corpus", "corpus_hash", "tokenizer", "tokenizer_hash", "context", "eval_chunks")  # what was counted and asked


def windows(chunks: np.ndarray, order: int, symbols: int) -> np.ndarray:
    """Every run of order + 1 tokens inside a chunk of [n, T+1], as one number in base `symbols`: uint64 [n, T+1-order].

    The newest token is the last digit, so that // symbols leaves the context.
    """
    width = chunks.shape[1] - order
    grams = np.zeros((len(chunks), width), np.uint64)
    for k in range(order + 1):
        grams = grams * np.uint64(symbols) + chunks[:, k : k + width].astype(np.uint64)
    return grams


def ngram_losses(train: np.ndarray, valid: np.ndarray, symbols: int, top: int) -> np.ndarray:
    """Loss of n-grams of order 0 … top, in nats per target of `valid`: float64 [top + 1].

    Counted on `train`; both [n, T+1], ids under `symbols`, PAD only at the end of a chunk. Orders are mixed by the rule
    of Witten and Bell; a target near the beginning of a chunk has as much context as there is. Raises ValueError if a
    window does not fit 64 bits.
    """
    if symbols ** (top + 1) > 2**64:
        raise ValueError(f"order {top} of {symbols} symbols needs more than 64 bits: choose a lower order.")
    targets = valid[:, 1:] != PAD
    p, losses = np.full(targets.shape, 1 / symbols), []
    for order in range(top + 1):
        grams, counts = np.unique(windows(train, order, symbols)[train[:, order:] != PAD], return_counts=True)
        contexts, first = np.unique(grams // np.uint64(symbols), return_index=True)
        times, kinds = np.add.reduceat(counts, first), np.diff(np.append(first, len(grams)))
        skip = max(order, 1)  # a chunk's first token is not predicted
        asked = windows(valid, order, symbols)[:, skip - order :]
        n, t = look_up(asked // np.uint64(symbols), contexts, times, kinds)
        (count,) = look_up(asked, grams, counts)
        lower = p[:, skip - 1 :]
        p[:, skip - 1 :] = np.where(n > 0, (count + t * lower) / np.maximum(n + t, 1), lower)
        losses.append(-np.log(p[targets]).mean())
    return np.array(losses)


def look_up(asked: np.ndarray, keys: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
    """For each value array its entries at the places of `asked` among the sorted `keys`; 0 where it isn't there."""
    place = np.searchsorted(keys, asked).clip(max=len(keys) - 1)
    return [np.where(keys[place] == asked, value[place], 0) for value in values]


def record_ngrams(config: DataConfig, eval_chunks: int | None, top: int = 7, store: Path = STORE) -> pd.DataFrame:
    """Count n-grams of a corpus, keep their losses in `ngrams.csv` of the store (a row an order), and give the rows.

    `eval_chunks` is that of the runs to compare with: so many validation chunks are asked about, None: all.
    Raises DataError if the corpus can't be read.
    """
    corpus = load_corpus(config)
    losses = ngram_losses(np.asarray(corpus.train), corpus.valid[:eval_chunks], corpus.tokenizer.vocab_size, top)
    text = (config.corpus, corpus.hash, config.tokenizer, corpus.tokenizer.hash, config.context, eval_chunks or 0)
    about = dict(zip(TEXT, text, strict=True))
    table = pd.DataFrame({**about, "order": range(top + 1), "loss": losses, "commit": commit()})
    path, kept = store / "ngrams.csv", read_ngrams(store)
    kept = kept[~(kept[list(about)] == pd.Series(about, dtype=object)).all(axis=1)]
    whole = pd.concat([kept, table], ignore_index=True) if len(kept) else table
    store.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda temporary: whole.to_csv(temporary, index=False, float_format=FULL_PRECISION))
    return table


def read_ngrams(store: Path = STORE) -> pd.DataFrame:
    """Every recorded n-gram loss, nats per token, by corpus and order; empty if none is recorded."""
    path = store / "ngrams.csv"
    if not path.exists():
        return pd.DataFrame(columns=[*TEXT, "order", "loss", "commit"])
    return pd.read_csv(path, dtype={"corpus_hash": str, "tokenizer_hash": str, "commit": str})
