"""minihaares.ngrams: counted by hand, and by the slow rule of chapter 02 with dictionaries."""

import math
from collections import Counter

import numpy as np
import pytest

from minihaares import cli, ngrams
from minihaares.data import PAD, DataConfig, DataError
from minihaares.ngrams import ngram_losses, read_ngrams, record_ngrams

A, B = 4, 5


def by_rule(train, valid, symbols: int, top: int) -> list[float]:
    """The same losses, one target at a time."""
    times, kinds, grams = Counter(), Counter(), Counter()
    for row in train.tolist():
        row = [x for x in row if x != PAD]
        for k in range(top + 1):
            for i in range(k, len(row)):
                h, c = tuple(row[i - k : i]), row[i]
                kinds[h] += (h, c) not in grams
                times[h] += 1
                grams[h, c] += 1
    prices = [[] for _ in range(top + 1)]
    for row in valid.tolist():
        for i in (i for i in range(1, len(row)) if row[i] != PAD):
            p = 1 / symbols
            for k in range(top + 1):
                if k <= i:
                    h = tuple(row[i - k : i])
                    p = (grams[h, row[i]] + kinds[h] * p) / (times[h] + kinds[h]) if times[h] else p
                prices[k].append(-math.log(p))
    return [sum(row) / len(row) for row in prices]


def test_two_letters_by_hand():
    """In `a b a a`: n(a) = 3 of 4, two kinds; after `a` come b and a. Six symbols. Asked: what follows a, twice."""
    train, valid = np.array([[A, B, A, A]]), np.array([[A, A, B]])
    zero = {A: (3 + 2 / 6) / 6, B: (1 + 2 / 6) / 6}
    one = {A: (1 + 2 * zero[A]) / 4, B: (1 + 2 * zero[B]) / 4}
    expected = [-(math.log(p[A]) + math.log(p[B])) / 2 for p in (zero, one)]
    assert ngram_losses(train, valid, 6, 1) == pytest.approx(expected)


def test_the_quick_count_is_the_slow_one():
    rng = np.random.default_rng(0)
    train, valid = (rng.integers(4, 9, (n, 12)).astype(np.uint16) for n in (30, 6))
    train[::3, 9:] = PAD
    valid[::2, 7:] = PAD
    assert ngram_losses(train, valid, 9, 4) == pytest.approx(by_rule(train, valid, 9, 4))


def test_a_context_that_does_not_fit_is_refused():
    chunks = np.full((2, 12), A)
    assert len(ngram_losses(chunks, chunks, 256, 7)) == 8
    with pytest.raises(ValueError, match="lower order"):
        ngram_losses(chunks, chunks, 256, 8)


def test_counts_are_kept_once_a_text(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIHAARES_CACHE", str(tmp_path / "cache"))
    config = DataConfig(stories=40, valid_stories=8, context=512)
    assert read_ngrams(tmp_path).empty
    first = record_ngrams(config, 4, top=3, store=tmp_path)
    record_ngrams(config, 8, top=3, store=tmp_path)
    record_ngrams(config, 4, top=3, store=tmp_path)
    kept = read_ngrams(tmp_path)
    assert kept.groupby("eval_chunks").size().to_dict() == {4: 4, 8: 4}
    assert kept[kept["eval_chunks"] == 4]["loss"].tolist() == first["loss"].tolist()
    assert list(first["order"]) == [0, 1, 2, 3] and first["loss"].is_monotonic_decreasing


def test_the_command_counts_the_grids_text(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINIHAARES_CACHE", str(tmp_path / "cache"))
    assert cli.main(["ablate", "quick", "--ngrams", "--store", str(tmp_path / "store")]) == 0
    rows = read_ngrams(tmp_path / "store")
    assert len(rows) == 8 and f"{rows['loss'].iloc[0]:.4f}" in capsys.readouterr().out
    with pytest.raises(DataError):
        ngrams.record_ngrams(DataConfig(corpus="tinystories", data_dir=tmp_path / "no"), 4, store=tmp_path)
