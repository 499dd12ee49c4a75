"""The book's records can be made again: a recorded row, run anew here, lands within its band."""

from dataclasses import replace

import pytest

from minihaares import experiments
from minihaares.data import load_corpus
from minihaares.experiments import read_curve, read_grid, read_runs, recorded

# The same settings give the same numbers on the same kind of machine. Another processor or build of torch adds in
# another order, and training multiplies such roundings: over 40 steps to far less than this, relative to the loss.
BAND = 1e-3


@pytest.mark.parametrize("arm", ["standard", "haares"])
def test_a_recorded_run_comes_out_again(arm, tmp_path, monkeypatch):
    monkeypatch.setenv("MINIHAARES_CACHE", str(tmp_path / "cache"))
    [planned] = experiments.select(read_grid("quick"), arm)
    rows = read_runs(recorded()).set_index("run")
    assert planned.id in rows.index, "the grid has changed: run `minihaares ablate quick`"
    row, curve = rows.loc[planned.id], read_curve(planned.id, recorded())
    config = replace(planned.config, train=replace(planned.config.train, out=tmp_path / "run"))
    corpus = load_corpus(config.data, progress=False)
    experiments.record(replace(planned, config=config), corpus, "", tmp_path / "store")
    again = read_runs(tmp_path / "store").set_index("run").loc[planned.id]
    exact = ["corpus_hash", "tokenizer_hash", "parameters", "tokens", "seed", "arm", "options", "command"]
    assert again[exact].to_dict() == row[exact].to_dict()
    for name in ("best_loss", "last_loss", "bits_per_byte"):
        assert again[name] == pytest.approx(row[name], rel=BAND), name
    anew = read_curve(planned.id, tmp_path / "store")
    assert anew["step"].tolist() == curve["step"].tolist()
    assert anew["valid_loss"].tolist() == pytest.approx(curve["valid_loss"].tolist(), rel=BAND)
    assert curve["valid_loss"].iloc[-1] < 0.75 * curve["valid_loss"].iloc[0], "a run that learns nothing tests little"


def test_the_store_is_whole():
    """One row a run, a curve for each, and in the row what the curve says."""
    runs = read_runs(recorded())
    assert len(runs) and not runs["run"].duplicated().any()
    for row in runs.itertuples():
        curve = read_curve(row.run, recorded())
        assert row.best_loss == curve["valid_loss"].min() and row.last_loss == curve["valid_loss"].iloc[-1], row.run
        assert row.best_step == curve["step"][curve["valid_loss"].idxmin()] and row.tokens == curve["tokens"].iloc[-1]
        assert curve["step"].iloc[-1] == row.steps and row.command.endswith(f"--only {row.run}")
    stray = {path.stem for path in (recorded() / "curves").glob("*.csv")} - set(runs["run"])
    assert stray == set(), "curves without a row"
