"""The picture of compute and loss: learning curves of all sizes, their envelopes and laws, and the ratio of compute.

`scaling()` returns the figure and its alt text, both made from the same numbers, for chapter 19 and figures/scaling.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from . import plots
from .plots import SCHEME_STYLE
from .scaling import Comparison, ScalingError, compare, read_points, size_ratios

STANDARD, ARTICLE = "standard", 1.30  # the article's ratio
TWICE, FOUR = "hires ratio=2.0", "hires ratio=4.0"  # arms, as the grid names them
HIRES = SCHEME_STYLE["hires"]
STYLES: dict[str, dict[str, Any]] = {
    STANDARD: SCHEME_STYLE["standard"],
    TWICE: HIRES | {"label": "HiRes, D = 2d", "linestyle": "--"},
    FOUR: HIRES | {"label": "HiRes, D = 4d", "linestyle": ":", "color": plots.BLUE, "marker": "s"},
}


def scaling(store: Path | None = None) -> tuple[Figure, str]:
    """Left: every curve, thin, each arm's envelope, thick, and its law. Right: compute of Standard over that of HiRes,
    size by size and over all sizes.

    Raises ScalingError if nothing is recorded, or too little to compare.
    """
    points = read_points(store)
    others = [arm for arm in STYLES if arm != STANDARD and arm in set(points["arm"])]
    if not others:
        raise ScalingError("no HiRes run of the grid scaling is recorded; `minihaares ablate scaling` does them.")
    found = {arm: compare(points, STANDARD, arm) for arm in others}
    figure, (left, right) = plots.plt.subplots(1, 2, figsize=(10.5, 4.3), width_ratios=(1.35, 1))
    draw_curves(left, points, found)
    ratios = {arm: size_ratios(points, STANDARD, arm) for arm in others}
    words = [draw_ratios(right, table, arm, shift) for shift, (arm, table) in enumerate(ratios.items())]
    right.set_ylim(min(table["low"].min() for table in ratios.values()) - 0.05, 1.65)  # room for the legend on top
    alt = (
        "Two panels. Left: validation loss against training compute, both on logarithmic axes, "
        f"{points['size'].nunique()} sizes of each arm as thin falling curves. A thick line follows the lowest of "
        "them, the envelope, as far as it can be trusted; a thin line, the fitted law, goes on. Right: how many times "
        "the compute of HiRes Standard takes to the same loss, a mark with an interval for each size and one for all "
        f"sizes together, and lines at 1 and at the article's 1.30. {' '.join(words)}"
    )
    return figure, alt


def draw_curves(axes: Axes, points: pd.DataFrame, found: dict[str, Comparison]) -> None:
    """Thin: each size, its seeds averaged at each step. Thick: envelopes. A line beside: the fitted laws."""
    envelopes = {STANDARD: next(iter(found.values())).envelopes[0]} | {
        arm: one.envelopes[1] for arm, one in found.items()
    }
    laws = {STANDARD: next(iter(found.values())).laws[0]} | {arm: one.laws[1] for arm, one in found.items()}
    for arm, line in envelopes.items():
        style = {key: STYLES[arm][key] for key in ("color", "linestyle")}
        for _, same in points[points["arm"] == arm].groupby("size"):
            mean = same.groupby("flops")["loss"].mean()
            axes.plot(mean.index, mean, linewidth=0.7, alpha=0.55, **style)
        axes.plot(line["flops"], line["loss"], linewidth=2.6, label=STYLES[arm]["label"], **style)
        beyond = np.geomspace(line["flops"].iloc[0] / 2, line["flops"].iloc[-1] * 4, 60)
        axes.plot(beyond, laws[arm](beyond), color=style["color"], linewidth=0.9)
    axes.set(xscale="log", yscale="log", xlabel="training compute, FLOPs", ylabel="validation loss, nats per character")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(title="Curves of all sizes, and envelopes")
    axes.legend(fontsize=9)


def draw_ratios(axes: Axes, ratios: pd.DataFrame, arm: str, shift: int) -> str:
    """Ratios of compute with their intervals, a mark a size, `shift` marks to the right; a sentence about all sizes."""
    places = np.arange(len(ratios)) + 0.2 * (shift - 0.5)
    style = {key: STYLES[arm][key] for key in ("color", "marker", "label")}
    errors = ratios["flops"] - ratios["low"], ratios["high"] - ratios["flops"]
    axes.errorbar(places, ratios["flops"], errors, linestyle="none", capsize=3, linewidth=1.2, **style)
    axes.set_xticks(range(len(ratios)), [*ratios["size"].iloc[:-1], "all\nsizes"], fontsize=9)
    if shift == 0:
        axes.axhline(1, color="0.35", linewidth=1)
        axes.axhline(ARTICLE, color="0.35", linewidth=1, linestyle=(0, (1, 3)))
        words = dict(transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=9)
        axes.text(0.99, ARTICLE, "the article's 1.30", **words)
        axes.axvline(len(ratios) - 1.5, color="0.8", linewidth=1)
        axes.set(title="Compute of Standard over HiRes", xlabel="size, layers × width", ylabel="ratio, at equal loss")
    axes.legend(fontsize=9, loc="upper left")
    whole = ratios.iloc[-1]
    return f"{STYLES[arm]['label']}, all sizes: {whole.flops:.2f}, from {whole.low:.2f} to {whole.high:.2f}."


def main(script: Path, store: Path | None = None) -> None:
    """Draw the picture beside the script; ends the program with one sentence if too little is recorded."""
    plots.use_style()
    try:
        figure, alt = scaling(store)
    except ScalingError as error:
        raise SystemExit(f"{script.name}: {error}") from None
    plots.save(figure, script.stem, alt, script.resolve().parent)
