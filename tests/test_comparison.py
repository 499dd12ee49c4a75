"""The table of relatives: its words against the state of real models, its numbers against the store, read anew."""

import csv
import json
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pandas as pd
import pytest
import torch

from minihaares import bench, comparison, costs, findings
from minihaares.algebra import L, N
from minihaares.comparison import METHODS, loss_by
from minihaares.experiments import GridError, read_grid, recorded
from minihaares.model import ModelConfig, Transformer, scheme_options
from tests.schemes import noise, shake, some_tokens, tensors
from tests.stores import SETTING, put

EVERY = pytest.mark.parametrize("name", METHODS)


def lively(name: str, layers: int = 4) -> Transformer:
    """A small model of the method with noise on every weight; routers read plainly, as vectors are counted."""
    method = METHODS[name]
    options = dict(method.arm.options) | ({"read": "plain"} if name in ("block", "haares") else {})
    sizes = dict(vocab_size=13, width=12, heads=2, ff=20)
    return shake(Transformer(ModelConfig(**sizes, layers=layers, scheme=method.arm.scheme, options=options)).double())


def states(model: Transformer) -> list:
    """What the residual holds before each event and at the end, for 2 sequences of 5 tokens."""
    residual, found = model.residual, [model.residual.begin(noise(2, 5, 12, seed=99))]
    for event in range(model.config.events):
        _, state = residual.read(found[-1], event)
        found.append(residual.write(state, event, noise(2, 5, 12, seed=event)))
    return found


# ------------------------------------------------------------------------------------------------------ the words


@EVERY
def test_stored_vectors_are_those_of_the_state(name: str):
    """The most that lies there before an event: each storage once, scalars per token aside."""
    for layers in (4, 8):
        held = []
        for state in states(lively(name, layers))[:-1]:
            storages = [t.untyped_storage() for t in tensors(state) if t.ndim > 2]
            held.append(sum({x.data_ptr(): x.nbytes() for x in storages}.values()) / (8 * 2 * 5 * 12))
        assert max(held) == int(METHODS[name].stored.subs({L: layers, N: 4})), held


@EVERY
def test_what_is_added_reaches_the_head_as_it_is(name: str):
    """For methods that add, another last output moves what the head sees by just the difference; else it doesn't."""
    model = lively(name)
    before, last = states(model)[-2], model.config.events - 1
    between = model.residual.read(before, last)[1]
    one, other = noise(2, 5, 12, seed=1), noise(2, 5, 12, seed=2)
    ends = [model.residual.readout(model.residual.write(between, last, u)) for u in (one, other)]
    assert torch.allclose(ends[0] - ends[1], one - other, rtol=1e-9, atol=1e-12) == METHODS[name].add


@EVERY
def test_the_readout_is_what_the_table_says(name: str):
    model = lively(name)
    residual, end = model.residual, states(model)[-1]
    head, parts = residual.readout(end), tensors(end)
    said = METHODS[name].readout
    is_held = any(head is part for part in parts)
    assert is_held == (said in ("the stream", "the last read") or name == "denseformer")
    if said == "the sum of the streams":
        assert torch.equal(head, end.sum(-2))
    elif name in ("block", "haares"):
        e, sums = end.sources[0], end.sources[1 :: 1 if name == "block" else 2]
        weights = residual.weights((e, *sums), model.config.events)
        assert weights.shape[0] == 1 + 4 and torch.allclose(weights.sum(0), torch.ones(2, 5).double())
        assert torch.allclose(head, sum(w[..., None] * v for w, v in zip(weights, (e, *sums), strict=True)))
    elif said == "a matrix, after a norm":
        assert torch.allclose(head, residual.readout(3 * end + 1), rtol=1e-3)  # a GroupNorm takes off mean and scale
        assert residual.reduce_map.shape == (12, 24)
    elif name == "muddformer":
        assert len(end.sources) == model.config.layers + 1


@EVERY
def test_weights_depend_on_the_token_where_the_table_says_so(name: str):
    """A scheme whose weights ask nothing of the token is linear in what it is given, up to its norms."""
    residual, scale = lively(name).residual, 0.5
    x, y = noise(2, 5, 12, seed=7), noise(2, 5, 12, seed=8)

    def first_read(embedding):
        state = residual.begin(embedding)
        for event in range(3):  # so that there is something to choose from
            _, between = residual.read(state, event)
            state = residual.write(between, event, scale * embedding.flip(-1))
        return torch.stack(tensors(residual.read(state, 3)[0]))

    linear = torch.allclose(first_read(x + y), first_read(x) + first_read(y), rtol=1e-9, atol=1e-12)
    if name == "haares":
        assert "biased" in METHODS[name].weights and residual.detail_bias.shape == (8,)
    if name.startswith("delta"):  # Delta Block's lone source until its block is full
        linear = linear and name == "delta"
    assert linear == (METHODS[name].weights in ("all 1", "static numbers", "matrices D × d"))


def test_the_grid_and_the_timings_hold_the_methods_of_the_table():
    grid = {(p.arm, findings.identity(p.config.model.scheme, p.config.model.options)) for p in read_grid("relatives")}
    assert grid == {(name, method.arm.identity) for name, method in METHODS.items()}
    for layers, missing in ((12, set()), (48, {"delta"})):
        there = {p.arm for p in read_grid("relatives") if p.config.model.layers == layers}
        assert set(METHODS) - there == missing
    shared = {p.id for p in read_grid("tier1")}
    assert all(p.id in shared for p in read_grid("relatives") if p.arm in ("standard", "block", "haares"))
    preset = bench.preset("relatives")
    assert {m.timed for m in METHODS.values()} == set(preset.schemes) and preset.layers == comparison.DEPTHS
    for method in METHODS.values():  # what is timed is what is trained
        timed = bench.build(method.timed, 4, bench.BenchConfig(family="pocket")).config
        assert findings.identity(timed.scheme, timed.options) == method.arm.identity


# ---------------------------------------------------------------------------------------------------- the numbers


def test_loss_by_a_budget_by_hand():
    curve = pd.DataFrame({"tokens": [0, 100, 200, 300], "valid_loss": [4.0, 3.0, 2.0, 2.5]})
    assert [loss_by(curve, x) for x in (0, 50, 100, 150, 200)] == [4, 3.5, 3, 2.5, 2]
    assert [loss_by(curve, x) for x in (250, 300, 1000)] == [2, 2, 2]  # the best so far, as everywhere in the book
    with pytest.raises(ValueError, match="begins at 0 tokens"):
        loss_by(curve, -1)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Standard with three seeds and HiRes with two, evaluated at 0, 1000, 2000 and 3000 tokens; a vocabulary of 31."""
    sizes = {name: SETTING[name] for name in ("layers", "width", "heads", "ff")}
    for scheme, seeds in (("standard", (1, 2, 3)), ("hires", (1, 2))):
        parameters = costs.price(ModelConfig(**sizes, vocab_size=31, scheme=scheme), 10).parameters
        for seed in seeds:
            losses = [4, 3, 2, 1] if scheme == "standard" else [4, 2.5, 1.5, 0.5]
            put(tmp_path, scheme, seed, [x + seed / 10 for x in losses], parameters=parameters)
    return tmp_path


def test_the_table_by_hand(store: Path):
    records = findings.read(store)
    assert comparison.vocabulary(records, SETTING) == 31
    assert comparison.missing(records, SETTING, ("standard", "hires", "mhc")) == ["mHC"]
    found = comparison.table(records, SETTING, pd.Series({"standard": 1.0, "hires": 2.0, "mhc": 3.0}))
    standard, hires, other = (found.loc[name] for name in ("standard", "hires", "mhc"))
    assert standard["n"] == 3 and standard["loss"] == pytest.approx(1.2) and standard["sd"] == pytest.approx(0.1)
    assert (standard[["at_tokens", "at_flops", "at_seconds"]] == 0).all()
    assert hires["n"] == 2 and hires["loss"] == pytest.approx(0.65)
    assert hires["at_tokens"] == pytest.approx(-0.5)
    assert hires["at_seconds"] == pytest.approx(2 - 1)  # half of 3000 tokens: between 2.5 and 1.5
    spent = 3 / hires["flops"]  # thousands of tokens
    assert 2 < spent < 3 and hires["at_flops"] == pytest.approx(1.5 - (spent - 2) - 1)
    assert other["n"] == 0 and other[["loss", "sd", "at_tokens", "at_flops", "at_seconds"]].isna().all()
    assert other["time"] == 3 and np.isnan(found.loc["vwn", "time"])
    assert comparison.table(records, SETTING)["time"].isna().all()  # nothing is timed in this store


def test_a_step_that_was_timed_as_quicker_than_standard_counts_as_one(store: Path):
    records = findings.read(store)
    assert comparison.behind(records, METHODS["hires"].arm, SETTING, 0.9).mean == pytest.approx(-0.5)


def test_timings_are_the_latest(tmp_path: Path):
    rows = [(12, "standard", 1), (12, "delta:block", 1.5), (12, "delta:block", 1.25), (48, "mhc", 4)]
    pd.DataFrame(rows, columns=["layers", "scheme", "step_median"]).to_csv(tmp_path / "bench_relatives.csv")
    assert comparison.timings(12, tmp_path).to_dict() == {"standard": 1, "delta_block": 1.25}


def test_only_the_seeds_of_the_grid_are_compared(tmp_path: Path):
    for seed in (42, 7, 123):
        put(tmp_path, "standard", seed, [2.0, 1.0])
    assert sorted(comparison.read(tmp_path).runs["seed"]) == [42, 123]


def test_nothing_recorded_is_said(tmp_path: Path):
    put(tmp_path, "standard", 1, [2.0, 1.0], layers=7)
    with pytest.raises(GridError, match="No run at 48 layers"):
        comparison.table(findings.read(tmp_path), SETTING)


@pytest.mark.parametrize("layers", comparison.DEPTHS)
def test_the_books_table_is_what_the_store_holds(layers: int):
    """Every recorded number again: csv rows and curves by hand, times from the rows of the benchmark."""
    base, folder = findings.setting("relatives", layers=layers), recorded()
    rows = list(csv.DictReader((folder / "runs.csv").open(encoding="utf-8")))
    planned = {p.id: p for p in read_grid("relatives") if p.config.model.layers == layers}
    assert planned.keys() & {row["run"] for row in rows}, "none of the grid's runs are recorded"
    curves, parameters = {}, {}
    for row in rows:
        if row["run"] in planned:
            arm, seed = planned[row["run"]].arm, int(row["seed"])
            points = csv.DictReader((folder / "curves" / f"{row['run']}.csv").open(encoding="utf-8"))
            curves.setdefault(arm, {})[seed] = [(float(p["tokens"]), float(p["valid_loss"])) for p in points]
            parameters[arm] = int(row["parameters"])
            kind = scheme_options(row["scheme"], json.loads(row["options"]))[0]
            assert kind.__name__ == scheme_options(METHODS[arm].arm.scheme, {})[0].__name__

    def best(points: list[tuple[float, float]], ratio: float) -> float:
        budget, low = points[-1][0] / ratio, points[0][1]
        for (t0, l0), (t1, l1) in pairwise(points):
            if t0 < budget:
                share = min(1.0, (budget - t0) / (t1 - t0))
                low = min(low, l0 + share * (l1 - l0))
        return low

    found = comparison.table(comparison.read(), base)
    times = folder / "bench_relatives.csv"
    timed = pd.read_csv(times).query("layers == @layers") if times.exists() else None
    for name, method in METHODS.items():
        row, ours = found.loc[name], curves.get(name, {})
        assert row["n"] == len(ours)
        if timed is not None:
            assert row["time"] == timed[timed["scheme"] == method.timed]["step_median"].iloc[-1]
        if not ours:
            continue
        if "standard" in parameters:
            assert row["parameters"] == pytest.approx(parameters[name] / parameters["standard"], rel=1e-12)
        assert row["loss"] == pytest.approx(mean(best(points, 1) for points in ours.values()), rel=1e-12)
        if len(ours) > 1:
            assert row["sd"] == pytest.approx(stdev(best(points, 1) for points in ours.values()), rel=1e-9)
        shared = ours.keys() & curves.get("standard", {}).keys()
        for column, ratio in (("at_tokens", 1), ("at_flops", row["flops"]), ("at_seconds", row["time"])):
            if shared and ratio == ratio:
                gaps = [best(ours[s], max(ratio, 1)) - best(curves["standard"][s], 1) for s in shared]
                assert row[column] == pytest.approx(mean(gaps), abs=1e-12)
            else:
                assert np.isnan(row[column])


def test_the_ratios_of_the_table_are_those_of_real_models():
    """FLOPs and saved numbers, measured on models of 4 layers; the store's only part is the setting."""
    base = findings.setting("relatives", layers=4)
    paper = comparison.bill(base, 85)
    for name, method in METHODS.items():
        model = Transformer(comparison.config(method, base, 85))
        few, more = (some_tokens(batch, base["context"] + 1, 85) for batch in (2, 3))
        assert bench.flops(model, few) == 2 * base["context"] * paper.loc[name, "flops"]
        saved = [sum(bench.saved_bytes(model, tokens).values()) for tokens in (few, more)]
        assert saved[1] - saved[0] == 4 * base["context"] * paper.loc[name, "saved"]
        assert sum(p.numel() for p in model.parameters()) == paper.loc[name, "parameters"]


def test_the_rows_that_chapter_18_quotes_are_those_of_the_tests():
    """It shows how a method went in; both lines stand in tests/schemes.py."""
    root = Path(__file__).resolve().parent.parent
    chapter = (root / "chapters/18_denser_streams.py").read_text(encoding="utf-8")
    quoted = [line.removeprefix("#").strip() for line in chapter.splitlines() if 'Case("vwn' in line]
    rows = (root / "tests/schemes.py").read_text(encoding="utf-8")
    assert len(quoted) == 2 and all(line in rows for line in quoted)
