"""Draws figures/idea.svg and idea.png: two trajectories through four layers that one sum cannot tell apart."""

from pathlib import Path

import numpy as np

from minihaares import plots

ALONG = np.array([(2, 0), (1, 0), (0, 1), (0, 2)])  # what each layer adds, first half along, second half up
PATHS = {"along, then up": (ALONG, plots.BLUE, "-"), "up, then along": (ALONG[::-1], plots.VERMILION, "--")}
ALT = """Left, two paths of four arrows from one point, one along and then up, the other up and then along; both end at
the same point, their common sum C. Right, the differences of their first and second halves: two arrows D that point in
opposite directions."""


def draw():
    figure, (left, right) = plots.plt.subplots(1, 2, figsize=(7.6, 3.5))
    for name, (steps, colour, line) in PATHS.items():
        at = np.vstack([(0, 0), steps.cumsum(0)])
        for layer, (start, step) in enumerate(zip(at, steps, strict=False), 1):
            arrow(left, start, start + step, colour, line)
            aside = 0.22 * np.array([-step[1], step[0]]) / np.abs(step).sum() * (1 if "up," in name else -1)
            left.text(*(start + step / 2 + aside), str(layer), color=colour, ha="center", va="center")
        early, late = steps[:2].sum(0), steps[2:].sum(0)
        arrow(right, np.zeros(2), early - late, colour, line)
        right.text(*(0.62 * (early - late) + (0.35, 0.25)), f"D: {name}", color=colour, fontsize=9.5)
    left.plot(3, 3, "o", color="black", markersize=8)
    left.plot(0, 0, "o", color="0.5", markersize=4)
    left.annotate("C, the sum:\nthe same for both", (3, 3), (1.1, 2.0), arrowprops={"arrowstyle": "-", "color": "0.5"})
    left.set(title="What four layers add", xlim=(-0.6, 3.6), ylim=(-0.6, 3.6))
    right.plot(0, 0, "o", color="0.5", markersize=4)
    right.set(title="First half minus second half", xlim=(-4.2, 4.2), ylim=(-4.2, 4.2))
    for axes in (left, right):
        axes.set_aspect("equal")
        axes.set_axis_off()
    return figure


def arrow(axes, start, end, colour, line):
    look = {"arrowstyle": "-|>", "color": colour, "linewidth": 2, "linestyle": line, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=look)


if __name__ == "__main__":
    plots.use_style()
    plots.save(draw(), "idea", ALT, Path(__file__).parent)
