"""minihaares.findings: differences, spreads and times from small stores whose numbers were worked out by hand."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from stores import SETTING, put

from minihaares import cli, experiments, findings, results
from minihaares.experiments import GridError
from minihaares.findings import Difference, area, arm, first_attainment, identity
from minihaares.model import ConfigError

ROOT = Path(__file__).resolve().parent.parent
HAARES, BLOCK = arm("haares"), arm("block")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three pairs, and one more run of Block alone. Tokens of the evaluations: 0, 1000, 2000, …"""
    for seed, best in ((1, 1.50), (2, 1.40), (3, 1.60), (4, 1.00)):
        put(tmp_path, "block", seed, [5.0, 3.0, best, 2.5, 2.2])
    put(tmp_path, "haares", 1, [5.0, 3.0, 1.45, 1.46, 1.47], {"blocks": 4})
    put(tmp_path, "haares", 2, [5.0, 3.0, 2.00, 1.42, 1.42], {"detail": "half", "read": "plain"})
    put(tmp_path, "haares", 3, [5.0, 3.0, 1.50, 1.60, 1.70], grid="another")
    return tmp_path


# --- which runs are compared ----------------------------------------------------------------------------------------


def test_a_model_is_the_same_under_every_name_and_spelling():
    same = [("haares", {}), ("haares", {"blocks": 4, "gamma": 4}), ("block", {"detail": "half"}),
            ("haares", {"read": "recompute", "bias_init": -2})]  # fmt: skip
    assert len({identity(*pair) for pair in same}) == 1
    others = [identity(a.scheme, a.options) for a in findings.ARMS.values()] + [identity("haares", {"blocks": 6})]
    assert len(set(others)) == len(others)
    assert identity("haares", {"detail": "none"}) == arm("block").identity
    assert identity("block", {"blocks": [12, 12]}) == identity("block", {"blocks": (12, 12)})
    with pytest.raises(ConfigError, match="no option 'detial'"):
        identity("haares", {"detial": "half"})


def test_runs_of_every_grid_are_found_and_others_are_not(store):
    put(store, "haares", 5, [5.0, 1.0], layers=24)
    put(store, "haares", 6, [5.0, 1.0], steps=400)
    put(store, "haares", 7, [5.0, 1.0], {"blocks": 6})
    put(store, "haares", 8, [5.0, 1.0], tokenizer="bpe")
    records = findings.read(store)
    assert list(records.rows(HAARES, SETTING).index) == [1, 2, 3]
    assert list(records.rows(arm("haares", blocks=6), SETTING).index) == [7]
    assert list(records.rows(HAARES, {**SETTING, "layers": 24}).index) == [5]
    assert records.rows(arm("duplicate"), SETTING).empty
    assert records.tokens(SETTING) == 4000 and records.tokens({**SETTING, "layers": 3}) == 0
    assert len(records.settings()) == 4 and records.settings()[0] == SETTING
    assert records.settings(layers=24) == [{**SETTING, "layers": 24}]


def test_the_setting_of_a_grid_is_that_of_its_runs(tmp_path):
    """A run of a grid of the book is found by the setting that the grid's name gives."""
    [planned] = experiments.read_grid("headline")[:1]
    config = planned.config
    base = findings.setting("headline")
    assert base["layers"] == config.model.layers == 48 and base["lr"] == config.train.lr
    assert set(base) == set(SETTING)
    put(tmp_path, "block", 42, [3.0, 2.0], **base)
    assert list(findings.read(tmp_path).rows(BLOCK, base).index) == [42]
    assert findings.setting("headline", layers=12) == {**base, "layers": 12}
    with pytest.raises(GridError, match="no depth"):
        findings.setting("headline", depth=12)


def test_all_validation_chunks_are_zero_in_a_setting(tmp_path):
    put(tmp_path, "block", 1, [3.0, 2.0], eval_chunks=None)
    assert list(findings.read(tmp_path).rows(BLOCK, {**SETTING, "eval_chunks": 0}).index) == [1]


def test_runs_that_cannot_be_compared_are_refused(store):
    put(store, "haares", 9, [5.0, 1.0], corpus_hash="other")
    put(store, "block", 9, [5.0, 1.0])
    with pytest.raises(GridError, match="different texts: see corpus_hash"):
        findings.read(store).difference(HAARES, BLOCK, SETTING)
    put(store, "block", 9, [5.0, 1.1])
    with pytest.raises(GridError, match="several runs of seed 9"):
        findings.read(store).rows(BLOCK, SETTING)


def test_wrong_names_are_one_sentence(store, tmp_path):
    with pytest.raises(GridError, match="no arm 'haar'; there are standard, block, haares"):
        arm("haar")
    with pytest.raises(GridError, match="no measure 'median'; there are best, last"):
        findings.read(store).values(BLOCK, SETTING, "median")
    with pytest.raises(GridError, match="minihaares ablate headline"):
        findings.read(tmp_path / "empty")


# --- differences and their spread -----------------------------------------------------------------------------------


def test_differences_are_paired_by_seed(store):
    found = findings.read(store).difference(HAARES, BLOCK, SETTING)
    assert found.points.to_dict() == pytest.approx({1: -0.05, 2: 0.02, 3: -0.10})
    assert found.n == 3
    assert found.mean == pytest.approx(-0.13 / 3)
    assert found.sd == pytest.approx(math.sqrt((0.02 / 3) ** 2 / 2 + (0.19 / 3) ** 2 / 2 + (0.17 / 3) ** 2 / 2))
    assert found.interval is None
    back = findings.read(store).difference(BLOCK, HAARES, SETTING)
    assert back.mean == pytest.approx(-found.mean) and back.sd == pytest.approx(found.sd)


def test_no_common_seed_is_no_difference(store):
    found = findings.read(store).difference(arm("phase"), BLOCK, SETTING)
    assert found.n == 0 and found.points.empty and math.isnan(found.mean) and found.interval is None


@pytest.mark.parametrize(
    "measure,expected",
    [
        ("last", {1: 1.47 - 2.2, 2: 1.42 - 2.2, 3: 1.70 - 2.2}),
        ("bits", {1: -0.075, 2: 0.03, 3: -0.15}),
        # (3 + best)/2 + (best + l3)/2 + (l3 + l4)/2, over three stretches
        ("area", {1: -(0.05 + 1.04 + 0.365) / 3, 2: (0.6 - 1.08 - 0.39) / 3, 3: -(0.1 + 0.9 + 0.25) / 3}),
    ],
)
def test_other_measures(store, measure, expected):
    found = findings.read(store).difference(HAARES, BLOCK, SETTING, measure)
    assert found.points.to_dict() == pytest.approx(expected)


@pytest.mark.parametrize("seeds", [6, 8])
def test_the_interval_is_that_of_the_paired_t_test(seeds):
    rng = np.random.default_rng(seeds)
    base = rng.normal(1.4, 0.02, seeds)
    ours = base + rng.normal(-0.01, 0.015, seeds)
    outside = stats.ttest_rel(ours, base).confidence_interval(0.95)
    assert Difference(pd.Series(ours - base)).interval == pytest.approx((outside.low, outside.high))


def test_few_seeds_carry_no_interval():
    assert Difference(pd.Series([-0.01, -0.02, -0.03])).interval is None
    assert Difference(pd.Series([-0.01, -0.02, -0.03, -0.01, -0.02])).interval is None
    assert math.isnan(Difference(pd.Series([-0.01])).sd)


# --- curves and times -----------------------------------------------------------------------------------------------


def curve(tokens: list[float], losses: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"step": range(len(tokens)), "tokens": tokens, "valid_loss": losses})


def test_area_is_the_mean_loss_after_the_start():
    assert area(curve([0, 10, 20, 30], [9.0, 2.0, 1.0, 1.0])) == pytest.approx((1.5 + 1.0) / 2)
    assert area(curve([0, 10, 20, 50], [9.0, 2.0, 1.0, 3.0])) == pytest.approx((10 * 1.5 + 30 * 2.0) / 40)
    assert math.isnan(area(curve([0, 10], [9.0, 2.0])))


def test_first_attainment_lies_between_evaluations():
    falling = curve([0, 1000, 2000, 3000, 4000], [5.0, 3.0, 1.0, 2.0, 0.5])
    assert first_attainment(falling, 2.0) == pytest.approx(1500)
    assert first_attainment(falling, 1.0) == 2000
    assert first_attainment(falling, 0.75) == pytest.approx(3000 + 1000 * 1.25 / 1.5)
    assert first_attainment(falling, 6.0) == 0
    assert math.isnan(first_attainment(falling, 0.4))


def test_time_to_quality_has_the_baselines_own_attainment_as_denominator(tmp_path):
    put(tmp_path, "block", 1, [5.0, 3.0, 2.0, 2.5, 2.2])
    put(tmp_path, "haares", 1, [5.0, 3.0, 1.5, 1.4, 1.4])  # 2.0 after 1000 + 1000 · 1.0/1.5 tokens
    put(tmp_path, "block", 2, [5.0, 4.0, 3.0, 2.0, 1.0])
    put(tmp_path, "haares", 2, [5.0, 4.0, 3.0, 2.0, 1.1])
    found = findings.read(tmp_path).attainment(HAARES, BLOCK, SETTING, step_ratio=1.2)
    assert found.loc[1].to_dict() == pytest.approx(
        {"target": 2.0, "arm_tokens": 5000 / 3, "baseline_tokens": 2000, "budget_tokens": 4000, "time": 1.0,
         "time_of_budget": 0.5}
    )  # fmt: skip
    assert found.loc[2, ["target", "baseline_tokens"]].tolist() == [1.0, 4000]
    assert found.loc[2, ["arm_tokens", "time", "time_of_budget"]].isna().all()


def test_curves_are_indexed_by_tokens(store):
    curves = findings.read(store).curves(HAARES, SETTING)
    assert list(curves.columns) == [1, 2, 3] and list(curves.index) == [0, 1000, 2000, 3000, 4000]
    assert curves.loc[2000].tolist() == [1.45, 2.0, 1.5]
    assert findings.read(store).curves(arm("phase"), SETTING).empty


def test_step_ratios_come_from_the_latest_measurement():
    table = pd.DataFrame(
        {
            "layers": [48, 48, 48, 48, 12, 24],
            "scheme": ["standard", "block", "haares", "haares", "haares", "block"],
            "step_median": [1.0, 1.25, 9.0, 1.5, 7.0, math.nan],
        }
    )
    assert findings.step_ratio("haares", "block", 48, table) == pytest.approx(1.2)
    assert findings.step_ratio("block", "standard", 48, table) == pytest.approx(1.25)
    with pytest.raises(GridError, match="No step of haares at 24 layers is timed"):
        findings.step_ratio("haares", "block", 24, table)
    assert 1.0 < findings.step_ratio("haares", "block", 48) < 1.3  # as recorded


# --- the paper's numbers --------------------------------------------------------------------------------------------


def test_the_papers_numbers_agree_with_each_other():
    """Means are means of their seeds, and differences of differences come out, as far as four decimals tell."""
    rows, checked = findings.paper(), 0
    assert not rows.duplicated(["table", "layers", "blocks", "arm", "baseline", "corpus", "seed"]).any()
    for (table, *_), group in rows.groupby(["table", "layers", "blocks", "arm", "baseline"]):
        seeds, means = group[group["seed"].notna()], group[group["seed"].isna()]
        if len(seeds):
            assert float(means["difference"].iloc[0]) == pytest.approx(seeds["difference"].mean(), abs=1e-4), table
            checked += 1
    assert checked == 8
    full, parts = findings.paper_mean(table=12, arm="haares", baseline="block"), {}
    for name in ("duplicate", "no match"):
        parts[name] = findings.paper_mean(table=12, arm=name, baseline="block")
        assert findings.paper_mean(table=12, arm="haares", baseline=name) == pytest.approx(full - parts[name], abs=1e-4)
    assert findings.paper_mean(table=7, arm="haares", baseline="standard") == pytest.approx(
        full + findings.paper_mean(table=7, arm="block", baseline="standard"), abs=1e-4
    )
    steps = {42: 24, 123: 20, 2026: 14}
    times = findings.paper(table=14).dropna(subset="seed").set_index("seed")["difference"]
    assert times.to_dict() == pytest.approx({seed: k / 30 * 17 / 14 - 1 for seed, k in steps.items()}, abs=5e-5)


def test_the_paper_has_one_mean_or_none():
    assert findings.paper_mean(table=6, layers=24) == 0.0016
    with pytest.raises(GridError, match="4 means"):
        findings.paper_mean(table=10, layers=48)
    with pytest.raises(GridError, match="0 means"):
        findings.paper_mean(table=6, layers=96)


# --- the table ------------------------------------------------------------------------------------------------------


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """Eight pairs, two seeds of the duplicate and one run at 12 layers."""
    for seed, gain in enumerate([0.01, 0.02, 0.03, 0.02, 0.01, 0.02, 0.03, -0.02], start=1):
        put(tmp_path, "block", seed, [5.0, 1.5])
        put(tmp_path, "haares", seed, [5.0, 1.5 - gain])
    put(tmp_path, "haares", 1, [5.0, 1.53], {"detail": "duplicate"})
    put(tmp_path, "haares", 2, [5.0, 1.49], {"detail": "duplicate"})
    put(tmp_path, "haares", 1, [5.0, 1.7], layers=12)
    return tmp_path


def test_our_numbers_beside_the_papers(wide):
    table = findings.beside_the_paper(findings.read(wide), SETTING).set_index(["arm", "baseline", "layers", "blocks"])
    row = table.loc[("haares", "block", 48, 4)]
    low, high = stats.ttest_1samp([-0.01, -0.02, -0.03, -0.02, -0.01, -0.02, -0.03, 0.02], 0).confidence_interval()
    assert row["n"] == 8 and row["mean"] == pytest.approx(-0.015) and row["same_side"] == 7
    assert (row["low"], row["high"]) == pytest.approx((low, high))
    assert row["paper"] == -0.0188 and row["table"] == 10
    row = table.loc[("duplicate", "block", 48, 4)]
    assert (row["n"], row["same_side"], row["paper"]) == (2, 1, -0.0209)
    assert row["mean"] == pytest.approx(0.01) and row["sd"] == pytest.approx(0.04 / math.sqrt(2))
    assert math.isnan(row["low"])
    assert table.loc[("haares", "block", 12, 4), "n"] == 0  # its partner is missing


def test_the_table_shows_what_is_recorded_and_what_is_not(wide):
    lines = results.results_table(findings.read(wide), SETTING).splitlines()
    assert "Ours: width 32, 0.0 million tokens of TinyStories" in lines[1] and "per character" in lines[0]
    [row] = [line for line in lines if line.startswith("| HAARES − Block AttnRes | 48 | 4 |")]
    assert row == (
        "| HAARES − Block AttnRes | 48 | 4 | −0.0150 (95 %: −0.0284 to −0.0016) | 0.0160 | 8 | "
        "−0.0188 (Table 10, TinyStories) | 7 of 8 |"
    )
    [row] = [line for line in lines if line.startswith("| duplicate C − Block")]
    assert row == (
        "| duplicate C − Block AttnRes | 48 | 4 | +0.0100 | 0.0283 | 2 | −0.0209 (Table 12, OpenWebText) | 1 of 2 |"
    )
    [row] = [line for line in lines if line.startswith("| random sign − Block")]
    assert row == "| random sign − Block AttnRes | 48 | 4 | not recorded |  |  | +0.0003 (Table 12, OpenWebText) |  |"
    assert not [line for line in lines if "ReZero" in line]


def test_other_settings_stand_below_in_bits_per_byte(wide):
    assert "In other settings" not in results.results_table(findings.read(wide), SETTING)
    for seed, (ours, theirs) in enumerate([(1.4, 1.5), (1.6, 1.4)], start=1):
        put(wide, "haares", seed, [5.0, ours], lr=3e-3, layers=24)
        put(wide, "block", seed, [5.0, theirs], lr=3e-3, layers=24)
    put(wide, "standard", 2, [5.0, 1.75], lr=3e-3, layers=24)
    put(wide, "haares", 1, [5.0, 2.0], tokenizer="bpe")
    put(wide, "block", 1, [5.0, 3.0], tokenizer="bpe")
    put(wide, "block", 1, [5.0, 3.0], corpus="stories")  # nothing to compare with
    records = findings.read(wide)
    bits = records.values(arm("haares"), {**SETTING, "tokenizer": "bpe"}, "bits")[1] / 2.0  # bits per byte of a nat
    rows = results.elsewhere(records, SETTING)
    assert list(rows["text"]) == ["TinyStories, characters", "TinyStories, BPE"] and list(rows["layers"]) == [24, 48]
    assert rows["haares mean"].to_list() == pytest.approx([0.05 * bits, -bits])
    assert rows["block mean"][0] == pytest.approx(-0.35 * bits) and rows["block n"].to_list() == [1, 0]
    last = results.results_table(records, SETTING).splitlines()[-2:]
    spread = 0.15 * math.sqrt(2) * bits
    assert last[0].endswith(
        f"| 24 | 0.0 M | 0.003 | +{0.05 * bits:.4f} ± {spread:.4f} (2) | −{0.35 * bits:.4f} (1) |"
    )
    assert last[1].endswith(f"| −{bits:.4f} (1) |  |")


README = "# A title\n\n<!-- results -->\nold\n| a |\n<!-- /results -->\n\nAfter.\n"


def test_the_command_prints_the_table_and_puts_it_into_the_readme(tmp_path, monkeypatch, capsys):
    base = findings.setting("headline")
    put(tmp_path / "store", "block", 42, [5.0, 1.5], **base)
    put(tmp_path / "store", "haares", 42, [5.0, 1.4], **base)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["ablate", "--table", "--store", "store"]) == 0
    printed = capsys.readouterr().out
    assert "−0.1000" in printed and "README" not in printed
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    assert cli.main(["ablate", "--table", "--store", "store"]) == 0
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    table = results.results_table(findings.read(tmp_path / "store"), base)
    assert text == README.replace("old\n| a |\n", table) and "README" in capsys.readouterr().out
    assert cli.main(["ablate", "--table", "--store", "store"]) == 0
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == text
    assert cli.main(["ablate", "--table", "--store", "nowhere"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("minihaares: No run is recorded in nowhere") and said.count("\n") == 1


def test_the_readme_holds_what_the_store_gives():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = results.BLOCK.search(readme)
    if not found:
        pytest.skip("README.md has no place for the table")
    assert found.group(0) == results.results_table(findings.read(), findings.setting("headline")), (
        "run `minihaares ablate --table`"
    )
