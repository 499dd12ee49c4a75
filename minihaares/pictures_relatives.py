"""Pictures of HAARES and its relatives: who descends from whom, what widens where, and how far each one got.

As in `pictures`, a function returns the figure and its alt text, both made from the same things.
"""

from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.ticker import MaxNLocator

from . import comparison, findings, plots
from .comparison import METHODS
from .experiments import GridError
from .findings import signed
from .pictures import QUIET, Picture, in_words, look, strip

# ------------------------------------------------------------------------------------------------ the family


class Member(NamedTuple):
    """A method in the tree. `source` is an arXiv id, its first two digits the year; `parents` names what it changes
    ("~" before a name: it puts the same question, and answers it anew)."""

    label: str
    source: str
    lane: str
    height: float  # within its lane, 0 to 1
    parents: tuple[str, ...]


LANES = {
    "one": "one stream, scaled or normed",
    "denser": "denser: layers read many states",
    "wider": "wider: the stream outgrows the layer",
}
FAMILY: dict[str, Member] = {
    "resnet": Member("Residual\nnetworks", "1512.03385", "one", 0.5, ()),
    "postnorm": Member("Transformer\n(PostNorm)", "1706.03762", "one", 0.5, ("resnet",)),
    "prenorm": Member("PreNorm", "2002.04745", "one", 0.0, ("postnorm",)),
    "rezero": Member("ReZero", "2003.04887", "one", 1.0, ("postnorm",)),
    "layerscale": Member("LayerScale", "2103.17239", "one", 1.0, ("rezero",)),
    "deepnorm": Member("DeepNorm", "2203.00555", "one", 0.5, ("postnorm",)),
    "denseformer": Member("DenseFormer", "2402.02622", "denser", 0.5, ("prenorm",)),
    "muddformer": Member("MUDDFormer", "2502.12170", "denser", 1.0, ("denseformer",)),
    "attnres": Member("Attention\nResiduals", "2603.15031", "denser", 0.5, ("~denseformer",)),
    "haares": Member("HAARES", "2606.06564", "denser", 0.0, ("attnres",)),
    "delta": Member("Delta AttnRes", "2605.18855", "denser", 1.0, ("attnres",)),
    "hc": Member("Hyper-\nConnections", "2409.19606", "wider", 0.5, ("prenorm",)),
    "vwn": Member("VWN", "2511.11238", "wider", 0.0, ("hc",)),
    "mhc": Member("mHC", "2512.24880", "wider", 1.0, ("hc",)),
    "hires": Member("HiRes", "", "wider", 0.5, ("~vwn", "~mhc")),
}
"""Descent as the papers tell it: mHC constrains Hyper-Connections and VWN generalises them; HAARES and Delta change
Attention Residuals; MUDDFormer makes DenseFormer's weights depend on the token."""

PLACES = {"1512": 0, "1706": 1, "2002": 2, "2003": 2, "2103": 3, "2203": 3, "2402": 4, "2409": 4, "2502": 5, "2511": 5,
          "2512": 5, "2603": 6, "": 6, "2605": 7, "2606": 7}  # fmt: skip
"""Columns of the tree, in order of time; HiRes has no id, but its article knows Attention Residuals."""
WIDE, HIGH, LANE = 0.86, 0.9, 3.6  # of a box, of a lane


def family_tree() -> Picture:
    """Three lanes from left to right in order of time; a thick frame for HAARES."""
    figure, axes = plots.plt.subplots(figsize=(9.6, 6))
    bottom = {lane: LANE * place for place, lane in enumerate(reversed(LANES))}
    at = {name: (PLACES[m.source[:4]], bottom[m.lane] + 0.5 + 2 * m.height) for name, m in FAMILY.items()}
    for (lane, words), shade in zip(LANES.items(), ("0.97", "0.92", "0.97"), strict=True):
        axes.add_patch(Rectangle((-0.6, bottom[lane] - 0.05), 8.2, LANE - 0.1, color=shade, zorder=0))
        axes.text(-0.5, bottom[lane] + LANE - 0.25, words, va="top", style="italic", fontsize=9.5)
    for name, member in FAMILY.items():
        x, y = at[name]
        weight = 2.6 if name == "haares" else 1
        box = FancyBboxPatch((x - WIDE / 2, y - HIGH / 2), WIDE, HIGH, "round,pad=0,rounding_size=0.08")
        box.set(facecolor="white", edgecolor="black", linewidth=weight, zorder=3)
        axes.add_patch(box)
        axes.text(x, y + 0.12, member.label, ha="center", va="center", fontsize=8, zorder=4, linespacing=0.9)
        words = member.source or "no arXiv id known"
        axes.text(x, y - 0.28, words, ha="center", va="center", fontsize=6.5, color="0.3", zorder=4)
        for parent in member.parents:
            (x0, y0), style = at[parent.strip("~")], "--" if parent.startswith("~") else "-"
            ends = ((x0, y0 - HIGH / 2), (x, y + HIGH / 2)) if x == x0 else ((x0 + WIDE / 2, y0), (x - WIDE / 2, y))
            arrow = {"arrowstyle": "-|>", "linestyle": style, "color": "0.25", "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", ends[1], ends[0], arrowprops=arrow, zorder=2)
    axes.set(xlim=(-0.65, 7.65), ylim=(-0.1, 3 * LANE - 0.1))
    axes.axis("off")
    names = {m.label.replace("-\n", "-").replace("\n", " "): m.source or "no arXiv id known" for m in FAMILY.values()}
    return figure, (
        "A family tree of residual schemes in three lanes from left to right in order of time. One stream: residual "
        "networks, the PostNorm Transformer, PreNorm, ReZero, LayerScale, DeepNorm. Denser: from PreNorm to "
        "DenseFormer to MUDDFormer; Attention Residuals put its question anew, and have the children HAARES and Delta. "
        "Wider: from PreNorm to Hyper-Connections, whose children are VWN and mHC; HiRes puts their question anew. "
        f"Sources: {', '.join(f'{name} ({source})' for name, source in names.items())}."
    )


# ------------------------------------------------------------------------------------------------ wide streams


def wide_streams(layers: int = 4) -> Picture:
    """The four ways to have a stream wider than the layers: what lies along depth, and what a layer touches."""
    figure, panels = plots.plt.subplots(1, 4, figsize=(9.2, 3.6), sharey=True)
    kinds = {
        "Standard": ("one stream of d", 1, 1),
        "Hyper-Connections, mHC": ("n = 4 streams of d,\nmixed at every event", 4, 4),
        "VWN": ("n = 4 slots of d/2,\nmixed at every event", 2, 4),
        "HiRes": ("one stream of D = 2d,\nread and written by groups", 2, 1),
    }
    for axes, (name, (words, width, parts)) in zip(panels, kinds.items(), strict=True):
        for part in range(parts):
            axes.add_patch(
                Rectangle((part * width / parts, 0), width / parts, layers, facecolor="0.85", edgecolor="white")
            )
        grouped = name == "HiRes"
        for layer in range(layers):
            axes.add_patch(Rectangle((5, layer + 0.14), 1, 0.72, facecolor="white", edgecolor="black", linewidth=1.2))
            axes.text(5.5, layer + 0.5, "layer", ha="center", va="center", fontsize=7.5)
            if not grouped:
                touch(axes, width, layer + 0.3, layer + 0.7)
            elif layer % 2 == 0:
                axes.plot([5.5, 5.5], [layer + 0.86, layer + 1.14], "-k", linewidth=1.2)  # the inner stream
                touch(axes, width, layer + 0.3, layer + 1.7)
        axes.set(xlim=(-0.3, 6.3), ylim=(-0.1, layers + 0.1), title=name)
        axes.title.set_fontsize(9)
        axes.set_xlabel(words, fontsize=8.5)
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
    panels[0].set_ylabel("depth, upwards")
    return figure, (
        "Four panels of depth running upwards. Grey bands are what lies along depth: one of width d for Standard, four "
        "of width d side by side for Hyper-Connections and mHC, four of half that width for VWN, one of width 2d for "
        "HiRes. Boxes are layers, all d wide. In the first three each layer has an arrow from the band and one back to "
        "it; in HiRes a group of two layers, joined by a line, shares one arrow from the band and one back."
    )


def touch(axes: Axes, edge: float, low: float, high: float) -> None:
    """An arrow from the stream to a layer, and one back."""
    for start, end, y in ((edge, 5, low), (5, edge, high)):
        axes.annotate(
            "", (end, y), (start, y), arrowprops={"arrowstyle": "-|>", "color": "0.25", "shrinkA": 0, "shrinkB": 1}
        )


# ------------------------------------------------------------------------------------------------ how far they got

FAR = 0.6  # nats: a run that is further behind has not learned to use context; it is named at the edge, not drawn
BUDGETS = {"at_tokens": "tokens", "at_flops": "FLOPs", "at_seconds": "seconds"}


def relatives(store: Path | None = None, depths: tuple[int, ...] = comparison.DEPTHS, **changes: Any) -> Picture:
    """Each method − Standard by seed at equal tokens, and the means at equal FLOPs and seconds; a panel a depth.

    `changes` narrow the setting of the grid `relatives`. Raises GridError if nothing is recorded.
    """
    records, names = comparison.read(store), [name for name in METHODS if name != "standard"]
    size = (4.6 * len(depths), 1.2 + 0.42 * len(names))
    figure, panels = plots.plt.subplots(1, len(depths), figsize=size, sharey=True, squeeze=False)
    hollow = {"linestyle": "none", "markerfacecolor": "white", "color": "black", "markersize": 6}
    marks, said = {"at_flops": hollow | {"marker": ">"}, "at_seconds": hollow | {"marker": "D"}}, []
    for axes, layers in zip(panels[0], depths, strict=True):
        base = findings.setting("relatives", layers=layers, **changes)
        table = comparison.table(records, base)
        for place, name in enumerate(names):
            gap = comparison.behind(records, METHODS[name].arm, base)
            far = gap.points[gap.points > FAR]
            if far.empty:
                strip(axes, place, gap.points, look(METHODS[name].arm), across=True)
                for column, style in marks.items():
                    axes.plot(table.loc[name, column], place + 0.3, **style)
            else:  # no mean: it would be one of two kinds of runs
                near = gap.points.drop(far.index)
                axes.plot(near, [place] * len(near), linestyle="none", alpha=0.75, **look(METHODS[name].arm))
                words = f"{', '.join(signed(x, 2) for x in far)} →"
                axes.text(0.99, place, words, transform=axes.get_yaxis_transform(), ha="right", va="center", **QUIET)
            said.append(f"{METHODS[name].arm.label} at {layers} layers {in_words(gap)}")
        axes.axvline(0, color="0.3", linewidth=1)
        axes.set(title=f"{layers} layers", xlabel="method − Standard, nats (left: better)")
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    first = panels[0, 0]
    columns_of(first, [METHODS[name].arm.label for name in names])
    handles = [first.plot([], [], label=f"mean at equal {BUDGETS[name]}", **style)[0] for name, style in marks.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8.5)
    return figure, (
        "Best validation loss of each method minus Standard's at equal tokens, a point a seed and a bar at the mean; "
        "left of zero the method is better; arrows name seeds too far right to be drawn. Hollow: means at equal FLOPs "
        f"and equal seconds. {'; '.join(said)}."
    )


def columns_of(axes: Axes, labels: list[str]) -> None:
    """Names of rows, from the top down."""
    axes.set(yticks=range(len(labels)), ylim=(len(labels) - 0.4, -0.6))
    axes.set_yticklabels(labels)


def write(script: Path) -> tuple[Path, Path]:
    """Draw the picture that a script of figures/ is named after, beside the script: the svg and the png.

    Ends the program with one sentence if nothing of it is recorded.
    """
    plots.use_style()
    try:
        figure, alt = {"family_tree": family_tree, "relatives": relatives}[script.stem]()
    except GridError as error:
        raise SystemExit(f"{script.name}: {error}") from None
    return plots.save(figure, script.stem, alt, script.resolve().parent)
