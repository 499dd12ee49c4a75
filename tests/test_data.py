"""Corpora, records, chunks, batches and their cache; the hub is a small server on this machine."""

import hashlib
import json
import logging
import re
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minihaares import corpora, data, hub, records, stories
from minihaares.data import BOS, EOT, IGNORED, PAD, UNK, DataConfig, DataError, batch, chunk, load_corpus

SAMPLE = Path(__file__).parents[2] / "shared" / "data" / "tinystories"
needs_sample = pytest.mark.skipif(not SAMPLE.is_dir(), reason="the TinyStories sample is not on this machine")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIHAARES_CACHE", str(tmp_path / "cache"))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))
    return path


def load(corpus, **options):
    return load_corpus(DataConfig(corpus=str(corpus), **{"context": 7, **options}), progress=False)


def texts(corpus, split="train"):
    """Chunks as text, special ids gone."""
    return [corpus.tokenizer.decode(row) for row in getattr(corpus, split)]


def refusal(corpus, **options) -> str:
    with pytest.raises(DataError) as caught:
        load(corpus, **options)
    message = str(caught.value)
    assert "\n" not in message and re.search(r"[.?]$", message), "one clear sentence, please"
    return message


def cached(tmp_path: Path) -> Path:
    (meta,) = (tmp_path / "cache").glob("*/meta.json")
    return meta.parent


# Batches -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 17), st.integers(0, 5), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_chunk_comes_once_an_epoch(chunks, batch_size, seed, epoch):
    rows = np.repeat(np.arange(1, chunks + 1, dtype=np.uint16)[:, None], 3, axis=1)
    steps = range((epoch + 1) * chunks // batch_size + 1)
    order = [int(i) for step in steps for i in batch(rows, step, batch_size, seed)[0][:, 0]]
    assert sorted(order[epoch * chunks : (epoch + 1) * chunks]) == list(range(1, chunks + 1))


@given(st.integers(1, 30), st.integers(1, 70), st.integers(0, 200), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_batch_depends_on_nothing_but_its_arguments(chunks, batch_size, step, seed):
    rows = np.random.default_rng(0).integers(0, 90, (chunks, 5)).astype(np.uint16)
    first = batch(rows, step, batch_size, seed)
    data._epoch_order.cache_clear()  # a resumed run has seen no earlier step
    for other in (0, step + 3, step // 2):
        batch(rows, other, batch_size, seed + 1)
    again = batch(rows, step, batch_size, seed)
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))
    assert first[0].shape == first[1].shape == (batch_size, 4)
    assert first[0].dtype == first[1].dtype and str(first[0].dtype) == "torch.int64"


def test_targets_are_the_next_tokens_and_padding_is_ignored():
    rows = np.array([[BOS, 9, 8, EOT, PAD, PAD]], dtype=np.uint16)
    inputs, targets = batch(rows, 0, 2, 42)
    assert inputs.tolist() == [[BOS, 9, 8, EOT, PAD]] * 2
    assert targets.tolist() == [[9, 8, EOT, IGNORED, IGNORED]] * 2
    assert rows.tolist() == [[BOS, 9, 8, EOT, PAD, PAD]]


def test_seeds_and_epochs_give_other_orders():
    rows = np.arange(1, 101, dtype=np.uint16)[:, None].repeat(2, axis=1)
    order = {(seed, step): tuple(batch(rows, step, 100, seed)[0][:, 0].tolist()) for seed in (1, 2) for step in (0, 1)}
    assert len(set(order.values())) == 4
    for arguments in ((rows[:0], 0, 4, 1), (rows, -1, 4, 1), (rows, 0, 0, 1)):
        with pytest.raises(DataError, match="No batch"):
            batch(*arguments)


# Chunks ------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(4, 60), max_size=60), st.integers(2, 9))
@settings(max_examples=80, deadline=None)
def test_chunks_reproduce_a_record(ids, size):
    ids = np.array(ids, dtype=np.int32)
    whole, padded = chunk(ids, size, pad=False), chunk(ids, size, pad=True)
    assert whole.shape == (len(ids) // size, size)
    assert whole.reshape(-1).tolist() == ids[: len(ids) // size * size].tolist()
    alone = len(ids) % size == 1  # a single id that is left predicts nothing
    assert padded[padded != PAD].tolist() == ids[: len(ids) - alone].tolist()
    assert not len(padded) or (padded[:, 1] != PAD).all(), "every chunk has something to predict"


record_text = st.text(st.sampled_from("ab\U0001f642é \t"), max_size=40).filter(str.strip)


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
@given(st.lists(record_text, max_size=8), st.integers(2, 9), st.sampled_from(["bare", "bos_eot"]))
@settings(max_examples=15, deadline=None)
def test_padded_corpora_hold_every_record_and_kept_is_exact(tokenizer, tmp_path_factory, lines, context, frame):
    folder, lines = tmp_path_factory.mktemp("text"), ["a\U0001f642", *lines]  # one line at least makes a chunk
    write(folder / "train.txt", "\n".join(lines))
    write(folder / "valid.txt", "aaaa\n")
    options = dict(record="line", context=context, frame=frame, tokenizer=tokenizer, cache_dir=folder / "cache")
    corpus = load(folder, remainder="pad", **options)
    alone = [
        (ids[-1:] if frame == "bare" and len(ids) % (context + 1) == 1 else ids[:0])
        for ids in corpus.tokenizer.encode_batch(lines)
    ]
    lost = sum(int(corpus.tokenizer.widths[ids].sum()) for ids in alone)
    ids = corpus.train[np.isin(corpus.train, [PAD, BOS, EOT], invert=True)]
    expected = np.concatenate(corpus.tokenizer.encode_batch(lines))
    total = sum(map(len, lines))
    if not lost:
        assert ids.tolist() == expected.tolist()
        assert corpus.tokenizer.decode(ids) == "".join(lines)
    assert corpus.kept == (total - lost) / total
    assert corpus.characters_per_token == total / len(expected)
    if frame == "bos_eot":
        assert (corpus.train == BOS).sum() == len(lines)


def test_dropped_remainders_are_counted_exactly(tmp_path):
    lines = ["x" * n for n in (3, 8, 15, 16, 17, 40)]
    write(tmp_path / "t" / "train.txt", "\n".join(lines))
    write(tmp_path / "t" / "valid.txt", "x" * 9)
    corpus = load(tmp_path / "t", record="line")
    assert corpus.train.shape == (1 + 1 + 2 + 2 + 5, 8)
    assert corpus.kept == 11 * 8 / sum(map(len, lines))
    assert corpus.remainder == "drop" and corpus.frame == "bare" and "88.9%" in corpus.describe()


# Records -----------------------------------------------------------------------------------------------------


def parts(tmp_path, text, record, name="text.txt"):
    return list(records.text_records(write(tmp_path / name, text), record))


def test_only_a_line_that_is_exactly_the_separator_ends_a_story(tmp_path):
    text = "\nOne.\n\nStill one.\n<|endoftext|>\nShe wrote <|endoftext|> here\n <|endoftext|>\n<|endoftext|>\n\n\n"
    expected = ["One.\n\nStill one.", "She wrote <|endoftext|> here\n <|endoftext|>"]
    assert parts(tmp_path, text, "story") == expected
    assert parts(tmp_path, "\ufeff" + text.replace("\n", "\r\n"), "story") == expected


def test_lines_paragraphs_and_files(tmp_path):
    text = "a\n  b  \n\n \n\nc\n<|endoftext|>\nd"
    assert parts(tmp_path, text, "line") == ["a", "  b  ", "c", "d"]
    assert parts(tmp_path, text, "paragraph") == ["a\n  b  ", "c", "d"]
    assert parts(tmp_path, text, "file") == [text]
    assert parts(tmp_path, " \n", "file") == []


@given(text=st.text(st.sampled_from("ab\n\r é"), max_size=80), size=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_blocks_do_not_change_what_is_read(tmp_path_factory, text, size):
    path = write(tmp_path_factory.mktemp("blocks") / "text.txt", text)
    whole = {record: list(records.text_records(path, record)) for record in ("story", "line", "paragraph", "file")}
    assert "".join(records.read(path)) == text.replace("\r\n", "\n").replace("\r", "\n")
    before, records.READ_BYTES = records.READ_BYTES, size
    try:
        assert {record: list(records.text_records(path, record)) for record in whole} == whole
    finally:
        records.READ_BYTES = before


def test_functions_of_python_files(tmp_path):
    source = '''import os
class A:
    @property
    def size(self):
        """Two\\fpages."""
        def inner(): return 1
        return inner()
try:
    async def f(): pass
except ValueError:
    def g(x): return "\\d"
'''
    found = parts(tmp_path, source, "function", "code.py")
    assert [text.splitlines()[0] for text in found] == ["@property", "async def f(): pass", 'def g(x): return "\\d"']
    assert found[0].splitlines()[1] == "def size(self):" and "inner()" in found[0]


def test_characters_of_the_validation_text_do_not_enter_the_tokenizer(tmp_path):
    write(tmp_path / "t" / "x-train.txt", "abababababab")
    write(tmp_path / "t" / "x-valid.txt", "abZabZabZ")
    corpus = load(tmp_path / "t")
    assert corpus.tokenizer.characters == "ab" and (corpus.valid == UNK).sum() == 2


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_control_strings_survive_the_whole_way(tmp_path, tokenizer):
    story = "He typed <unk>, <|pad|>, <|bos|>\n <|endoftext|> and <|unk|>."
    path = write(tmp_path / "stories.txt", f"{story}\n<|endoftext|>\n" * 4)
    corpus = load(path, context=80, remainder="pad", frame="bos_eot", tokenizer=tokenizer)
    assert texts(corpus) == [story] * 3 and texts(corpus, "valid") == [story]
    assert (np.asarray(corpus.train) == EOT).sum() == 3 and not (np.asarray(corpus.train) == UNK).any()
    assert corpus.record == "story" and corpus.kept == 1


# Splits ------------------------------------------------------------------------------------------------------


def test_a_twentieth_of_the_records_is_held_out_by_seed(tmp_path):
    lines = [f"record {i:04d}" for i in range(200)]
    path = write(tmp_path / "lines.txt", "\n".join(lines))
    corpus = load(path, record="line", remainder="pad", context=20)
    train, valid = texts(corpus), texts(corpus, "valid")
    assert len(valid) == 10 and sorted(train + valid) == lines
    assert valid != lines[:10] and valid != lines[-10:]
    assert "5 % of the records held out at random (seed 42)" in corpus.source and str(path) in corpus.source
    assert corpora.hold_out(200).sum() == 10 and corpora.hold_out(2).sum() == 1


def test_one_record_gives_its_end(tmp_path):
    text = "".join(chr(0x4E00 + i) for i in range(400))
    corpus = load(write(tmp_path / "book.txt", text), vocab_size=1000)
    assert corpus.record == "file" and "one record, its last 5 % held out" in corpus.source
    assert "".join(texts(corpus)) == text[:376] and (np.asarray(corpus.valid) == UNK).all()


def test_limits_take_whole_records_but_cut_a_file(tmp_path):
    lines = ["abcdefgh" * 2] * 60
    path = write(tmp_path / "lines.txt", "\n".join(lines))
    corpus = load(path, record="line", limit=16 * 21 + 15)
    assert len(corpus.train) + len(corpus.valid) == 21 * 2 and "at most 351 characters" in corpus.source
    book = write(tmp_path / "book.txt", "abcdefgh" * 100)
    assert load(book, limit=400).train.shape == (47, 8)


def test_a_folder_of_files_and_what_is_not_read(tmp_path):
    for name in ("b/one.md", "a.txt", "c.py"):
        write(tmp_path / "t" / name, f"{name:10}" * 5 + "abcnotexpmdy/.")
    write(tmp_path / "t" / ".hidden.txt", "hidden")
    write(tmp_path / "t" / "picture.png", "no text")
    corpus = load(tmp_path / "t")
    assert corpus.name == "t" and "(3 files)" in corpus.source
    assert {text[:3] for text in [*texts(corpus), *texts(corpus, "valid")]} >= {"b/o", "a.t", "c.p"}
    assert "hidden" not in "".join(texts(corpus) + texts(corpus, "valid"))
    assert load("local", data_dir=tmp_path / "t").hash == corpus.hash


# Bad input ---------------------------------------------------------------------------------------------------


def test_bad_text_is_refused_in_one_sentence(tmp_path):
    assert "is empty" in refusal(write(tmp_path / "empty.txt", ""))
    assert "no text" in refusal(write(tmp_path / "blank.txt", " \n\n "))
    short = refusal(write(tmp_path / "short.txt", "Hello, world, this is short."), context=512)
    assert "takes 513 tokens; the longest has 27" in short and "--context" in short
    (tmp_path / "latin.txt").write_bytes(b"x" * 5000 + b"\ncaf\xe9\n")
    latin = refusal(tmp_path / "latin.txt")
    assert "latin.txt is not UTF-8" in latin and "byte 5004 is 0xe9" in latin and "save it as UTF-8" in latin
    (tmp_path / "folder").mkdir()
    assert "no file in it ends in .txt" in refusal(tmp_path / "folder")
    write(tmp_path / "two.txt", "abc\ndef\n")
    assert "none within --limit 2" in refusal(tmp_path / "two.txt", record="line", limit=2)
    assert "use --record story, paragraph, line or file" in refusal(tmp_path / "two.txt", record="review")
    assert "is none" in refusal(tmp_path / "two.txt", record="function")
    assert "not Python" in refusal(write(tmp_path / "bad.py", "def f(:\n"), record="function")
    (tmp_path / "folder" / "gone.txt").symlink_to(tmp_path / "nowhere")
    assert "no file in it" in refusal(tmp_path / "folder")


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def forbidden(*_):
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "secret.txt", "text")
    monkeypatch.setattr(corpora.hashlib, "file_digest", forbidden)  # tests may run as root, whom nothing is forbidden
    assert f"{path} cannot be read (Permission denied)" in refusal(path)


def test_offsets_of_bad_bytes_count_from_the_start_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "READ_BYTES", 16)
    (tmp_path / "late.txt").write_bytes("é\n".encode() * 40 + b"\xff")
    assert "byte 120 is 0xff" in refusal(tmp_path / "late.txt")


def test_corpora_that_do_not_exist(tmp_path):
    message = refusal("tinystores")
    assert "did you mean tinystories" in message and all(name in message for name in data.known_corpora())
    assert "there is no such file" in refusal(tmp_path / "nowhere.txt")
    assert "Unknown corpus ''" in refusal("")
    assert "needs --data-dir" in refusal("local")
    assert "There is no file or folder" in refusal("local", data_dir=tmp_path / "nowhere")
    assert "drop --data-dir" in refusal("stories", data_dir=tmp_path)
    assert "it has no TinyStoriesV2-GPT4-valid.txt" in refusal("tinystories", data_dir=tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"tokenizer": "word"},
        {"record": "verse"},
        {"remainder": "keep"},
        {"frame": "eot"},
        {"context": 0},
        {"stories": 0},
        {"limit": -1},
        {"vocab_size": 0},
    ],
)
def test_settings_are_checked_at_once(options):
    (name,) = options
    with pytest.raises(DataError, match=f"{name} is"):
        DataConfig(**options)
    assert DataConfig(data_dir="x", cache_dir="y").data_dir == Path("x")  # as JSON brings it back


# The cache ---------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path):
    return write(tmp_path / "lines.txt", "\n".join(f"this is line {i}" for i in range(40)))


def test_the_second_load_reads_what_the_first_wrote(lines, tmp_path, monkeypatch, caplog):
    first = load(lines, record="line")
    meta = json.loads((cached(tmp_path) / "meta.json").read_text())
    assert meta["tokenizer_hash"] == first.tokenizer.hash and meta["corpus"]["source"] == first.source
    for split in ("train", "valid"):
        array, facts = getattr(first, split), meta["splits"][split]
        assert isinstance(array, np.memmap) and not array.flags.writeable
        assert facts["shape"] == list(array.shape) and facts["dtype"] == array.dtype.name == "uint16"
        assert facts["sha256"] == hashlib.sha256((cached(tmp_path) / f"{split}.npy").read_bytes()).hexdigest()
    monkeypatch.setattr(data, "_build_cache", None)
    second = load(lines, record="line")
    assert second.describe() == first.describe() and (second.train == first.train).all()
    assert not caplog.records
    files = {path.name for path in cached(tmp_path).iterdir()}
    assert files <= {"train.npy", "valid.npy", "tokenizer.json", "meta.json", "lock"}, "no temporary file stays"


def test_each_setting_and_each_text_has_its_own_entry(lines, tmp_path):
    load(lines, record="line")
    load(lines, record="line", context=6)
    load(lines, record="line", vocab_size=20)
    lines.write_text(lines.read_text().replace("39", "38"))  # same size
    load(lines, record="line")
    assert len(list((tmp_path / "cache").glob("*/meta.json"))) == 4


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda folder: (folder / "train.npy").write_bytes((folder / "train.npy").read_bytes()[:-2]), "changed"),
        (lambda folder: (folder / "meta.json").write_text('{"recipe": {'), "damaged"),
        (lambda folder: (folder / "meta.json").write_text("[]"), "damaged"),
        (lambda folder: (folder / "valid.npy").unlink(), "missing"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer"),
        (
            lambda folder: (folder / "tokenizer.json").write_text(
                (folder / "tokenizer.json").read_text().replace("this", "siht").replace(" i", "i ")
            ),
            "tokenizer is another one",
        ),
    ],
    ids=["array", "sidecar", "foreign sidecar", "missing", "tokenizer", "other tokenizer"],
)
def test_a_damaged_cache_is_told_and_rebuilt(lines, tmp_path, caplog, damage, said):
    first = load(lines, record="line")
    rows, folder = np.array(first.train), cached(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    del first
    damage(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} != before
    with caplog.at_level(logging.WARNING):
        second = load(lines, record="line")
    assert "building it again" in caplog.text and said in caplog.text
    assert (second.train == rows).all()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_ids_beyond_uint16_take_a_wider_type(tmp_path):
    text = "".join(map(chr, range(0x10000, 0x10000 + 70_000)))
    corpus = load(write(tmp_path / "many.txt", text), vocab_size=80_000)
    assert corpus.train.dtype == np.int32 and corpus.train.max() > 1 << 16
    assert "".join(texts(corpus)) == text[: 66_500 // 8 * 8]


def test_a_cache_that_cannot_be_written(lines, tmp_path, monkeypatch):
    occupied = write(tmp_path / "occupied", "a file")
    assert "name another folder with --cache-dir" in refusal(lines, record="line", cache_dir=occupied)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data.os, "replace", full)
    assert "No space left on device" in refusal(lines, record="line")
    left = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert left == ["lock"]


# The built-in stories ----------------------------------------------------------------------------------------


def test_stories_are_framed_whole_and_their_floors_are_exact():
    corpus = load("stories", context=600, stories=400, valid_stories=25)
    written = stories.write_stories(25, corpora.STORY_SEEDS["valid"])
    assert texts(corpus, "valid") == [story.text for story in written] and len(corpus.train) == 400
    for row, story in zip(np.asarray(corpus.valid), written, strict=True):
        assert row[0] == BOS and row[len(story.text) + 1] == EOT and (row[len(story.text) + 2 :] == PAD).all()
    predicted = int((np.asarray(corpus.valid)[:, 1:] != PAD).sum())
    assert corpus.floor == pytest.approx(sum(story.surprisal.sum() for story in written) / predicted)
    forgetful = sum(stories.forgetful_surprisal(story).sum() for story in written)
    assert corpus.forgetful == pytest.approx(forgetful / predicted) and corpus.forgetful > corpus.floor > 0
    assert corpus.kept == 1 and corpus.frame == "bos_eot" and "built-in stories" in corpus.source
    again = load("stories", context=600, stories=400, valid_stories=25)
    assert (again.floor, again.forgetful) == (corpus.floor, corpus.forgetful)


def test_stories_need_room_and_other_settings_have_no_floor(caplog):
    counts = dict(stories=100, valid_stories=1)
    longest = max(len(story.text) for story in stories.write_stories(100, corpora.STORY_SEEDS["train"]))
    assert f"use --context {longest + 1} or more, not {longest}" in refusal("stories", context=longest, **counts)
    assert load("stories", context=longest + 1, **counts).floor is not None
    assert load("stories", context=600, stories=1, valid_stories=9).floor is None
    assert "No floor is given: the training stories never use" in caplog.text
    for options in ({"frame": "bare"}, {"remainder": "drop", "context": 50}, {"tokenizer": "bpe"}):
        corpus = load("stories", **{"context": 600, "stories": 30, "valid_stories": 5, **options})
        assert corpus.floor is None and corpus.forgetful is None
    assert "No story fits" in refusal("stories", stories=3, limit=3)
    assert "for other text" in refusal("stories", record="line")


# Python's own source, and the TinyStories sample -----------------------------------------------------------------


def test_python_source_is_at_hand():
    corpus = load("python-source", limit=60_000, context=64)
    assert corpus.record == "file" and corpus.kept > 0.9 and "standard library" in corpus.source
    assert "import" in "".join(texts(corpus))
    functions = load("python-source", limit=20_000, context=64, record="function", remainder="pad")
    assert texts(functions)[0].startswith(("def ", "async def ", "@"))


@needs_sample
def test_the_sample_keeps_most_of_its_stories_and_next_to_nothing_of_its_lines():
    options = dict(data_dir=SAMPLE, context=512)
    story = load("tinystories", **options)
    text = (SAMPLE / "TinyStoriesV2-GPT4-train.txt").read_text().split("\n<|endoftext|>\n")
    kept = [len(one.strip("\n")) // 513 * 513 for one in text]
    assert story.kept == sum(kept) / sum(len(one.strip("\n")) for one in text)
    assert 0.72 < story.kept < 0.73 and len(story.train) == sum(kept) // 513
    assert story.tokenizer.vocab_size == 85 and "local folder" in story.source and "own files" in story.source
    line = load("tinystories", **options, record="line")
    assert 0.005 < line.kept < 0.01
    assert (
        "(1 training and 1 validation files, 2 others not read)" in load(SAMPLE, **options | {"data_dir": None}).source
    )


# Tables, and the hub ---------------------------------------------------------------------------------------------


def table(path: Path, column: str, rows: list[str | None]) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="parquet files need pyarrow, the extra 'hub'")
    parquet = pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table({column: rows, "label": list(range(len(rows)))}), path)
    return path


REVIEWS = ["Good food.\nWarm\r\nbread.\n\nLovely.", None, " ", "Bad <unk> food: <|endoftext|>, never again."]


def test_rows_of_a_table_are_records(tmp_path):
    dataset = hub.HUB["yelp"]
    table(tmp_path / "d" / dataset.train[0], "text", REVIEWS)
    table(tmp_path / "d" / dataset.valid[0], "text", ["Fine food, as always."])
    corpus = load("yelp", data_dir=tmp_path / "d", context=50, remainder="pad")
    assert texts(corpus) == ["Good food.\nWarm\nbread.\n\nLovely.", REVIEWS[3]] and corpus.record == "review"
    lines = load("yelp", data_dir=tmp_path / "d", context=50, remainder="pad", record="line")
    assert texts(lines)[:3] == ["Good food.", "Warm", "bread."]
    assert "use --record review, paragraph or line" in refusal("yelp", data_dir=tmp_path / "d", record="story")


def test_damaged_and_foreign_tables(tmp_path, monkeypatch):
    dataset = hub.HUB["yelp"]
    table(tmp_path / "d" / dataset.valid[0], "text", ["Fine."])
    path = table(tmp_path / "d" / dataset.train[0], "review", ["Fine."])
    assert "no column 'text' but review, label" in refusal("yelp", data_dir=tmp_path / "d")
    path.write_bytes(b"PAR1 but not really")
    assert "cannot be read as a parquet file" in refusal("yelp", data_dir=tmp_path / "d")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'minihaares[hub]'" in refusal("yelp", data_dir=tmp_path / "d")


class FakeHub(ThreadingHTTPServer):
    """Speaks the hub's download paths on 127.0.0.1 and remembers what it was asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.damage = False
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, dataset: hub.HubDataset, file: str, content: bytes) -> None:
        self.files[f"/datasets/{dataset.repo}/resolve/{dataset.revision}/{file}"] = content


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        content = self.server.files.get(self.path)
        if content is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("X-Repo-Commit", self.path.split("/resolve/")[1].split("/")[0])
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content.swapcase() if self.server.damage else content)

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def fake_hub(tmp_path, monkeypatch):
    from huggingface_hub import constants

    server = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    server.server_close()


TINY = hub.HUB["tinystories"]
STORY = "Tim saw a cat.\n<|endoftext|>\nThe cat saw Tim.\n<|endoftext|>\n"


def serve_tinystories(server: FakeHub) -> None:
    server.add(TINY, TINY.train[0], STORY.encode())
    server.add(TINY, TINY.valid[0], STORY.encode())


def test_the_hub_then_its_cache_then_no_network(fake_hub):
    serve_tinystories(fake_hub)
    corpus = load("tinystories")
    assert corpus.source == "hub roneneldan/TinyStories@f54c09fd; split: the corpus's own files"
    assert texts(corpus) == ["Tim saw ", "The cat ", "saw Tim."]
    fake_hub.shutdown()
    fake_hub.server_close()
    assert load("tinystories", context=6).source.startswith("hub cache roneneldan/TinyStories@f54c09fd; split")
    start = time.perf_counter()
    message = refusal("wikitext103")
    assert time.perf_counter() - start < 3
    assert f"{fake_hub.url} does not answer" in message
    assert "pass --data-dir with a copy of Salesforce/wikitext, or use --corpus stories" in message


def test_a_network_that_swallows_everything_is_given_up_soon(fake_hub, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, never answers
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(hub, "HUB_SECONDS", 0.3)
        start = time.perf_counter()
        assert "does not answer" in refusal("tinystories")
        assert time.perf_counter() - start < 3


def test_only_the_pinned_revision_is_asked_for(fake_hub, tmp_path):
    serve_tinystories(fake_hub)
    corpus = load("tinystories")
    assert corpus.source.startswith("hub roneneldan/TinyStories@f54c09fd")
    assert json.loads((cached(tmp_path) / "meta.json").read_text())["revision"] == TINY.revision
    assert fake_hub.asked and all(f"/resolve/{TINY.revision}/" in path for path in fake_hub.asked)
    fake_hub.asked.clear()
    assert load("tinystories", context=6).source.startswith("hub cache") and not fake_hub.asked


def test_a_limit_saves_the_rest_of_a_download(fake_hub, tmp_path):
    web = hub.HUB["openwebtext"]
    for number in range(2):
        path = table(tmp_path / "shard.parquet", "text", [f"page {i} of shard {number}" for i in range(30)])
        fake_hub.add(web, web.train[number], path.read_bytes())
    corpus = load("openwebtext", limit=300, context=5)
    assert corpus.record == "file" and "held out" in corpus.source and "at most 300 characters" in corpus.source
    assert {path.split("/")[-1] for path in fake_hub.asked} == {"train-00000-of-00080.parquet"}
    assert "refuses plain_text/train-00002-of-00080.parquet" in refusal("openwebtext", context=5)


def test_what_arrives_damaged_is_thrown_away(fake_hub, tmp_path):
    serve_tinystories(fake_hub)
    fake_hub.damage = True
    assert "arrived damaged" in refusal("tinystories")
    assert not [path for path in (tmp_path / "hub").rglob("*GPT4*") if path.exists()]
    fake_hub.damage = False
    assert "Tim saw" in texts(load("tinystories"))[0]


def test_a_hub_that_refuses_is_quoted(fake_hub, monkeypatch):
    message = refusal("tinystories")
    assert "refuses TinyStoriesV2-GPT4-train.txt" in message and "404" in message and "--data-dir" in message
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids" in refusal("tinystories")


def test_checksums_of_both_kinds(tmp_path):
    path = write(tmp_path / "file", "abc")
    git = hashlib.sha1(b"blob 3\0abc").hexdigest()
    assert hub.arrived(path, 3, git) and hub.arrived(path, 3, hashlib.sha256(b"abc").hexdigest())
    assert not hub.arrived(path, 4, None) and not hub.arrived(path, 3, "0" * 40) and not hub.arrived(path, 3, "0" * 64)
    for dataset in hub.HUB.values():
        assert re.fullmatch("[0-9a-f]{40}", dataset.revision), "a branch can move, a commit cannot"
