"""The pictures of the recorded runs, for chapters and figures/: each drawn from a store, each with its words.

A picture is a function that returns the figure and its alt text, both made from the same numbers:

    plots.show(*pictures.depth())        # in a chapter
    pictures.write(Path(__file__))       # in figures/depth.py

Filled marks are ours, hollow ones the paper's (arXiv 2606.06564). Every seed is a point. What is not recorded is named
in the picture; GridError if nothing that it shows is.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, StrMethodFormatter

from . import findings, plots, stories
from .experiments import GridError
from .findings import ARMS, Arm, Difference, Records, arm, corpus_name, signed
from .ngrams import read_ngrams

Setting = Mapping[str, Any]
Picture = tuple[Figure, str]
PAPER: dict[str, Any] = {"linestyle": "none", "marker": "o", "markerfacecolor": "white", "color": "0.35"}
PAPER_MEAN = PAPER | {"marker": "D"}
QUIET: dict[str, Any] = {"color": "0.4", "fontsize": 8.5}
STANDARD, BLOCK, HAARES = ARMS["standard"], ARMS["block"], ARMS["haares"]


# ------------------------------------------------------------------------------------------------ marks and words


def look(of: Arm) -> dict[str, Any]:
    """Colour and marker of an arm: those of its scheme."""
    return {key: plots.SCHEME_STYLE[of.scheme][key] for key in ("color", "marker")}


def strip(axes: Axes, at: float, points: pd.Series, style: Mapping[str, Any], across: bool = False) -> None:
    """Every seed a point, side by side around `at`, and a bar at their mean; `across`: values run along x."""
    if points.empty:
        x, y, turned, side = (0.99, at, 0, "right") if across else (at, 0.5, 90, "center")
        where = axes.get_yaxis_transform() if across else axes.get_xaxis_transform()
        axes.text(x, y, "not recorded", transform=where, rotation=turned, ha=side, va="center", **QUIET)
        return
    beside = at + (np.linspace(-0.15, 0.15, len(points)) if len(points) > 1 else np.zeros(1))
    axes.plot(*((points, beside) if across else (beside, points)), linestyle="none", alpha=0.75, **style)
    bar = axes.vlines if across else axes.hlines
    bar(points.mean(), at - 0.27, at + 0.27, color=style["color"], linewidth=2.2)


def whisker(axes: Axes, at: float, of: Difference) -> None:
    """The interval of the mean as a thin bracket beside the points, where there are seeds enough for one."""
    if of.interval:
        low, high = of.interval
        axes.errorbar(at + 0.33, of.mean, [[of.mean - low], [high - of.mean]], color="0.2", capsize=3, linewidth=1.2)


def hollow(axes: Axes, at: float, rows: pd.DataFrame, across: bool = False) -> None:
    """The paper's differences at `at`: its seeds as circles, or its means as diamonds where it gives no seeds."""
    values, style = seeds_or_means(rows).to_numpy(), PAPER if rows["seed"].notna().any() else PAPER_MEAN
    places = at + (np.linspace(-0.1, 0.1, len(values)) if len(values) > 1 else np.zeros(len(values)))
    axes.plot(*((values, places) if across else (places, values)), **style)


def hollow_key(axes: Axes, *which: str) -> None:
    """A legend of how the paper's numbers look: "seeds", "means"."""
    styles = {"seeds": PAPER, "means": PAPER_MEAN}
    axes.legend(handles=[Line2D([], [], label=f"the paper's {name}", **styles[name]) for name in which], fontsize=8.5)


def columns(axes: Axes, labels: Iterable[Any], level: float | None = 0, **words: Any) -> None:
    """The frame of strips: a column a label, and a line at the level where nothing differs."""
    labels = list(labels)
    axes.set(xticks=range(len(labels)), xlim=(-0.6, len(labels) - 0.4), **words)
    axes.set_xticklabels(labels, fontsize=9)
    axes.grid(axis="x", visible=False)
    if level is not None:
        axes.axhline(level, color="0.3", linewidth=1)


def seeds_or_means(rows: pd.DataFrame) -> pd.Series:
    """The paper's differences by seed, or its means where it gives no seeds."""
    seeds = rows["seed"].notna()
    return rows[seeds if seeds.any() else ~seeds]["difference"]


def listed(rows: pd.DataFrame) -> str:
    return ", ".join(map(signed, seeds_or_means(rows)))


def in_words(of: Difference) -> str:
    """Mean, number and range of paired differences, as alt texts say them."""
    if of.n < 2:
        return f"{signed(of.mean)} (one seed)" if of.n else "not recorded"
    words = f"mean {signed(of.mean)} over {of.n} seeds (from {signed(of.points.min())} to {signed(of.points.max())}"
    return words + (", 95 % interval {} to {})".format(*map(signed, of.interval)) if of.interval else ")")


def loss_words(points: pd.Series) -> str:
    return f"mean {points.mean():.4f} over {len(points)} seeds" if len(points) else "not recorded"


def per(base: Setting) -> str:
    return f"nats per {findings.unit(base)}"


def opened(store: Path | None, base: Setting | None) -> tuple[Records, Setting]:
    return findings.read(store), findings.setting() if base is None else base


def need(found: Iterable[Any], what: str, records: Records) -> None:
    """Raise GridError if none of these has anything in it."""
    if not any(len(x.points if isinstance(x, Difference) else x) for x in found):
        raise GridError(f"No {what} is recorded in {records.store}: `minihaares ablate --list` shows what is.")


# ------------------------------------------------------------------------------------------------ differences


def paired(store: Path | None = None, base: Setting | None = None) -> Picture:
    """HAARES − Block at the base's depth: a column a setting that is recorded, the paper's beside (its Figure 2)."""
    records, base = opened(store, base)
    others = [s for s in records.settings(layers=base["layers"]) if s != base]
    ours = [(s, records.difference(HAARES, BLOCK, s)) for s in (base, *others)]
    ours = [(s, d) for s, d in ours if d.n or s is base]
    need((d for _, d in ours), f"pair of HAARES and Block AttnRes at {base['layers']} layers", records)
    names = {7: "201M", 8: "453M", 9: "BPE\n204M", 10: "small,\n4 corpora"}  # by table
    theirs = {k: findings.paper(table=k, arm="haares", baseline="block", layers=48) for k in names}
    sizes, said, labels = [len(ours), len(theirs)], [], []
    figure, (left, right) = plots.plt.subplots(
        1, 2, sharey=True, width_ratios=sizes, figsize=(2.4 + 0.95 * sum(sizes), 4.3)
    )
    for at, (s, d) in enumerate(ours):
        strip(left, at, d.points, look(HAARES))
        whisker(left, at, d)
        tokens, kind = f"{records.tokens(s) / 1e6:.1f}M", "chars" if s["tokenizer"] == "char" else "BPE"
        labels.append(f"{corpus_name(s)}\n{tokens} {kind}\nd = {s['width']}\nrate {s['lr']:g}")
        said.append(f"{corpus_name(s)}, {tokens} {kind}, width {s['width']}, rate {s['lr']:g}: {in_words(d)}")
    for at, rows in enumerate(theirs.values()):
        hollow(right, at, rows)
    columns(left, labels, title="ours", ylabel="HAARES − Block AttnRes, nats per token")
    columns(right, names.values(), title="the paper's")
    hollow_key(right, "seeds", "means")
    left.text(0.02, 0.02, "below 0: HAARES is better", transform=left.transAxes, **QUIET)
    papers = "; ".join(f"{names[k]} {listed(rows)}".replace("\n", " ") for k, rows in theirs.items())
    return figure, (
        f"HAARES minus Block AttnRes at {base['layers']} layers, best validation loss, a point a seed; below zero "
        f"HAARES is better. Ours: {'; '.join(said)}. The paper's, hollow: {papers}."
    )


DEPTHS = (12, 24, 48)


def depth(store: Path | None = None, base: Setting | None = None) -> Picture:
    """12, 24 and 48 layers: HAARES − Block, and Block − Standard, every seed."""
    records, base = opened(store, base)
    theirs = (
        findings.paper(table=10, corpus="TinyStories"),
        findings.paper(table=7, arm="block", baseline="standard"),
    )
    pairs, said = ((HAARES, BLOCK), (BLOCK, STANDARD)), []
    found = [[records.difference(*pair, {**base, "layers": layers}) for layers in DEPTHS] for pair in pairs]
    need(found[0] + found[1], "pair of schemes at 12, 24 or 48 layers", records)
    figure, both = plots.plt.subplots(1, 2, figsize=(8.2, 3.8))
    for axes, (ours, to), rows, differences in zip(both, pairs, theirs, found, strict=True):
        for at, (layers, d) in enumerate(zip(DEPTHS, differences, strict=True)):
            strip(axes, at - 0.2, d.points, look(ours))
            whisker(axes, at - 0.2, d)
            hollow(axes, at + 0.34, findings.narrowed(rows, {"layers": layers}))
            said.append(f"{ours.label} minus {to.label} at {layers} layers {in_words(d)}")
        columns(axes, DEPTHS, title=f"{ours.label} − {to.label}", xlabel="layers")
    both[0].set_ylabel(f"difference, {per(base)}")
    hollow_key(both[0], "means")
    return figure, (
        "Differences of the best validation loss against depth, a point a seed; below zero the first scheme is better. "
        f"{'; '.join(said)}. The paper's means, hollow: HAARES minus Block AttnRes on TinyStories {listed(theirs[0])} "
        f"at 12, 24 and 48 layers; Block AttnRes minus Standard {listed(theirs[1])} at 48."
    )


COUNTS = (4, 6, 8)


def granularity(store: Path | None = None, base: Setting | None = None) -> Picture:
    """N = 4, 6 and 8 blocks: the losses of Block and HAARES, and their difference, every seed."""
    records, base = opened(store, base)
    found = {n: records.difference(arm("haares", blocks=n), arm("block", blocks=n), base) for n in COUNTS}
    need(found.values(), "pair of HAARES and Block AttnRes with 4, 6 or 8 blocks", records)
    figure, (left, right) = plots.plt.subplots(1, 2, figsize=(8.2, 3.8))
    said = []
    for side, name in ((-0.18, "block"), (0.18, "haares")):
        losses = [records.values(arm(name, blocks=n), base) for n in COUNTS]
        for at, points in enumerate(losses):
            strip(left, at + side, points, look(ARMS[name]))
            said.append(f"{ARMS[name].label} with {COUNTS[at]} blocks: {loss_words(points)}")
        style = plots.SCHEME_STYLE[name] | {"marker": "none", "linewidth": 1.2}
        left.plot(np.arange(3) + side, [points.mean() for points in losses], **style)
    for at, (n, d) in enumerate(found.items()):
        rows = findings.paper(table=7 if n == 4 else 11, arm="haares", baseline="block", blocks=n)  # with seeds
        strip(right, at - 0.2, d.points, look(HAARES))
        whisker(right, at - 0.2, d)
        hollow(right, at + 0.34, rows)
        said.append(f"HAARES minus Block AttnRes with {n} blocks: {in_words(d)}, the paper's {listed(rows)}")
    columns(left, COUNTS, None, title="best validation loss", xlabel="blocks N", ylabel=per(base))
    columns(right, COUNTS, title="HAARES − Block AttnRes", xlabel="blocks N", ylabel=f"difference, {per(base)}")
    left.legend()
    hollow_key(right, "seeds")
    return figure, (
        f"Two panels against the number of blocks at {base['layers']} layers: best validation losses, and their "
        f"differences, a point a seed, the paper's hollow; below zero HAARES is better. {'; '.join(said)}."
    )


STRIP = ("haares", "no match", "duplicate", "bias -2", "bias 0", "random sign", "bias -4")  # the paper's Table 12
EXTRA = ("phase", "standard", "attnres", "rezero", "layerscale")  # shown where they are recorded


def ablations(store: Path | None = None, base: Setting | None = None) -> Picture:
    """Each arm's difference to Block by seed, with its mean; the paper's mean as a hollow diamond."""
    records, base = opened(store, base)
    found = {name: records.difference(ARMS[name], BLOCK, base) for name in STRIP + EXTRA}
    need(found.values(), f"pair of an arm and Block AttnRes at {base['layers']} layers", records)
    shown = [name for name in found if name in STRIP or found[name].n]
    figure, axes = plots.plt.subplots(figsize=(7, 1 + 0.42 * len(shown)))
    said = []
    for at, name in enumerate(shown):
        rows = findings.paper(table=12, arm=name, baseline="block")
        strip(axes, at, found[name].points, look(ARMS[name]), across=True)
        hollow(axes, at, rows, across=True)
        said.append(f"{ARMS[name].label} {in_words(found[name])}" + f", the paper's {listed(rows)}" * bool(len(rows)))
    axes.axvline(0, color="0.3", linewidth=1)
    axes.set(yticks=range(len(shown)), ylim=(len(shown) - 0.5, -0.5))
    axes.set_xlabel(f"arm − Block AttnRes, {per(base)} (left: better)")
    axes.set_yticklabels([ARMS[name].label for name in shown])
    axes.grid(axis="y", visible=False)
    hollow_key(axes, "means")
    return figure, (
        f"Difference of each arm to Block AttnRes at {base['layers']} layers, best validation loss, a point a seed, a "
        f"bar at the mean, the paper's mean hollow; left of zero the arm is better. {'; '.join(said)}."
    )


# ------------------------------------------------------------------------------------------------ curves and costs


def curves(store: Path | None = None, base: Setting | None = None) -> Picture:
    """Learning curves with the band of all seeds, the level lines of counting and the floors; and HAARES − Block."""
    records, base = opened(store, base)
    tables = [(of, records.curves(of, base)) for of in (STANDARD, BLOCK, HAARES)]
    need((table for _, table in tables), "curve of this setting", records)
    figure, (left, right) = plots.plt.subplots(1, 2, figsize=(9.2, 4), width_ratios=(3, 2))
    said, missing = [], [of.label for of, table in tables if table.empty]
    for of, table in tables:
        if len(table):
            style, (low, high) = plots.SCHEME_STYLE[of.scheme], (table.min(axis=1), table.max(axis=1))
            left.plot(table.index, table.mean(axis=1), **style | {"marker": "none"})
            left.fill_between(table.index, low, high, color=style["color"], alpha=0.2, linewidth=0)
            end = f"(mean of {table.shape[1]}, from {low.iloc[-1]:.3f} to {high.iloc[-1]:.3f})"
            said.append(f"{of.label} ends at {table.iloc[-1].mean():.3f} {end}")
    said += [f"{label} is not recorded" for label in missing] + level_lines(left, records, base)
    left.set(yscale="log", ylabel=f"validation loss, {per(base)}")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    left.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    left.yaxis.set_minor_formatter(NullFormatter())
    left.legend(title=f"{', '.join(missing)}: not recorded" if missing else None, title_fontsize=8.5)
    gap = (tables[2][1] - tables[1][1]).dropna(axis=1, how="all").loc[lambda rows: rows.index > 0]
    if gap.empty:
        strip(right, 0.5, pd.Series(dtype=float), {})
    else:
        right.plot(gap.index, gap, color="0.65", linewidth=0.9, linestyle="-")
        right.plot(gap.index, gap.mean(axis=1), **plots.SCHEME_STYLE["haares"] | {"label": "mean", "marker": "none"})
        right.legend()
        said.append(f"HAARES minus Block AttnRes at the end {in_words(Difference(gap.iloc[-1]))}")
    right.axhline(0, color="0.3", linewidth=1)
    right.set_title("HAARES − Block AttnRes, by seed")
    for axes in (left, right):
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel("tokens seen in training")
    return figure, (
        f"Validation loss of {base['layers']}-layer models on {corpus_name(base)}, on a logarithmic axis, against the "
        f"tokens seen; bands hold every seed. {'; '.join(said)}."
    )


def level_lines(axes: Axes, records: Records, base: Setting) -> list[str]:
    """Draw what n-grams reach on this text and, for the built-in stories, the floors; say what was drawn."""
    text = findings.narrowed(records.runs, base)[["corpus_hash", "tokenizer_hash"]].iloc[0].to_dict()
    text |= {name: base[name] for name in ("context", "eval_chunks")}
    losses = findings.narrowed(read_ngrams(records.store), text).set_index("order")["loss"]
    said = []
    for order in ladder(losses):
        axes.axhline(losses[order], color="0.5", linestyle=":", linewidth=1)
        place = {"xy": (1, losses[order]), "xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        axes.annotate(f"n-gram of order {order}", **place, **QUIET)
        said.append(f"an n-gram of order {order} reaches {losses[order]:.3f}")
    if base["corpus"] == "stories" and base["tokenizer"] == "char":
        for kind, height in (("forgetful", stories.forgetful_floor()), ("exact", stories.exact_floor())):
            axes.axhline(height, **plots.FLOOR_STYLE[kind])
            said.append(f"{plots.FLOOR_STYLE[kind]['label']} at {height:.3f}")
    return said


def ladder(losses: pd.Series, apart: float = 1.08) -> list[int]:
    """The best order, and others whose losses lie far enough apart to be told by eye; none of none."""
    chosen: list[int] = []
    for order, loss in losses.sort_values().items():
        if not chosen or loss > apart * losses[chosen[-1]]:
            chosen.append(int(order))
    return chosen


def bill(store: Path | None = None, base: Setting | None = None) -> Picture:
    """What a step costs against what it buys, and the time to Block's best loss over two denominators."""
    records, base = opened(store, base)
    layers, losses = base["layers"], [(of, records.values(of, base)) for of in (STANDARD, BLOCK, HAARES)]
    need((points for _, points in losses), "run of this setting", records)
    figure, (left, right) = plots.plt.subplots(1, 2, figsize=(8.8, 3.9))
    said, missing = [], [of.label for of, points in losses if points.empty]
    for of, points in losses:
        cost = findings.step_ratio(of.scheme, "standard", layers)
        if len(points):
            left.plot([cost] * len(points), points, linestyle="none", alpha=0.55, markersize=4, **look(of))
            left.plot(cost, points.mean(), markersize=9, linestyle="none", label=of.label, **look(of))
        said.append(f"{of.label} takes {cost:.2f} times a Standard step, loss {loss_words(points)}")
    left.legend(title=f"{', '.join(missing)}: not recorded" if missing else None, title_fontsize=8.5)
    left.set(title="at equal tokens", xlabel="time of a step, Standard = 1", xmargin=0.15)
    left.set_ylabel(f"best validation loss, {per(base)}")
    times = records.attainment(HAARES, BLOCK, base, findings.step_ratio("haares", "block", layers))
    over = {"time": "over Block's\nown first time", "time_of_budget": "over Block's\nwhole run"}
    never = int(times["time"].isna().sum())
    note = f"\n({never} of {len(times)} seeds never)" if never else ""
    columns(right, [words + note for words in over.values()], 1, title="HAARES's time to Block's best loss")
    right.set_ylabel("ratio of times")
    for at, (name, words) in enumerate(over.items()):
        reached = times[name].dropna()
        if len(reached) or times.empty:
            strip(right, at, reached, look(HAARES))
        ratios = ", ".join(f"{x:.2f}" for x in reached) or "none"
        said.append(f"{words}: {ratios}".replace("\n", " "))
    said.append(f"{never} of {len(times)} seeds never reach it")
    theirs = findings.paper(table=14).dropna(subset="seed")["difference"] + 1
    right.plot(1.38 + np.linspace(-0.08, 0.08, len(theirs)), theirs, **PAPER)
    hollow_key(right, "seeds")
    return figure, (
        f"Left, best validation loss at equal tokens against the time of a step, {layers} layers. Right, the time "
        "HAARES takes to Block AttnRes's best loss, as a ratio, below one where it is quicker. "
        f"{'; '.join(said)}. The paper's ratios over the whole run, hollow: {', '.join(f'{x:.2f}' for x in theirs)}."
    )


PICTURES: dict[str, Callable[..., Picture]] = {
    f.__name__: f for f in (paired, depth, granularity, ablations, curves, bill)
}


def write(script: Path, store: Path | None = None) -> tuple[Path, Path]:
    """Draw the picture that a script of figures/ is named after, beside the script: the svg and the png.

    Ends the program with one sentence if nothing of it is recorded.
    """
    plots.use_style()
    try:
        figure, alt = PICTURES[script.stem](store)
    except GridError as error:
        raise SystemExit(f"{script.name}: {error}") from None
    return plots.save(figure, script.stem, alt, script.resolve().parent)
