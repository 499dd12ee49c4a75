"""Where text comes from, and how it is split in two.

A corpus is named, or is the path of a text file or folder. A named one that lives on the Hugging Face hub is
looked for in a folder laid out like the hub's data set (data_dir), then in the hub's cache on this machine, then on
the hub. Which of them it was is always said; nothing is ever put in the place of what was asked for.

`find_text` returns a `Stories` or a `Text`. Both yield the records of "train" and "valid", say in one line what
they read, and have a fingerprint that changes with the text.
"""

import difflib
import hashlib
import logging
import platform
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from . import stories
from .hub import HUB, HubDataset, fetch
from .records import has_separator, table_records, text_records
from .tokens import DataError, Tokenizer

BUILT_IN = ("stories", "python-source", "local")
TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", ".py")
SMALL = 1 << 28  # bytes of text that are kept in memory rather than read again for every pass
SPLIT_SEED = 42
STORY_SEEDS = {"train": 42, "valid": 43}
log = logging.getLogger(__name__)


def reads_folder(corpus: str) -> bool:
    """Whether a corpus can lie in a folder of the user's; the built-in ones are made, or part of Python."""
    return corpus in HUB or corpus == "local"


def find_text(
    corpus: str,
    data_dir: Path | None = None,
    record: str = "auto",
    limit: int | None = None,
    story_counts: tuple[int, int] = (20_000, 1_000),
    progress: bool = False,
) -> "Stories | Text":
    """The text of a corpus. DataError, in one sentence, if there is none or the arguments contradict each other."""
    if corpus in HUB:
        source = _mirror(corpus, data_dir) if data_dir else HubSource(corpus, HUB[corpus], progress)
        return Text(source, record, limit, progress)
    if corpus == "local":
        if data_dir is None:
            raise DataError("Corpus 'local' needs --data-dir, the text file or folder to read.")
        return Text(_local(data_dir), record, limit, progress)
    if data_dir is not None:
        raise DataError(
            f"Corpus '{corpus}' is not read from a data folder: drop --data-dir, or say --corpus local to read the "
            f"text in {data_dir}."
        )
    if corpus == "stories":
        return Stories(story_counts, record, limit)
    if corpus == "python-source":
        return Text(_standard_library(), record, limit, progress)
    if corpus and Path(corpus).expanduser().exists():
        return Text(_local(Path(corpus).expanduser()), record, limit, progress)
    known = (*BUILT_IN, *HUB)
    close = difflib.get_close_matches(corpus.lower(), known, n=2)
    hint = f"did you mean {' or '.join(close)}?" if close else "there is no such file or folder either."
    raise DataError(
        f"Unknown corpus '{corpus}'; {hint} Known: {', '.join(known)}, or the path of a text file or folder."
    )


class Stories:
    """The built-in stories, with the surprisal of every character. They are framed and padded unless told otherwise."""

    name, record, revision, framed, padded = "stories", "story", None, True, True

    def __init__(self, counts: tuple[int, int], record: str, limit: int | None) -> None:
        if record not in ("auto", "story"):
            raise DataError(f"A record of the built-in stories is a story; --record {record} is for other text.")
        self.counts, self.limit = dict(zip(STORY_SEEDS, counts, strict=True)), limit
        self._written: dict[str, list[stories.Story]] = {}

    def fingerprint(self) -> str:
        grammar = hashlib.sha256(Path(stories.__file__).read_bytes()).hexdigest()
        return f"stories {self.counts} {STORY_SEEDS} {grammar}"

    def stories(self, split: str) -> list[stories.Story]:
        if split not in self._written:
            written = stories.write_stories(self.counts[split], STORY_SEEDS[split])
            fits = sum(1 for _ in limited((story.text for story in written), self.limit, cut=False))
            if not fits:
                raise DataError(f"No story fits in {self.limit} characters: raise --limit.")
            self._written[split] = written[:fits]
        return self._written[split]

    def records(self, split: str) -> Iterator[str]:
        return (story.text for story in self.stories(split))

    def describe(self) -> str:
        seeds = f"seed {STORY_SEEDS['train']} for training, {STORY_SEEDS['valid']} for validation"
        return f"built-in stories, {len(self.stories('train')):,} and {len(self.stories('valid')):,}; split: {seeds}"

    def floors(self, tokenizer: Tokenizer) -> tuple[float | None, float | None]:
        """Mean surprisal (nats) of a character or end over the validation stories, of the perfect and of the
        forgetful reader. None if the tokenizer merges or does not know some characters: then these are not the
        symbols that are predicted."""
        valid = self.stories("valid")
        if tokenizer.kind != "char":
            return None, None
        if unseen := tokenizer.unseen("".join(story.text for story in valid)):
            log.warning("No floor is given: the training stories never use %s. Write more of them.", "".join(unseen))
            return None, None
        symbols = sum(len(story.text) + 1 for story in valid)
        exact = sum(float(story.surprisal.sum()) for story in valid)
        forgetful = sum(float(stories.forgetful_surprisal(story).sum()) for story in valid)
        return exact / symbols, forgetful / symbols


class Text:
    """The records of any other corpus. Where it has no validation part, a twentieth of the records is held out."""

    framed, padded = False, False

    def __init__(self, source: "Source", record: str, limit: int | None, progress: bool) -> None:
        self.source, self.limit, self.progress = source, limit, progress
        self.name, self.revision = source.name, source.revision
        self.record = source.record if record == "auto" else record
        self._small = source.size < SMALL or (limit is not None and limit < SMALL)
        self._memory: dict[str, list[str]] = {}
        self._held_out: np.ndarray | None = None  # [records] bool, once they have been counted

    def fingerprint(self) -> str:
        return self.source.fingerprint()

    def records(self, split: str) -> Iterator[str]:
        """The records of "train" or "valid". DataError if there are none."""
        if self.source.valid:
            yield from self._all(split)
            return
        if self._held_out is None:
            self._held_out = hold_out(sum(1 for _ in self._all("train")))
        if len(self._held_out) == 1:
            (only,) = self._all("train")
            border = len(only) - max(1, round(len(only) / 20))
            yield only[:border] if split == "train" else only[border:]
        else:
            held = zip(self._all("train"), self._held_out, strict=True)
            yield from (text for text, is_held in held if is_held == (split == "valid"))

    def describe(self) -> str:
        if self.source.valid:
            split = "the corpus's own files"
        elif self._held_out is not None and len(self._held_out) == 1:
            split = "one record, its last 5 % held out"
        else:
            split = f"5 % of the records held out at random (seed {SPLIT_SEED})"
        limit = f"; at most {self.limit:,} characters read" if self.limit is not None else ""
        return f"{self.source.where()}; split: {split}{limit}"

    def floors(self, tokenizer: Tokenizer) -> tuple[None, None]:
        return None, None  # nobody knows how low the loss on such text can go

    def _all(self, split: str) -> Iterable[str]:
        if not self._small:
            return self._read(split)
        if split not in self._memory:
            self._memory[split] = list(self._read(split))
        return self._memory[split]

    def _read(self, split: str) -> Iterator[str]:
        texts: Iterable[str] = limited(self.source.records(split, self.record), self.limit, cut=self.record == "file")
        if self.progress:
            texts = tqdm(texts, desc=f"reading {self.name}", unit=" records", leave=False)
        empty = True
        for text in texts:
            empty = False
            yield text
        if empty:
            reason = f", or none within --limit {self.limit}" if self.limit is not None else ""
            raise DataError(f"There is no text for '{split}' in {self.source.where()}{reason}: choose other text.")


def hold_out(records: int) -> np.ndarray:
    """[records] bool: a random twentieth, at least one, always the same for the same number of records."""
    held = np.zeros(records, dtype=bool)
    order = np.random.default_rng(SPLIT_SEED).permutation(records)
    held[order[: max(1, round(records / 20))]] = True
    return held


def limited(texts: Iterable[str], limit: int | None, cut: bool) -> Iterator[str]:
    """The first texts that fit in `limit` characters. The one that no longer fits is cut to fit, or left out."""
    left = limit
    for text in texts:
        if left is not None and len(text) > left:
            if cut and left:
                yield text[:left]
            return
        left = None if left is None else left - len(text)
        yield text


# Files -------------------------------------------------------------------------------------------------------


class Source:
    """Files on this machine, with a part for validation if they came that way."""

    revision: str | None = None

    def __init__(self, name: str, place: str, train: list[Path], valid: list[Path], record: str) -> None:
        self.name, self.place, self.record = name, place, record
        self.train, self.valid = train, valid
        self.column: str | None = None  # of parquet files; None for plain text
        self.size = sum(path.stat().st_size for path in train)

    def where(self) -> str:
        """One phrase that names what was read."""
        return self.place

    def fingerprint(self) -> str:
        """Changes with every byte of the text, and with the place it is read from."""
        digest = hashlib.sha256(f"{self.place} {len(self.train)} {self.column}".encode())
        for path in [*self.train, *self.valid]:
            try:
                with path.open("rb") as handle:
                    digest.update(hashlib.file_digest(handle, "sha256").digest())
            except OSError as error:
                raise DataError(f"{path} cannot be read ({error.strerror}): check it, or move it away.") from None
        return digest.hexdigest()

    def records(self, split: str, record: str) -> Iterator[str]:
        for file in self.train if split == "train" else self.valid:
            path = self.open(file)
            if self.column is None:
                yield from text_records(path, record)
            else:
                yield from table_records(path, self.column, record, row_is=self.record)

    def open(self, file: Path) -> Path:
        return file


class HubSource(Source):
    """Files of a hub data set, each fetched when it is first read, so that a limit saves the rest of a download."""

    def __init__(self, name: str, dataset: HubDataset, progress: bool) -> None:
        self.name, self.record, self.column = name, dataset.record, dataset.column
        self.train, self.valid = dataset.train, dataset.valid
        self.dataset, self.revision, self.progress = dataset, dataset.revision, progress
        self.size = SMALL  # not known yet, so not counted on to be small
        self._downloaded = False

    def where(self) -> str:
        return f"{'hub' if self._downloaded else 'hub cache'} {self.dataset.repo}@{self.revision[:8]}"

    def fingerprint(self) -> str:
        return f"{self.dataset}"  # a revision never changes

    def open(self, file: str) -> Path:
        path, origin = fetch(self.name, self.dataset, file, self.progress)
        self._downloaded |= origin == "hub"
        return path


def _mirror(name: str, folder: Path) -> Source:
    dataset = HUB[name]
    train = [file for file in dataset.train if (folder / file).is_file()]
    missing = [file for file in dataset.valid if not (folder / file).is_file()] or ([] if train else dataset.train)
    if missing:
        raise DataError(
            f"{folder} is not laid out like the hub's {dataset.repo}: it has no {missing[0]}. Copy the data set "
            "there, or say --corpus local to read whatever text it has."
        )
    place = f"local folder {folder}"
    if len(dataset.train) > 1:
        place += f" ({len(train)} of {len(dataset.train)} training files)"
    source = Source(
        name, place, [folder / file for file in train], [folder / file for file in dataset.valid], dataset.record
    )
    source.column = dataset.column
    return source


def _standard_library() -> Source:
    """Python's own modules, without its tests and without installed packages: code that is always at hand."""
    root = Path(sysconfig.get_path("stdlib"))
    other = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    files = sorted(path for path in root.rglob("*.py") if not other & set(path.relative_to(root).parts))
    if not files:
        raise DataError(f"This Python keeps no source files in {root}: choose another corpus.")
    place = f"Python {platform.python_version()} standard library, {len(files)} files in {root}"
    return Source("python-source", place, files, [], "file")


def _local(path: Path) -> Source:
    if path.is_file():
        files, place = [path], f"local file {path}"
    elif path.is_dir():
        files = sorted(
            file
            for file in path.rglob("*")
            if file.suffix.lower() in TEXT_SUFFIXES
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
        place = f"local folder {path}"
    else:
        raise DataError(f"There is no file or folder {path}: check the path.")
    if not files:
        raise DataError(f"There is no text in folder {path}: no file in it ends in {', '.join(TEXT_SUFFIXES)}.")
    if not any(file.stat().st_size for file in files):
        raise DataError(f"{path} is empty: put text in it, or use --corpus stories.")
    train = [file for file in files if _role(file, path) == "train"]
    valid = [file for file in files if _role(file, path) == "valid"]
    if train and valid:
        unread = len(files) - len(train) - len(valid)
        place += f" ({len(train)} training and {len(valid)} validation files, {unread} others not read)"
    else:
        train, valid = files, []
        place += f" ({len(files)} files)" if len(files) > 1 else ""
    record = "story" if any(map(has_separator, train)) else "file"
    return Source(path.resolve().name or "local", place, train, valid, record)


def _role(file: Path, root: Path) -> str | None:
    """What a file is for, if its name or a folder on the way says so: `x-train.txt`, `valid.txt`, `train/x.txt`."""
    words = {re.split(r"[-_.]", file.stem.lower())[-1]}
    words.update(part.lower() for part in file.relative_to(root).parts[:-1])
    if words & {"train", "training"}:
        return "train"
    return "valid" if words & {"valid", "validation", "val", "dev"} else None
