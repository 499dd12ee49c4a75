"""From a corpus to batches: records, tokens, chunks of context + 1, and a cache of them on disk.

A chunk is what the model trains on at once: `context` inputs and, shifted by one, `context` targets. Records are
cut into chunks one by one and never joined. What is left of a record after its last whole chunk is dropped or
padded, and `Corpus.kept` tells how much of the text that leaves.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import platformdirs
import torch
from torch import Tensor

from .corpora import BUILT_IN, Stories, Text, find_text
from .hub import HUB
from .records import RECORDS
from .tokens import (
    BOS,
    EOT,
    PAD,
    SPECIALS,
    UNK,
    BPETokenizer,
    CharTokenizer,
    DataError,
    Tokenizer,
    blocks,
    load_tokenizer,
    save_tokenizer,
    tokenizer_from_json,
    train_bpe,
    train_char,
    write_whole,
)

__all__ = [
    "BOS",
    "EOT",
    "IGNORED",
    "PAD",
    "SPECIALS",
    "UNK",
    "BPETokenizer",
    "CharTokenizer",
    "Corpus",
    "DataConfig",
    "DataError",
    "Tokenizer",
    "batch",
    "chunk",
    "known_corpora",
    "load_corpus",
    "load_tokenizer",
    "save_tokenizer",
    "tokenizer_from_json",
    "train_bpe",
    "train_char",
]

IGNORED = -100  # the target that torch's cross_entropy skips
CACHE_FORMAT = 1  # raise it when the same settings would give other arrays than before
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataConfig:
    """Which text, and how it becomes chunks. DataError for a value that makes no sense."""

    corpus: str = "stories"  # one of known_corpora(), or the path of a text file or folder
    data_dir: Path | None = None  # a folder laid out like the hub's data set; for "local", the text itself
    tokenizer: str = "char"  # char or bpe
    vocab_size: int | None = None  # at most so many entries; None: 256 for char, 4096 for bpe
    context: int = 256  # tokens the model sees at once; a chunk has one more
    record: str = "auto"  # one text is a story, line, paragraph, function, review or file; auto: the corpus's own
    remainder: str = "auto"  # drop or pad the last, short chunk of a record; auto: pad the stories, else drop
    frame: str = "auto"  # bare, or bos_eot around every record; auto: bos_eot for the stories, else bare
    stories: int = 20_000  # built-in stories to write for training
    valid_stories: int = 1_000  # and for validation
    limit: int | None = None  # read at most so many characters of each part, in whole records (a file is cut)
    cache_dir: Path | None = None  # for encoded text; None: $MINIHAARES_CACHE, or the platform's cache folder

    def __post_init__(self) -> None:
        for name in ("data_dir", "cache_dir"):  # as they come back from JSON
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, Path(getattr(self, name)))
        for name, allowed in (
            ("tokenizer", ("char", "bpe")),
            ("record", ("auto", *RECORDS)),
            ("remainder", ("auto", "drop", "pad")),
            ("frame", ("auto", "bare", "bos_eot")),
        ):
            if getattr(self, name) not in allowed:
                raise DataError(f"{name} is '{getattr(self, name)}'; it can be {', '.join(allowed)}.")
        for name in ("context", "stories", "valid_stories", "limit", "vocab_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise DataError(f"{name} is {getattr(self, name)}; it must be at least 1.")


@dataclass(frozen=True)
class Corpus:
    """Encoded text, ready to train on. The arrays are memory-mapped: the disk is read as they are."""

    name: str
    source: str  # one line: what was read, and how it was split
    hash: str  # of the text of both splits, record by record; the same for every tokenizer and context
    tokenizer: Tokenizer
    train: np.ndarray  # [n, context + 1], uint16 if every id fits, else int32; padded with PAD
    valid: np.ndarray  # [m, context + 1]
    kept: float  # share of the training text's characters that stand in a chunk
    characters_per_token: float  # of the training text; 1 for char
    floor: float | None = None  # nats per predicted token on `valid`, of a perfect reader (stories in characters)
    forgetful: float | None = None  # the same, of a reader that knows the grammar but forgets earlier sentences
    record: str = "record"  # what one record is
    remainder: str = "drop"  # drop or pad
    frame: str = "bare"  # bare or bos_eot

    def describe(self) -> str:
        """Three lines for a reader: what was read, what became of it, in which tokens."""
        entries = f"{self.tokenizer.vocab_size:,} entries"
        if isinstance(self.tokenizer, CharTokenizer):
            entries += f" ({len(SPECIALS)} special, {len(self.tokenizer.characters):,} characters of the training text)"
        return (
            f"{self.name}: {self.source}\n"
            f"a record is a {self.record}, remainders: {self.remainder}; {self.kept:.1%} of the training characters "
            f"kept, in {len(self.train):,} chunks of {self.train.shape[1]:,} tokens; {len(self.valid):,} to validate\n"
            f"{self.tokenizer.kind} tokenizer {self.tokenizer.hash}: {entries}, "
            f"{self.characters_per_token:.3g} characters a token"
        )


def known_corpora() -> tuple[str, ...]:
    """The names that `DataConfig.corpus` knows. The path of any text file or folder will do as well."""
    return (*BUILT_IN, *HUB)


def batch(chunks: np.ndarray, step: int, batch_size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets [batch_size, context] (int64) of training step `step`, counted from 0; padding becomes -100.

    A pure function: every epoch is a permutation of all chunks drawn from (seed, epoch), and step s takes the
    positions s * batch_size ... of their endless sequence. So each chunk comes once an epoch, a batch may reach
    into the next epoch or span several, and a resumed run needs to remember nothing but its step."""
    if not len(chunks) or step < 0 or batch_size < 1:
        raise DataError(
            f"No batch {step} of {batch_size} from {len(chunks)} chunks: all but the step must be positive."
        )
    epochs, places = np.divmod(np.arange(step * batch_size, (step + 1) * batch_size), len(chunks))
    orders = [_epoch_order(len(chunks), seed, int(epoch))[places[epochs == epoch]] for epoch in np.unique(epochs)]
    rows = torch.from_numpy(chunks[np.concatenate(orders)].astype(np.int64))
    targets = rows[:, 1:].clone()
    targets[targets == PAD] = IGNORED
    return rows[:, :-1].contiguous(), targets


@lru_cache(maxsize=4)
def _epoch_order(chunks: int, seed: int, epoch: int) -> np.ndarray:
    order = np.random.default_rng((seed, epoch)).permutation(chunks)
    order.flags.writeable = False  # it is shared by all who ask
    return order


def chunk(ids: np.ndarray, size: int, pad: bool) -> np.ndarray:
    """Cut the ids [n] of one record into chunks [m, size], in order and without overlap.

    The remainder is dropped or, with `pad`, filled up with PAD. A remainder of a single id is dropped in either
    case, for nothing in it can be predicted."""
    whole, rest = divmod(len(ids), size)
    if not pad or rest < 2:
        return ids[: whole * size].reshape(whole, size)
    rows = np.full((whole + 1, size), PAD, dtype=ids.dtype)
    rows.reshape(-1)[: len(ids)] = ids
    return rows


def load_corpus(config: DataConfig, progress: bool = True) -> Corpus:
    """Find the text, cut it into records, learn a tokenizer from the training split, encode both splits.

    The result is kept on disk under a name made from everything it depends on, and held to its checksums when it is
    read again; a damaged cache is reported and built anew. DataError, in one sentence, for text that cannot be
    used."""
    text = find_text(
        config.corpus,
        config.data_dir,
        config.record,
        config.limit,
        (config.stories, config.valid_stories),
        progress,
    )
    recipe = {
        "format": CACHE_FORMAT,
        "text": text.fingerprint(),
        "record": text.record,
        "limit": config.limit,
        "tokenizer": config.tokenizer,
        "vocab_size": config.vocab_size or {"char": 256, "bpe": 4096}[config.tokenizer],
        "chunk": config.context + 1,
        "pad": text.padded if config.remainder == "auto" else config.remainder == "pad",
        "frame": text.framed if config.frame == "auto" else config.frame == "bos_eot",
    }
    root = config.cache_dir or os.environ.get("MINIHAARES_CACHE") or platformdirs.user_cache_path("minihaares")
    key = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:16]
    folder = Path(root) / f"{text.name}-{config.tokenizer}-{key}"
    try:
        corpus = _read_cache(folder, recipe)
        if corpus is None:
            folder.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(folder / "lock"):  # of several processes one builds, the others wait for it
                if not (corpus := _read_cache(folder, recipe)):
                    _build_cache(folder, recipe, text)
                    corpus = _read_cache(folder, recipe)
    except OSError as error:
        raise DataError(
            f"The encoded text cannot be kept in {folder} ({error.strerror or error}): free some space, or name "
            "another folder with --cache-dir or MINIHAARES_CACHE."
        ) from error
    if corpus is None:
        raise DataError(f"What was just written to {folder} does not read back: is the disk in order?")
    return corpus


# The cache: train.npy, valid.npy, tokenizer.json, and meta.json, which is written last ------------------------


def _build_cache(folder: Path, recipe: dict[str, Any], text: Stories | Text) -> None:
    learn = train_char if recipe["tokenizer"] == "char" else train_bpe
    tokenizer = learn(text.records("train"), recipe["vocab_size"])
    text_hash = hashlib.sha256()

    def watched(split: str) -> Iterable[str]:
        for record in text.records(split):
            text_hash.update(f"{split} {len(record)} {record}".encode())
            yield record

    splits = {}
    for split in ("train", "valid"):
        temporary = folder / f".{split}.{os.getpid()}.tmp"
        try:
            tally = _write_chunks(temporary, watched(split), tokenizer, recipe)
            _check(tally, split, recipe, text)
            splits[split] = asdict(tally) | {"sha256": _file_hash(temporary)}
            os.replace(temporary, folder / f"{split}.npy")
        finally:
            temporary.unlink(missing_ok=True)
    save_tokenizer(tokenizer, folder / "tokenizer.json")
    floor, forgetful = text.floors(tokenizer) if recipe["pad"] and recipe["frame"] else (None, None)
    train = splits["train"]
    meta = {
        "recipe": recipe,
        "revision": text.revision,
        "splits": splits,
        "corpus": {
            "name": text.name,
            "source": text.describe(),
            "hash": text_hash.hexdigest()[:16],
            "kept": train["kept"] / train["characters"],
            "characters_per_token": train["characters"] / train["tokens"],
            "floor": floor,
            "forgetful": forgetful,
            "record": text.record,
            "remainder": "pad" if recipe["pad"] else "drop",
            "frame": "bos_eot" if recipe["frame"] else "bare",
        },
        "tokenizer_hash": tokenizer.hash,
    }
    write_whole(folder / "meta.json", json.dumps(meta, indent=1) + "\n")


@dataclass
class _Tally:
    dtype: str
    shape: tuple[int, int]
    characters: int = 0
    kept: int = 0  # characters that stand in a chunk
    tokens: int = 0
    longest: int = 0  # tokens of the longest record, with its frame


def _write_chunks(path: Path, texts: Iterable[str], tokenizer: Tokenizer, recipe: dict[str, Any]) -> _Tally:
    """Encode `texts` into a .npy file of chunks without ever holding more than a block of them in memory."""
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)
    size, rows_written = recipe["chunk"], 0
    tally = _Tally(dtype.name, (0, size))

    def write_header(handle: Any) -> None:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows_written, size)}
        np.lib.format.write_array_header_1_0(handle, header)  # numpy leaves room for the first number to grow

    with path.open("wb") as handle:
        write_header(handle)
        start = handle.tell()
        for group in blocks(texts):
            encoded = tokenizer.encode_batch(group)
            tally.characters += sum(map(len, group))
            tally.tokens += sum(map(len, encoded))
            if recipe["frame"]:
                encoded = [np.concatenate([[BOS], ids, [EOT]]) for ids in encoded]
            tally.longest = max(tally.longest, *map(len, encoded))
            rows = np.concatenate([chunk(ids, size, recipe["pad"]) for ids in encoded])
            assert not rows.size or rows.max() <= np.iinfo(dtype).max, "an id does not fit in the file"
            tally.kept += int(tokenizer.widths[rows].sum())
            rows_written += len(rows)
            handle.write(rows.astype(dtype).tobytes())
        handle.seek(0)
        write_header(handle)
        assert handle.tell() == start, "the header has grown over the first chunk"
    tally.shape = (rows_written, size)
    return tally


def _check(tally: _Tally, split: str, recipe: dict[str, Any], text: Stories | Text) -> None:
    """DataError for text that would give no chunk, or stories that a chunk would cut in two."""
    if isinstance(text, Stories) and recipe["pad"] and recipe["frame"] and tally.longest > recipe["chunk"]:
        raise DataError(
            f"The longest story has {tally.longest - 2} tokens and a beginning and an end: use --context "
            f"{tally.longest - 1} or more, not {recipe['chunk'] - 1}."
        )
    if not tally.shape[0]:
        needs = 2 if recipe["pad"] else recipe["chunk"]
        advice = "" if recipe["pad"] else "a smaller --context, --remainder pad, or "
        raise DataError(
            f"No {text.record} of the {split} text fills a chunk, which takes {needs} tokens; the longest has "
            f"{tally.longest}: use {advice}longer text."
        )


def _read_cache(folder: Path, recipe: dict[str, Any]) -> Corpus | None:
    """The corpus kept in `folder`; None if there is none, or if it is damaged, which is then said."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["recipe"] != recipe:
            raise DataError("it was made by another recipe")
        tokenizer = load_tokenizer(folder / "tokenizer.json")
        if tokenizer.hash != meta["tokenizer_hash"]:
            raise DataError("its tokenizer is another one")
        arrays = {}
        for split, facts in meta["splits"].items():
            path = folder / f"{split}.npy"
            if _file_hash(path) != facts["sha256"]:
                raise DataError(f"the contents of {path.name} have changed")
            arrays[split] = np.load(path, mmap_mode="r", allow_pickle=False)
        return Corpus(tokenizer=tokenizer, **arrays, **meta["corpus"])
    except FileNotFoundError as error:
        if Path(error.filename).name != "meta.json":
            log.warning("The cache %s is not whole (%s is missing): building it again.", folder, error.filename)
    except (DataError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("The cache %s is damaged (%s): building it again.", folder, error)
    return None


def _file_hash(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
