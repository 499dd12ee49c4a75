"""Tokenizers: any text comes back, nothing in a text becomes a special id, saved means the same."""

import json
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from minihaares import tokens
from minihaares.tokens import (
    BOS,
    EOT,
    PAD,
    SPECIALS,
    UNK,
    CharTokenizer,
    DataError,
    load_tokenizer,
    save_tokenizer,
    tokenizer_from_json,
    train_bpe,
    train_char,
)

ENGLISH = [
    "Tom had a red kite. The kite was red, and Tom was glad.",
    "“Where is my kite?” said Anna – and she cried.\nThe end.",
] * 20
CONTROL = [*SPECIALS, "<unk>", "<pad>", "</s>", "[UNK]", "a<|endoftext|>b", "<|bos|><|bos|>", "<|end<|unk|>oftext|>"]
BPE = train_bpe(ENGLISH, 300)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(any_text)
@settings(max_examples=60, deadline=None)
def test_char_round_trip(text):
    tokenizer = train_char([text + "x"], vocab=300)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and ids.shape == (len(text),)
    assert tokenizer.decode(ids) == text
    assert not set(ids.tolist()) & {PAD, UNK, BOS, EOT}
    assert int(tokenizer.widths[ids].sum()) == len(text)


@given(any_text)
@settings(max_examples=60, deadline=None)
def test_bpe_round_trip_of_text_it_never_saw(text):
    ids = BPE.encode(text)
    assert BPE.decode(ids) == text
    assert not set(ids.tolist()) & {PAD, UNK, BOS, EOT}
    assert int(BPE.widths[ids].sum()) == len(text)
    assert BPE.unseen(text) == []


@pytest.mark.parametrize("text", CONTROL)
@pytest.mark.parametrize("train", [lambda text: train_char([text]), lambda text: train_bpe([text] * 50, 300)])
def test_control_strings_in_a_text_are_text(train, text):
    tokenizer = train(text)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.min() > EOT
    reloaded = tokenizer_from_json(tokenizer.to_json())  # the library forgets that setting when it saves
    assert reloaded.encode(text).tolist() == ids.tolist()


@given(st.lists(any_text, min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_batches_are_encoded_as_single_texts_are(texts):
    char = train_char(["".join(texts) + "x"], 100)
    for tokenizer in (char, BPE):
        together = tokenizer.encode_batch(texts)
        assert [ids.tolist() for ids in together] == [tokenizer.encode(text).tolist() for text in texts]
        assert tokenizer.encode_batch([]) == []


def test_char_table_is_the_papers():
    tokenizer = train_char(["bbbaacc", "ccd"])
    assert tokenizer.characters == "cbad"  # c four times, b three times, then a, d
    assert train_char(["cab"]).characters == "abc"  # ties: by code point
    assert tokenizer.vocab_size == 8  # fewer characters than 252 is fine
    assert tokenizer.encode("cab").tolist() == [4, 6, 5]


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=80), st.integers(5, 12))
@settings(max_examples=40, deadline=None)
def test_char_table_against_a_counter(text, vocab):
    ranked = sorted(Counter(text).items(), key=lambda item: (-item[1], ord(item[0])))
    assert train_char([text[:10], text[10:]], vocab).characters == "".join(c for c, _ in ranked[: vocab - 4])


def test_rare_characters_become_unk_and_are_named():
    tokenizer = train_char(["aaabbc"], vocab=6)
    assert tokenizer.vocab_size == 6 and tokenizer.characters == "ab"
    assert tokenizer.encode("acéb").tolist() == [4, UNK, UNK, 5]
    assert tokenizer.unseen("acéb") == ["c", "é"]
    assert tokenizer.decode([4, UNK, 5]) == "a\ufffdb"


def test_special_ids_leave_no_trace_in_decoded_text():
    for tokenizer in (train_char(ENGLISH), BPE):
        ids = [BOS, *tokenizer.encode("Tom").tolist(), EOT, PAD, PAD]
        assert tokenizer.decode(ids) == tokenizer.decode(np.array(ids)) == "Tom"
        assert tokenizer.widths[[PAD, BOS, EOT]].tolist() == [0, 0, 0]
        assert tokenizer.decode([]) == ""


def test_bpe_has_the_specials_the_bytes_and_merges():
    assert BPE.vocab_size == 300
    saved = json.loads(BPE.to_json())["tokenizer"]["model"]
    assert [saved["vocab"][name] for name in SPECIALS] == [PAD, UNK, BOS, EOT]
    assert set(tokens._byte_of_letter()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert {saved["vocab"][letter] for letter in pre_tokenizers.ByteLevel.alphabet()} == set(range(4, 260))
    assert len(BPE.encode(ENGLISH[0])) < len(ENGLISH[0]) / 2
    assert train_bpe(["aaaa"], 4096).vocab_size < 270  # no more merges to be had


def test_bpe_widths_count_a_character_where_it_begins():
    text = "é漢🙂a"
    ids = BPE.encode(text)
    assert BPE.widths[ids].tolist() == [1, *[0] * (len("é".encode()) - 1), 1, 0, 0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize("train, vocab", [(train_char, 256), (train_bpe, 300)])
def test_same_text_same_tokenizer_and_saved_is_the_same(train, vocab, tmp_path):
    first, second = train(ENGLISH, vocab), train(iter(ENGLISH), vocab)
    assert first.to_json() == second.to_json() and first.hash == second.hash
    assert len(first.hash) == 16 and first.hash != train(["something else"], vocab).hash
    save_tokenizer(first, tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert again.hash == first.hash and again.kind == first.kind and again.vocab_size == first.vocab_size
    assert again.encode(ENGLISH[1]).tolist() == first.encode(ENGLISH[1]).tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    save_tokenizer(CharTokenizer("ab"), path)
    monkeypatch.setattr(tokens.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        save_tokenizer(CharTokenizer("xyz"), path)
    assert load_tokenizer(path).characters == "ab"
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize(
    "contents, complaint",
    [
        ("{", "does not parse"),
        ("[1, 2]", "not the JSON of a minihaares tokenizer"),
        (json.dumps({"kind": "char", "specials": SPECIALS, "characters": "aab"}), "repeats"),
        (json.dumps({"kind": "word", "specials": SPECIALS}), "Unknown kind of tokenizer 'word'"),
        (json.dumps({"kind": "bpe", "specials": SPECIALS, "tokenizer": {"version": "1.0"}}), "damaged"),
        (json.dumps({"kind": "char", "specials": ["<s>"], "characters": "ab"}), "special entries"),
    ],
)
def test_damaged_and_foreign_tokenizers_are_refused(contents, complaint, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(contents)
    with pytest.raises(DataError, match=complaint) as caught:
        load_tokenizer(path)
    assert str(path) in str(caught.value)


def test_other_refusals(tmp_path):
    with pytest.raises(DataError, match="There is no tokenizer at"):
        load_tokenizer(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not text"):
        load_tokenizer(tmp_path / "binary.json")
    for train, smallest in ((train_char, 5), (train_bpe, 260)):
        with pytest.raises(DataError, match="vocab_size"):
            train(ENGLISH, smallest - 1)
        train(ENGLISH, smallest)
        with pytest.raises(DataError, match="no text"):
            train([], 300)
        with pytest.raises(DataError, match="no text"):
            train(["", ""], 300)


@pytest.mark.parametrize("tokenizer", [CharTokenizer("ab"), BPE], ids=["char", "bpe"])
def test_lone_surrogates_and_foreign_ids_are_refused(tokenizer):
    for call in (tokenizer.encode, lambda text: tokenizer.encode_batch(["fine", text])):
        with pytest.raises(DataError, match=r"lone surrogate U\+D83D"):
            call("ab\ud83dc")
    for ids in ([tokenizer.vocab_size], [-1], np.array([4, 100_000])):
        with pytest.raises(DataError, match="does not belong"):
            tokenizer.decode(ids)
    for train in (train_char, train_bpe):
        with pytest.raises(DataError, match="lone surrogate"):
            train(["a\udc00"], 300)


def test_long_texts_are_encoded_in_blocks(monkeypatch):
    tokenizer = train_char(["abc"])
    text = "abcca" * 11
    whole = tokenizer.encode(text)
    monkeypatch.setattr(tokens, "BLOCK", 7)
    assert tokenizer.encode(text).tolist() == whole.tolist()


def test_encoding_is_fast_enough_for_a_laptop():
    text = " ".join(ENGLISH) * 2000  # 4 million characters; measured 0.02 s, so the band is wide
    tokenizer = train_char(ENGLISH)
    start = time.perf_counter()
    tokenizer.encode(text)
    assert time.perf_counter() - start < 1.0
