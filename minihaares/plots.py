"""One look for every picture, readable in greyscale and by colour-blind readers, and never without alt text.

A scheme has the same colour, line and marker everywhere (SCHEME_STYLE), so that no legend is needed to recognise it
and no two schemes are told apart by colour alone. A picture leaves here in one of two ways: `show` puts it into a
notebook, `save` into figures/; both ask for the sentence that says what it shows.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib import cycler
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, StrMethodFormatter
from PIL import Image

# Seven colours that stay apart for the common kinds of colour blindness (Okabe and Ito 2008, the yellow left out:
# it is lost on white).
BLACK, BLUE, ORANGE, SKY, GREEN, VERMILION, PURPLE = (
    "#000000", "#0072B2", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7",
)  # fmt: skip

# Keyword arguments of Axes.plot, by the name of a scheme in minihaares.model.
SCHEME_STYLE: dict[str, dict[str, str]] = {
    "standard": {"label": "Standard", "color": BLACK, "linestyle": "-", "marker": "o"},
    "block": {"label": "Block AttnRes", "color": BLUE, "linestyle": "--", "marker": "s"},
    "haares": {"label": "HAARES", "color": ORANGE, "linestyle": "-.", "marker": "D"},
    "attnres": {"label": "Full AttnRes", "color": SKY, "linestyle": ":", "marker": "^"},
    "postnorm": {"label": "PostNorm", "color": VERMILION, "linestyle": "--", "marker": "v"},
    "deepnorm": {"label": "DeepNorm", "color": PURPLE, "linestyle": "-", "marker": "P"},
    "rezero": {"label": "ReZero", "color": GREEN, "linestyle": ":", "marker": "X"},
    "layerscale": {"label": "LayerScale", "color": "#7F7F7F", "linestyle": "-.", "marker": "<"},
    "hires": {"label": "HiRes", "color": VERMILION, "linestyle": "-", "marker": "p"},
    "denseformer": {"label": "DenseFormer", "color": GREEN, "linestyle": "--", "marker": "h"},
    "muddformer": {"label": "MUDDFormer", "color": PURPLE, "linestyle": "-.", "marker": ">"},
    "delta": {"label": "Delta AttnRes", "color": SKY, "linestyle": "-.", "marker": "d"},
    "hc": {"label": "Hyper-Connections", "color": BLUE, "linestyle": ":", "marker": "*"},
    "mhc": {"label": "mHC", "color": ORANGE, "linestyle": ":", "marker": "8"},
    "vwn": {"label": "VWN", "color": "#7F7F7F", "linestyle": "--", "marker": "H"},
}
# A floor that no reader can go below, and the one for a reader who forgets: lines across a picture.
FLOOR_STYLE: dict[str, dict[str, object]] = {
    "exact": {"label": "exact floor", "color": "0.35", "linestyle": "-", "linewidth": 1.0},
    "forgetful": {"label": "forgetful reader", "color": "0.35", "linestyle": (0, (1, 3)), "linewidth": 1.4},
}

STYLE = {
    "figure.figsize": (6.8, 3.8),  # inches
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",  # also on a dark page
    "savefig.facecolor": "white",
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "image.cmap": "cividis",  # its lightness rises steadily, so a map reads in grey as well
    "axes.prop_cycle": cycler(color=[BLACK, BLUE, ORANGE, SKY, VERMILION, PURPLE, GREEN])
    + cycler(linestyle=["-", "--", "-.", ":", "--", "-", ":"]),
    "svg.hashsalt": "minihaares",  # ids in an svg are random without one
}
SHOW_DPI, SAVE_DPI = 100, 200
SHORTEST_ALT = 4  # words


def use_style() -> None:
    """Make STYLE the way this process draws. Called once, before the first figure."""
    plt.rcParams.update(STYLE)


def _checked(alt: str) -> str:
    alt = " ".join(alt.split())
    if len(alt.split()) < SHORTEST_ALT:
        raise ValueError(f"alt text stands in for the picture: say in a sentence what it shows, not {alt!r}")
    return alt


def show(figure: Figure, alt: str) -> None:
    """Show a figure in a notebook as a PNG that carries its alt text, and close it.

    The alt text is stored twice: in the output's metadata, where the web book takes it from, and as the plain-text
    form of the output, which is what the check of a chapter's outputs compares.

    Raises ValueError if alt is not at least a few words.
    """
    from IPython.display import display  # only notebooks have it: it isn't among the package's needs

    alt = _checked(alt)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=SHOW_DPI, metadata={"Software": None})
    plt.close(figure)
    data = {"image/png": picture.getvalue(), "text/plain": alt}
    display(data, raw=True, metadata={"image/png": {"alt": alt}})


def save(figure: Figure, name: str, alt: str, folder: Path | str = "figures") -> tuple[Path, Path]:
    """Write folder/name.svg and folder/name.png, close the figure, and return both paths.

    Both files hold the alt text as their Description (read it back with `alt_text`) and nothing that changes from
    run to run, so drawing the same figure again leaves the same bytes.

    Raises ValueError if alt is not at least a few words.
    """
    alt = _checked(alt)
    svg, png = Path(folder) / f"{name}.svg", Path(folder) / f"{name}.png"
    svg.parent.mkdir(parents=True, exist_ok=True)
    about = {"Title": name, "Description": alt}
    with plt.rc_context({"svg.hashsalt": STYLE["svg.hashsalt"]}):
        figure.savefig(svg, metadata={**about, "Date": None, "Creator": None})
        figure.savefig(png, dpi=SAVE_DPI, metadata={**about, "Software": None})
    plt.close(figure)
    return svg, png


def alt_text(png: Path | str) -> str:
    """The alt text that `save` put into a PNG; empty for a PNG without one."""
    with Image.open(png) as picture:
        return picture.info.get("Description", "")


def curves(
    losses: Mapping[str, Sequence[tuple[float, float]]], floor: float | None = None, forgetful: float | None = None
) -> Figure:
    """Learning curves: for each scheme the pairs of tokens seen and validation loss (nats per token), and the floors.

    The loss axis is logarithmic, since what is left to learn is a matter of ratios. Schemes need a SCHEME_STYLE."""
    figure, axes = plt.subplots()
    for scheme, points in losses.items():
        axes.plot(*zip(*points, strict=True), **SCHEME_STYLE[scheme])
    for kind, height in (("forgetful", forgetful), ("exact", floor)):
        if height is not None:
            axes.axhline(height, **FLOOR_STYLE[kind])
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlabel="tokens seen in training", ylabel="validation loss, nats per token")
    axes.legend()
    return figure
