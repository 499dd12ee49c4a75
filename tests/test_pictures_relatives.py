"""The pictures of the relatives show what the table and the store hold."""

from pathlib import Path

import matplotlib
import pytest

matplotlib.use("Agg")

from minihaares import costs, pictures_relatives, plots
from minihaares.comparison import METHODS
from minihaares.experiments import GridError, read_grid
from minihaares.model import ModelConfig
from minihaares.pictures_relatives import FAMILY, LANES, PLACES
from tests.stores import put


@pytest.fixture(autouse=True)
def closed():
    yield
    plots.plt.close("all")


def test_the_family_is_that_of_the_table():
    """Every method stands in the tree under the source that the table gives, and children are younger."""
    for name, method in METHODS.items():
        member = FAMILY.get({"standard": "resnet", "block": "attnres", "delta_block": "delta"}.get(name, name))
        assert member.source == method.source, name
    for member in FAMILY.values():
        assert member.lane in LANES
        for parent in member.parents:
            older = FAMILY[parent.strip("~")]
            assert PLACES[older.source[:4]] < PLACES[member.source[:4]]
            assert older.source < (member.source or "2606"), member.label


def test_the_tree_draws_every_member_once_and_names_it_in_its_words():
    figure, alt = pictures_relatives.family_tree()
    texts = [text.get_text() for text in figure.axes[0].texts]
    for member in FAMILY.values():
        assert texts.count(member.label) == 1
        assert (member.source or "no arXiv id known") in texts and (member.source in alt)
    arrows = sum(len(member.parents) for member in FAMILY.values())
    assert len([text for text in figure.axes[0].texts if getattr(text, "arrow_patch", None)]) == arrows
    places = {(PLACES[m.source[:4]], m.lane, m.height) for m in FAMILY.values()}
    assert len(places) == len(FAMILY)  # no box on another


def test_wide_streams_have_their_widths():
    figure, alt = pictures_relatives.wide_streams()
    bands = [sum(p.get_width() for p in axes.patches if p.get_x() < 5) for axes in figure.axes]
    stored = [METHODS[name].stored for name in ("standard", "hc", "vwn", "hires")]
    assert bands == [1, 4, 2, 2] and stored == [1, 4, 2, 3]  # HiRes stores its inner stream besides
    assert "group of two layers" in alt


def test_the_comparison_shows_each_seed(tmp_path: Path):
    config = read_grid("relatives")[0].config
    shape = {name: getattr(config.model, name) for name in ("width", "heads", "ff")}
    setting = shape | {"context": config.data.context, "batch_size": 8, "lr": 3e-3, "steps": 800, "eval_every": 40}
    for scheme, ends in (("standard", (2.0, 2.5)), ("hires", (1.75, 2.75)), ("muddformer", (2.125, 3.5))):
        sizes = dict(shape, layers=12, vocab_size=31)
        parameters = costs.price(ModelConfig(**sizes, scheme=scheme), 128).parameters
        for seed, end in zip((42, 123), ends, strict=True):
            changes = {"layers": 12, "parameters": parameters, "eval_chunks": 128, **setting}
            put(tmp_path, scheme, seed, [4.0, max(3.0, end), end], **changes)
    figure, alt = pictures_relatives.relatives(tmp_path, depths=(12,))
    shown = {float(x) for line in figure.axes[0].lines for x in line.get_xdata()}
    assert {-0.25, 0.25, 0.125} <= shown and 1 not in shown  # MUDDFormer's second run did not learn
    words = [text.get_text() for text in figure.axes[0].texts]
    assert "+1.00 →" in words
    assert "MUDDFormer at 12 layers mean +0.5625 over 2 seeds (from +0.1250 to +1.0000)" in alt
    assert "HiRes at 12 layers mean +0.0000 over 2 seeds (from −0.2500 to +0.2500)" in alt
    assert "mHC at 12 layers not recorded" in alt
    with pytest.raises(GridError, match="No run at 48 layers"):
        pictures_relatives.relatives(tmp_path)
