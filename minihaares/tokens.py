"""Text to numbers and back: the paper's character tokenizer and a byte-level BPE.

Every tokenizer has the same four special ids, and no text ever produces them: a story that happens to contain the
letters `<|endoftext|>` is encoded as those thirteen letters. Only code that asks for PAD, BOS or EOT by number
gets one, and UNK stands for a character that the tokenizer has never met.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

PAD, UNK, BOS, EOT = range(4)
SPECIALS = ("<|pad|>", "<|unk|>", "<|bos|>", "<|endoftext|>")
CODE_POINTS = 0x110000
BLOCK = 1 << 20  # characters handled at a time, so that memory does not grow with the corpus


class DataError(ValueError):
    """Something about the text, or about how it was asked for, that one sentence can explain."""


class Tokenizer(Protocol):
    """What the rest of the package asks of a tokenizer."""

    kind: str
    vocab_size: int

    @property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of `to_json()`."""

    @property
    def widths(self) -> np.ndarray:
        """[vocab_size] int64: characters of text that each id stands for (those that *begin* in it, for bytes)."""

    def encode(self, text: str) -> np.ndarray:
        """int32 ids of `text`, without any special id but UNK. DataError for a lone surrogate."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`[encode(text) for text in texts]`, faster."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`: PAD, BOS and EOT leave no trace, UNK becomes U+FFFD. DataError for an id too large."""

    def unseen(self, text: str) -> list[str]:
        """The characters of `text` that would become UNK, sorted."""

    def to_json(self) -> str:
        """All there is to know, as one line of ASCII; `tokenizer_from_json` reads it back."""


def blocks(texts: Iterable[str], size: int = BLOCK) -> Iterator[list[str]]:
    """`texts` in groups of about `size` characters: enough to keep numpy busy, small enough for any memory."""
    group, length = [], 0
    for text in texts:
        group.append(text)
        length += len(text)
        if length >= size:
            yield group
            group, length = [], 0
    if group:
        yield group


def code_points(text: str) -> np.ndarray:
    """uint32 [len(text)]: the code point of every character. DataError for half of a surrogate pair."""
    try:
        return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    except UnicodeEncodeError as error:
        raise DataError(
            f"Character {error.start} of the text is the lone surrogate U+{ord(text[error.start]):04X}, half of a "
            "character: remove it, or decode the file it comes from as UTF-8."
        ) from None


def _checked_ids(ids: Iterable[int], vocab_size: int) -> np.ndarray:
    array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.int64).reshape(-1)
    if array.size and not 0 <= array.min() <= array.max() < vocab_size:
        raise DataError(
            f"Id {int(array.max() if array.max() >= vocab_size else array.min())} does not belong to a tokenizer of "
            f"{vocab_size} entries: use the tokenizer that the ids were made with."
        )
    return array


class CharTokenizer:
    """One id a character: four special ids, then `characters` in the given order (the paper's, section 5.1)."""

    kind = "char"

    def __init__(self, characters: str) -> None:
        if len(set(characters)) != len(characters):
            raise DataError("A character tokenizer needs every character once; this one repeats some.")
        self.characters = characters
        self.vocab_size = len(SPECIALS) + len(characters)
        codes = code_points(characters)
        self._id_of = np.full(CODE_POINTS, UNK, dtype=np.int32)
        self._id_of[codes] = np.arange(len(SPECIALS), self.vocab_size)
        self._code_of = np.concatenate([np.full(len(SPECIALS), 0xFFFD, dtype="<u4"), codes])

    @cached_property
    def hash(self) -> str:
        return _hash(self.to_json())

    @cached_property
    def widths(self) -> np.ndarray:
        widths = np.ones(self.vocab_size, dtype=np.int64)
        widths[[PAD, BOS, EOT]] = 0
        return widths

    def encode(self, text: str) -> np.ndarray:
        if len(text) <= BLOCK:
            return self._id_of[code_points(text)]
        ids = np.empty(len(text), dtype=np.int32)
        for start in range(0, len(text), BLOCK):
            ids[start : start + BLOCK] = self._id_of[code_points(text[start : start + BLOCK])]
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return np.split(self.encode("".join(texts)), np.cumsum([len(text) for text in texts])[:-1]) if texts else []

    def decode(self, ids: Iterable[int]) -> str:
        array = _checked_ids(ids, self.vocab_size)
        return self._code_of[array[self.widths[array] > 0]].tobytes().decode("utf-32-le")

    def unseen(self, text: str) -> list[str]:
        return sorted(set(text) - set(self.characters))

    def to_json(self) -> str:
        return json.dumps({"kind": "char", "specials": SPECIALS, "characters": self.characters})


class BPETokenizer:
    """Byte-level BPE of the `tokenizers` library: any text is representable, so UNK never occurs."""

    kind = "bpe"

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        for number, name in enumerate(SPECIALS):
            if backend.token_to_id(name) != number:
                raise DataError(f"This BPE tokenizer does not keep id {number} for {name}; train one with train_bpe.")
        # Off by default in the library: text that spells a special token would become that token.
        backend.encode_special_tokens = True
        self._backend = backend
        self.vocab_size = backend.get_vocab_size()

    @cached_property
    def hash(self) -> str:
        return _hash(self.to_json())

    @cached_property
    def widths(self) -> np.ndarray:
        byte_of = _byte_of_letter()
        starts = {letter for letter, byte in byte_of.items() if not 0x80 <= byte < 0xC0}  # not a continuation byte
        widths = np.zeros(self.vocab_size, dtype=np.int64)
        for number in range(len(SPECIALS), self.vocab_size):
            widths[number] = sum(letter in starts for letter in self._backend.id_to_token(number))
        return widths

    def encode(self, text: str) -> np.ndarray:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        for text in texts:
            code_points(text)  # the library would say only "must be str"
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        array = _checked_ids(ids, self.vocab_size)
        return self._backend.decode(array[array >= len(SPECIALS)].tolist(), skip_special_tokens=False)

    def unseen(self, text: str) -> list[str]:
        return []

    def to_json(self) -> str:
        return json.dumps({"kind": "bpe", "specials": SPECIALS, "tokenizer": json.loads(self._backend.to_str())})


def _byte_of_letter() -> dict[str, int]:
    """ByteLevel writes each byte as one printable letter: itself where it is printable, else the next from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def train_char(texts: Iterable[str], vocab: int = 256) -> CharTokenizer:
    """The paper's tokenizer: four special ids and the `vocab - 4` most frequent characters of `texts`.

    Ties go to the smaller code point; a text with fewer distinct characters gets a smaller tokenizer.
    DataError if `vocab` leaves no room for a character or there is no text."""
    if vocab <= len(SPECIALS):
        raise DataError(
            f"vocab_size {vocab} leaves no room beside the {len(SPECIALS)} special entries; the paper has 256."
        )
    counts = np.zeros(CODE_POINTS, dtype=np.int64)
    for group in blocks(texts):
        found = np.bincount(code_points("".join(group)))
        counts[: len(found)] += found
    present = np.flatnonzero(counts)
    if not present.size:
        raise DataError("There is no text to make a tokenizer from.")
    frequent_first = present[np.lexsort((present, -counts[present]))]
    return CharTokenizer("".join(map(chr, frequent_first[: vocab - len(SPECIALS)])))


def train_bpe(texts: Iterable[str], vocab: int = 4096) -> BPETokenizer:
    """Byte-level BPE with `vocab` entries: four special, 256 bytes, then merges. Deterministic for the same texts.

    A short text may run out of merges and give fewer entries. DataError if `vocab` is under 260 or there is no text."""
    smallest = len(SPECIALS) + 256
    if vocab < smallest:
        raise DataError(
            f"vocab_size {vocab} is too small for byte-level BPE: it needs {smallest} (4 special and 256 bytes)."
        )
    met_text = False

    def checked() -> Iterator[str]:
        nonlocal met_text
        for text in texts:
            code_points(text)
            met_text = met_text or bool(text)
            yield text

    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(checked(), trainer)
    if not met_text:
        raise DataError("There is no text to make a tokenizer from.")
    return BPETokenizer(backend)


def tokenizer_from_json(text: str) -> Tokenizer:
    """The tokenizer that `to_json` wrote. DataError if `text` is anything else."""
    try:
        saved = json.loads(text)
    except ValueError:
        raise DataError("This is not the JSON of a tokenizer: it does not parse.") from None
    if not isinstance(saved, dict) or saved.get("specials") != list(SPECIALS):
        raise DataError("This is not the JSON of a minihaares tokenizer: it lacks our four special entries.")
    if saved.get("kind") == "char" and isinstance(saved.get("characters"), str):
        return CharTokenizer(saved["characters"])
    if saved.get("kind") == "bpe" and isinstance(saved.get("tokenizer"), dict):
        try:
            backend = tokenizers.Tokenizer.from_str(json.dumps(saved["tokenizer"]))
        except Exception as error:  # the library raises the bare class, so there is no narrower one to catch
            raise DataError(f"The BPE part of this tokenizer is damaged ({error}): train it again.") from None
        return BPETokenizer(backend)
    raise DataError(f"Unknown kind of tokenizer {saved.get('kind')!r}: there are 'char' and 'bpe'.")


def save_tokenizer(tokenizer: Tokenizer, path: Path | str) -> None:
    """Write `tokenizer` as JSON; the file appears whole or not at all."""
    write_whole(Path(path), tokenizer.to_json() + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a text file under a temporary name, then rename it: nobody ever reads half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Read what `save_tokenizer` wrote. DataError naming the file if it is missing, damaged or foreign."""
    try:
        return tokenizer_from_json(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"There is no tokenizer at {path}.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a tokenizer file: it is not text.") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
