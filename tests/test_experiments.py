"""Grids and the store: nothing is run twice, nothing recorded is lost, and a row says how to make it again."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from minihaares import experiments
from minihaares.data import load_corpus
from minihaares.experiments import GridError, append, missing, read_curve, read_grid, read_runs, run_grid, select

GRID = """
[model]
width = 8
heads = 2
ff = 8

[data]
corpus = "stories"
context = 512
stories = 40
valid_stories = 8

[train]
steps = {steps}
batch_size = 2
eval_every = 2
threads = 1

[[arm]]
name = "block"
scheme = "block"
layers = [1, 2]
options = {{ blocks = 2 }}
seeds = [1, 2]

[[arm]]
name = "haares"
scheme = "haares"
layers = [2]
over = {{ blocks = [1, 2], bias = ["fixed", "learned"] }}
seeds = [1, 2]
"""


@pytest.fixture
def grid_file(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIHAARES_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "small.toml"
    path.write_text(GRID.format(steps=4))
    return str(path)


def test_a_grid_is_the_product_of_its_lists_with_seeds_slowest(grid_file):
    grid = read_grid(grid_file)
    assert len(grid) == 2 * (2 + 4)
    assert [p.config.train.seed for p in grid] == [1] * 6 + [2] * 6
    assert grid[2].arm == "haares blocks=1 bias=fixed"
    assert len({p.id for p in grid}) == len(grid)
    assert all(p.config.model.width == 8 and p.config.train.steps == 4 for p in grid)


def test_an_id_names_what_is_learned_and_nothing_else(grid_file, tmp_path):
    one = read_grid(grid_file)[0]
    where = replace(one, config=replace(one.config, train=replace(one.config.train, out=tmp_path, threads=2)))
    assert where.id == one.id
    for name, value in (("seed", 9), ("steps", 5), ("lr", 1e-2), ("data_seed", 1)):
        assert replace(one, config=replace(one.config, train=replace(one.config.train, **{name: value}))).id != one.id
    model = one.config.model
    for options, same in (
        ({"blocks": 2, "read": "plain"}, True),
        ({"blocks": 2, "gamma": 4.0}, True),
        ({"blocks": 2, "gamma": 4}, True),
        ({"blocks": 1}, False),
    ):
        other = replace(one, config=replace(one.config, model=replace(model, options=options)))
        assert (other.id == one.id) is same, options


def test_the_grids_of_the_book_can_be_read():
    for name in experiments.grid_names():
        assert read_grid(name)
    headline = read_grid("headline")
    assert [(p.arm, p.config.train.seed) for p in headline[:4]] == [
        ("block", 42),
        ("haares", 42),
        ("block", 123),
        ("haares", 123),
    ]
    assert {p.config.model.events // p.config.model.options.get("blocks", 4) for p in headline} == {24}


@pytest.mark.parametrize(
    "text,words",
    [
        ("[[arm]]\nname = 'x'", "needs a name and a scheme"),
        ("[[arm]]\nname = 'x'\nscheme = 'block'\nlayer = [1]", "has no layer"),
        ("[model]\nwidth = 8", "holds no arm"),
        ("[[arm", "not valid TOML"),
        ("[train]\nstep = 3\n[[arm]]\nname = 'x'\nscheme = 'block'", "step"),
    ],
)
def test_a_wrong_grid_is_one_sentence(tmp_path, text, words):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(GridError, match=words):
        read_grid(str(path))


def test_an_unknown_grid_or_run_names_what_there_is(grid_file):
    with pytest.raises(GridError, match="headline"):
        read_grid("nowhere")
    with pytest.raises(GridError, match="block, haares"):
        select(read_grid(grid_file), "standard")
    grid = read_grid(grid_file)
    assert select(grid, grid[3].id[:6]) == [grid[3]]
    assert len(select(grid, "block")) == 4


def test_runs_are_recorded_once_and_can_be_made_again(grid_file, tmp_path):
    """A run in its own process, then a call with nothing left to do; and made again, the row's numbers come out."""
    grid, store = select(read_grid(grid_file), "block")[:1], tmp_path / "store"
    assert run_grid(grid, tmp_path / "runs", store) == 1
    runs = read_runs(store)
    assert list(runs["run"]) == [p.id for p in grid]
    assert run_grid(grid, tmp_path / "runs", store) == 0
    row, curve = runs.iloc[0], read_curve(grid[0].id, store)
    assert list(curve["step"]) == [0, 2, 4]
    assert row["best_loss"] == curve["valid_loss"].min() and row["last_loss"] == curve["valid_loss"].iloc[-1]
    assert row["parameters"] > 0 and row["tokens"] > 0 and row["peak_mib"] > 50
    corpus = load_corpus(grid[0].config.data, progress=False)
    assert row["corpus_hash"] == corpus.hash
    # one byte a character here, and one end mark a story that stands for no text
    assert 0 < row["best_loss"] / 0.693147 <= row["bits_per_byte"] * 1.0001
    assert row["command"] == f"minihaares ablate small --only {grid[0].id}"
    config = replace(grid[0].config, train=replace(grid[0].config.train, out=tmp_path / "again"))
    experiments.record(replace(grid[0], config=config), corpus, "", tmp_path / "other")
    columns = ["run", "best_loss", "last_loss", "bits_per_byte", "tokens", "tokenizer_hash"]
    pd.testing.assert_series_equal(read_runs(tmp_path / "other").iloc[0][columns], row[columns])


def test_a_killed_grid_goes_on_where_it_stood(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIHAARES_CACHE", str(tmp_path / "cache"))
    path, store = tmp_path / "small.toml", tmp_path / "store"
    path.write_text(GRID.format(steps=150))
    one = read_grid(str(path))[0]
    code = f"""
        from pathlib import Path
        from minihaares.experiments import read_grid, run_grid
        if __name__ == "__main__":
            run_grid(read_grid({str(path)!r})[:1], Path({str(tmp_path / "runs")!r}), Path({str(store)!r}))
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    process = subprocess.Popen([sys.executable, str(script)], start_new_session=True, stderr=subprocess.DEVNULL)
    curve = tmp_path / "runs" / one.id / "curve.csv"
    deadline = time.monotonic() + 90
    while not (curve.exists() and len(curve.read_text().splitlines()) > 3):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = curve.read_text().splitlines()
    assert read_runs(store).empty and len(before) < 70
    run_grid([one], tmp_path / "runs", store)
    recorded = read_curve(one.id, store)
    assert list(recorded["step"]) == list(range(0, 151, 2))
    # The first session's rows stand in the record, seconds included: they were not made a second time.
    assert [float(line.split(",")[-1]) for line in before[1:4]] == list(recorded["seconds"].iloc[:3])


def test_many_writers_lose_no_row(tmp_path):
    curve = pd.DataFrame({"step": [0], "valid_loss": [1.0]})
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: append({"run": f"{i % 20:012x}", "best_loss": 0.1 * i}, curve, tmp_path), range(40)))
    runs = read_runs(tmp_path)
    assert sorted(runs["run"]) == [f"{i:012x}" for i in range(20)]
    assert len(list((tmp_path / "curves").glob("*.csv"))) == 20
    assert not [p for p in Path(tmp_path).rglob("*.tmp")]


def test_time_ahead_is_measured_then_remembered(grid_file, tmp_path):
    grid = select(read_grid(grid_file), "block")
    ahead = experiments.seconds_ahead(grid, tmp_path)
    assert set(ahead) == {p.id for p in grid} and min(ahead.values()) > 0
    p = grid[0]
    m, t = p.config.model, p.config.train
    row = dict(
        run=p.id, scheme="block", options='{"blocks": 2}', layers=m.layers, width=8, ff=8, context=512, batch_size=2,
        threads=1, seconds=100.0, steps=4,
    )  # fmt: skip
    append(row, pd.DataFrame({"step": [0]}), tmp_path)
    assert experiments.seconds_ahead([p], tmp_path)[p.id] == 100.0 * t.steps / 4
    assert missing(grid, tmp_path) == grid[1:]


def test_a_run_that_cannot_start_is_one_sentence(grid_file, tmp_path, capfd):
    one = read_grid(grid_file)[0]
    lost = replace(
        one, config=replace(one.config, data=replace(one.config.data, corpus="tinystories", data_dir=tmp_path / "no"))
    )
    with pytest.raises(GridError, match="ended with code 2"):
        run_grid([lost], tmp_path / "runs", tmp_path / "store")
    said = capfd.readouterr().err
    assert "Traceback" not in said and str(tmp_path / "no") in said


def test_a_data_folder_is_for_the_runs_that_read_one(grid_file, tmp_path, capfd):
    one = read_grid(grid_file)[0]  # on the built-in stories
    with pytest.raises(GridError, match="drop --data-dir"):
        run_grid([one], tmp_path / "runs", tmp_path / "store", data_dir=tmp_path / "no")
    other = replace(one, config=replace(one.config, data=replace(one.config.data, corpus="tinystories")))
    with pytest.raises(GridError, match=f"Run {other.id} ended with code 2"):
        run_grid([one, other], tmp_path / "runs", tmp_path / "store", data_dir=tmp_path / "no")
    assert list(read_runs(tmp_path / "store")["run"]) == [one.id]
    assert str(tmp_path / "no") in capfd.readouterr().err
