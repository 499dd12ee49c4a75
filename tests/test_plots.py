"""minihaares.plots: schemes are told apart without colour, pictures are the same bytes each time and carry alt text."""

import io
from itertools import combinations
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import IPython.display
import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from minihaares import plots
from minihaares.model import SCHEMES

ALT = "Two lines fall from 3 to 1; the dashed one is always lower than the solid one."


@pytest.fixture
def figure():
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots()
        axes.plot([1, 2, 3], [3, 2, 1], **plots.SCHEME_STYLE["standard"])
        axes.plot([1, 2, 3], [2.5, 1.5, 1], **plots.SCHEME_STYLE["haares"])
        axes.legend()
    yield figure
    plt.close(figure)


def lightness(color: str) -> float:
    """CIE L*, 0 (black) to 100 (white): what is left of a colour in a grey print."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


def test_no_two_schemes_share_line_and_marker():
    looks = [(style["linestyle"], style["marker"]) for style in plots.SCHEME_STYLE.values()]
    assert len(looks) >= 8
    assert len(set(looks)) == len(looks)


def test_the_three_main_schemes_differ_in_line_and_in_grey():
    main = [plots.SCHEME_STYLE[name] for name in ("standard", "block", "haares")]
    for one, other in combinations(main, 2):
        assert one["linestyle"] != other["linestyle"]
        assert abs(lightness(one["color"]) - lightness(other["color"])) > 20


def test_every_scheme_of_the_model_has_a_style():
    assert set(SCHEMES) <= set(plots.SCHEME_STYLE)


def test_use_style_changes_what_is_drawn():
    with plt.rc_context():
        plots.use_style()
        assert plt.rcParams["axes.grid"] and not plt.rcParams["axes.spines.top"]


def test_show_displays_a_png_with_alt_text_and_closes(figure, monkeypatch):
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **options: shown.append((data, options)))
    number = figure.number
    plots.show(figure, "Two lines fall\n   from 3 to 1.")
    [(data, options)] = shown
    assert data["text/plain"] == "Two lines fall from 3 to 1."
    assert options == {"raw": True, "metadata": {"image/png": {"alt": "Two lines fall from 3 to 1."}}}
    width, height = Image.open(io.BytesIO(data["image/png"])).size
    assert (width, height) == tuple(round(inches * plots.SHOW_DPI) for inches in plots.STYLE["figure.figsize"])
    assert not plt.fignum_exists(number)


def test_save_writes_the_same_bytes_twice(figure, tmp_path: Path):
    first = [path.read_bytes() for path in plots.save(figure, "lines", ALT, tmp_path)]
    assert not plt.fignum_exists(figure.number)
    with plt.rc_context({"svg.hashsalt": None}):  # a reader's own setting can't change that
        second = [path.read_bytes() for path in plots.save(figure, "lines", ALT, tmp_path / "new")]
    assert first == second
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["lines.png", "lines.svg"]


def test_both_files_carry_the_alt_text(figure, tmp_path: Path):
    alt = ALT + " Δ = ½"  # outside Latin-1 as well
    svg, png = plots.save(figure, "lines", alt, tmp_path)
    assert plots.alt_text(png) == alt
    assert alt in svg.read_text(encoding="utf-8")


@pytest.mark.parametrize("alt", ["", "   ", "loss curves"])
def test_a_picture_without_alt_text_is_refused(figure, alt, tmp_path: Path):
    with pytest.raises(ValueError, match="say in a sentence"):
        plots.save(figure, "lines", alt, tmp_path)
    with pytest.raises(ValueError, match="say in a sentence"):
        plots.show(figure, alt)
    assert not list(tmp_path.iterdir())
