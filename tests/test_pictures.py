"""minihaares.pictures: every picture draws what is recorded, names what is not, and says in words what it draws."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from stores import put

from minihaares import findings, pictures, plots
from minihaares.experiments import GridError

ROOT = Path(__file__).resolve().parent.parent
BASE = findings.setting("headline")
SEEDS = (1, 2, 3, 4, 5, 6)


def losses(best: float) -> list[float]:
    return [5.0, 3.0, best + 0.1, best]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> Path:
    """Six pairs at 48 layers, with HAARES 0.01 below; three seeds of most other things."""
    store = tmp_path_factory.mktemp("full")
    for seed in SEEDS:
        put(store, "block", seed, losses(1.5 + seed / 100), **BASE)
        put(store, "haares", seed, losses(1.49 + seed / 100 + (seed % 2) / 500), **BASE)
    for seed in SEEDS[:3]:
        put(store, "standard", seed, losses(1.55), **BASE)
        put(store, "haares", seed, losses(1.6), {"detail": "duplicate"}, **BASE)
        put(store, "haares", seed, losses(1.7), {"blocks": 6}, **BASE)
        put(store, "block", seed, losses(1.6), {"blocks": 6}, **BASE)
        put(store, "haares", seed, losses(2.5), **BASE | {"tokenizer": "bpe"})
        put(store, "block", seed, losses(2.75), **BASE | {"tokenizer": "bpe"})
        for layers in (12, 24):
            put(store, "block", seed, losses(1.6 + layers / 100), **BASE | {"layers": layers})
            put(store, "haares", seed, losses(1.5), **BASE | {"layers": layers})
    return store


@pytest.fixture(scope="module")
def little(tmp_path_factory) -> Path:
    """One pair."""
    store = tmp_path_factory.mktemp("little")
    put(store, "block", 42, losses(1.5), **BASE)
    put(store, "haares", 42, losses(1.75), **BASE)
    return store


def written(figure) -> str:
    """All the text in a figure."""
    return " ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


@pytest.mark.parametrize("name", pictures.PICTURES)
@pytest.mark.parametrize("which", ["full", "little"])
def test_every_picture_draws_and_describes_itself(name, which, request, tmp_path):
    figure, alt = pictures.PICTURES[name](request.getfixturevalue(which))
    _, png = plots.save(figure, name, alt, tmp_path)
    assert plots.alt_text(png) == alt and 30 < len(alt.split()) < 400
    assert "nan" not in alt and "  " not in alt and "\n" not in alt


@pytest.mark.parametrize(
    "name,which,words",
    [
        ("paired", "full", "chars, width 32, rate 0.003: mean −0.0090 over 6 seeds (from −0.0100 to −0.0080, 95 %"),
        ("paired", "full", "BPE, width 32, rate 0.003: mean −0.2500 over 3 seeds (from −0.2500 to −0.2500)"),
        ("paired", "full", "201M −0.0168, −0.0322, −0.0449"),
        ("paired", "little", "rate 0.003: +0.2500 (one seed)"),
        ("depth", "full", "HAARES minus Block AttnRes at 24 layers mean −0.3400 over 3 seeds"),
        ("depth", "full", "Block AttnRes minus Standard at 12 layers not recorded"),
        ("depth", "full", "Block AttnRes minus Standard at 48 layers mean −0.0300 over 3 seeds"),
        ("granularity", "full", "HAARES minus Block AttnRes with 6 blocks: mean +0.1000 over 3 seeds"),
        ("granularity", "full", "Block AttnRes with 8 blocks: not recorded"),
        ("ablations", "full", "duplicate C mean +0.0800 over 3 seeds (from +0.0700 to +0.0900), the paper's −0.0209"),
        ("ablations", "full", "random sign not recorded, the paper's +0.0003"),
        ("curves", "full", "Block AttnRes ends at 1.535 (mean of 6, from 1.510 to 1.560)"),
        ("curves", "little", "Standard is not recorded"),
        ("curves", "little", "at the end +0.2500 (one seed)"),
        ("bill", "little", "1 of 1 seeds never reach it"),
        ("bill", "full", "0 of 6 seeds never reach it"),
    ],
)
def test_alt_text_says_what_the_records_say(name, which, words, request):
    alt = pictures.PICTURES[name](request.getfixturevalue(which))[1]
    assert words in alt


def test_points_are_where_the_records_are(full):
    """Every difference of the strip stands in the figure, and the mean as a bar."""
    figure, _ = pictures.ablations(full)
    [axes] = figure.axes
    drawn = [line.get_xdata() for line in axes.get_lines() if line.get_marker() == "D" and len(line.get_xdata()) > 1]
    points = findings.read(full).difference(findings.arm("haares"), findings.arm("block"), BASE).points
    assert any(len(xs) == len(points) and xs == pytest.approx(points.to_numpy()) for xs in drawn)
    bars = [segment[0][0] for bar in axes.collections for segment in bar.get_segments()]
    assert any(x == pytest.approx(points.mean()) for x in bars)


def test_what_is_missing_is_named_in_the_picture(little, full):
    assert written(pictures.depth(little)[0]).count("not recorded") == 5
    assert written(pictures.ablations(little)[0]).count("not recorded") == 6
    assert "Standard: not recorded" in written(pictures.curves(little)[0])
    assert "(1 of 1 seeds never)" in written(pictures.bill(little)[0])
    assert "never" not in written(pictures.bill(full)[0])
    assert "ReZero" not in written(pictures.ablations(little)[0])


def test_only_many_seeds_get_an_interval(full, little):
    def brackets(figure) -> int:
        kinds = [type(c).__name__ for axes in figure.axes for c in axes.containers]
        return kinds.count("ErrorbarContainer")

    assert brackets(pictures.paired(full)[0]) == 1  # characters, not the three seeds in BPE
    assert brackets(pictures.paired(little)[0]) == 0


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_nothing_recorded_is_one_sentence(name, tmp_path):
    with pytest.raises(GridError, match="No run is recorded"):
        pictures.PICTURES[name](tmp_path)
    put(tmp_path, "rezero", 1, losses(1.0), **BASE | {"layers": 6})
    with pytest.raises(GridError, match=r"^No .* is recorded in .*--list` shows what is\.$"):
        pictures.PICTURES[name](tmp_path)
    assert not plt.get_fignums()
    with pytest.raises(SystemExit, match=f"^{name}.py: No "):
        pictures.write(tmp_path / f"{name}.py", tmp_path)


def test_a_script_writes_beside_itself(little, tmp_path):
    svg, png = pictures.write(tmp_path / "bill.py", little)
    assert svg == tmp_path / "bill.svg" and png.exists()
    scripts = {path.stem for path in (ROOT / "figures").glob("*.py") if "pictures.write" in path.read_text()}
    assert scripts == set(pictures.PICTURES)


def test_level_lines_belong_to_the_text(tmp_path):
    """n-grams of the very text, tokens and chunks; floors for the built-in stories only."""
    base = BASE | {"corpus": "stories"}
    put(tmp_path, "block", 1, losses(1.5), **base)
    put(tmp_path, "block", 1, losses(1.5), **BASE)
    row = {"corpus": "stories", "corpus_hash": "c0", "tokenizer": "char", "tokenizer_hash": "t0",
           "context": base["context"], "eval_chunks": base["eval_chunks"]}  # fmt: skip
    rows = [{**row, "order": k, "loss": loss} for k, loss in enumerate((3.0, 2.0, 1.0, 0.98, 0.99))]
    pd.DataFrame([*rows, {**row, "corpus_hash": "c1", "order": 3, "loss": 0.5}]).to_csv(tmp_path / "ngrams.csv")
    alt = pictures.curves(tmp_path, base)[1]
    assert "order 3 reaches 0.980; an n-gram of order 1 reaches 2.000; an n-gram of order 0 reaches 3.000" in alt
    assert "0.500" not in alt and "exact floor at 0.090" in alt and "forgetful reader at 0.156" in alt
    assert "floor" not in pictures.curves(tmp_path)[1]
    pd.DataFrame([{**rows[0], "corpus_hash": "c1"}]).to_csv(tmp_path / "ngrams.csv")
    assert "n-gram" not in pictures.curves(tmp_path)[1]


def test_the_ladder_leaves_room_between_its_rungs():
    assert pictures.ladder(pd.Series({0: 3.0, 1: 2.0, 2: 1.05, 3: 1.0})) == [3, 1, 0]
    assert pictures.ladder(pd.Series(dtype=float)) == []
