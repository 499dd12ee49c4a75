"""What a loss costs in compute: learning curves, their lower envelope, fitted power laws, and how far apart two are.

Compute C is FLOPs of training, the two passes, by the formulas of `costs`: every product counts, the projections of
HiRes and the head among them. A curve is taken to hold many runs, one for each evaluation: that is so because the
recipe's learning rate is constant, and would not be under a schedule that ends with the run.

    points = read_points()                                       # every evaluation of the recorded grid
    found = compare(points, "standard", "hires ratio=2.0")       # two envelopes on common ground, and their laws
    found.ratio(1.5)                                             # compute of the first over that of the second
    bootstrap(points, found, losses=[1.5]).interval              # how far chance alone could move it

The laws are those of `power_laws`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from .costs import Costs, price
from .experiments import read_curve, read_runs, recorded
from .model import ModelConfig
from .power_laws import Law, ScalingError, fit_law, fit_parallel

POINTS = 40  # of compute, at which envelopes are compared and fitted, equally far apart in log


# ------------------------------------------------------------------------------------------------ the points


@cache
def costs_of(
    scheme: str, options: str, layers: int, width: int, heads: int, ff: int, vocab: int, context: int
) -> Costs:
    """The costs of a recorded model; options as JSON text."""
    sizes = dict(layers=layers, width=width, heads=heads, ff=ff, vocab_size=vocab)
    return price(ModelConfig(**sizes, scheme=scheme, options=json.loads(options)), context)


def read_points(store: Path | None = None, grid: str = "scaling") -> pd.DataFrame:
    """Every evaluation after the first step of the recorded runs of a grid, a row each.

    Columns: run, arm, seed, size (layers × width), N (parameters, embeddings apart), step, tokens, flops (so far),
    loss (validation, nats per token). Where a run is recorded at several lengths, the longest holds the others and is
    taken alone. Raises ScalingError if nothing is recorded, or if a recorded model isn't the one that is priced.
    """
    store = recorded() if store is None else store
    runs = read_runs(store)
    runs = runs[runs["grid"] == grid] if len(runs) else runs
    if runs.empty:
        raise ScalingError(f"no run of the grid {grid} is recorded; `minihaares ablate {grid}` does them.")
    tables, same = [], ["arm", "layers", "width", "seed"]
    for run in runs.sort_values("steps", kind="stable").drop_duplicates(same, keep="last").itertuples():
        sizes = (run.scheme, run.options, run.layers, run.width, run.heads, run.ff)
        without = costs_of(*sizes, 1, 1).parameters - run.width  # the embedding is the head, and counted once
        vocab, rest = divmod(run.parameters - without, run.width)
        if rest or vocab < 1:
            raise ScalingError(f"run {run.run} has {run.parameters} parameters, which its settings cannot give.")
        flops = costs_of(*sizes, int(vocab), run.context).step(run.batch_size, run.context)
        curve = read_curve(run.run, store).query("step > 0")
        table = pd.DataFrame({"step": curve["step"], "tokens": curve["tokens"], "loss": curve["valid_loss"]})
        table["flops"] = table["step"] * float(flops)
        facts = dict(run=run.run, arm=run.arm, seed=run.seed, size=f"{run.layers} × {run.width}", N=without)
        tables.append(table.assign(**facts))
    points = pd.concat(tables, ignore_index=True)
    return points[["run", "arm", "seed", "size", "N", "step", "tokens", "flops", "loss"]]


# ------------------------------------------------------------------------------------------------ the envelope


def size_curves(points: pd.DataFrame, computes: ArrayLike) -> pd.DataFrame:
    """Loss of each size of one arm at each compute: a column a size, from the smallest; infinite where not trained.

    Between evaluations, log loss is taken to be linear in log compute. Seeds are averaged, not minimised: the best of
    three seeds lies below the best of one for no merit of its size. A size counts where all its seeds do.
    """
    computes, columns = np.asarray(computes, float), {}
    log_c = np.log(computes)
    for size, same in sorted(points.groupby("size"), key=lambda pair: pair[1]["N"].min()):
        curves = []
        for _, run in same.groupby("run"):
            x, y = np.log(run["flops"].to_numpy()), np.log(run["loss"].to_numpy())
            inside = (log_c >= x[0] - 1e-9) & (log_c <= x[-1] + 1e-9)
            curves.append(np.where(inside, np.exp(np.interp(log_c, x, y)), np.inf))
        columns[size] = np.mean(curves, axis=0)
    return pd.DataFrame(columns, index=pd.Index(computes, name="flops"))


def envelope(points: pd.DataFrame, computes: ArrayLike) -> pd.DataFrame:
    """The least loss that any size of one arm reaches with each compute: flops, loss, size.

    Raises ScalingError where no size was trained with such a compute.
    """
    curves = size_curves(points, computes)
    if np.isinf(curves.min(axis=1)).any():
        raise ScalingError("no size was trained with some of these computes; keep inside `span`.")
    return pd.DataFrame({"loss": curves.min(axis=1), "size": curves.idxmin(axis=1)}).reset_index()


def span(points: pd.DataFrame, warm_up: int = 200, slack: float = 0.01) -> tuple[float, float]:
    """From where to where in compute the envelope of one arm means something.

    To the right it ends where the first curve ends that was still the best (by more than `slack` of its loss): nobody
    knows how far it would have gone down. To the left it begins after `warm_up` steps of the smallest size. As long as
    that size is the best, the envelope is one over these sizes and no more: a still smaller model might have been
    better. Raises ScalingError if nothing is left.
    """
    ends = points.groupby(["size", "run"])["flops"].max().groupby("size").min()
    at_end = size_curves(points, ends)
    others = [at_end.drop(columns=size).iloc[place].min() for place, size in enumerate(ends.index)]
    own = [at_end[size].iloc[place] for place, size in enumerate(ends.index)]
    cut = [end for end, mine, best in zip(ends, own, others, strict=True) if mine * (1 + slack) < best]
    high = min(cut, default=ends.max())
    small = points[points["N"] == points["N"].min()]
    low = float(small.loc[small["step"] >= warm_up, "flops"].min())
    if not low < high:
        raise ScalingError(f"no compute is left after {warm_up} steps of the smallest size; train longer.")
    return low, float(high)


# ------------------------------------------------------------------------------------------------ two arms


@dataclass(frozen=True)
class Comparison:
    """Two arms on the range of compute where both mean something: envelopes, laws, and laws that share α and c."""

    names: tuple[str, str]
    envelopes: tuple[pd.DataFrame, pd.DataFrame]
    laws: tuple[Law, Law]
    parallel: tuple[Law, Law]

    def ratio(self, loss: float) -> float:
        """Compute that the first arm's law takes to this loss, over the second's: above 1, the second is ahead."""
        return self.laws[0].compute(loss) / self.laws[1].compute(loss)

    @property
    def one_ratio(self) -> float:
        """The same by the laws that share α and c, where it is one number for every loss."""
        first, second = self.parallel
        return (first.a / second.a) ** (1 / first.alpha)

    def direct(self, loss: float) -> float:
        """The ratio between the envelopes themselves, without a law. Raises ScalingError outside what both reached."""
        found = []
        for name, line in zip(self.names, self.envelopes, strict=True):
            if not line["loss"].min() <= loss <= line["loss"].iloc[0]:
                raise ScalingError(f"{name} has no compute at a loss of {loss:g} in the compared range.")
            found.append(reached(line, loss))
        return float(found[0] / found[1])

    def losses(self, count: int = 5) -> np.ndarray:
        """Losses that both envelopes reach inside the range, from the highest to the lowest, evenly in log."""
        tops, bottoms = zip(*((line["loss"].iloc[0], line["loss"].min()) for line in self.envelopes), strict=True)
        return np.geomspace(min(tops), max(bottoms), count)


def compare(points: pd.DataFrame, first: str, second: str, like: Comparison | None = None) -> Comparison:
    """Envelopes and laws of two arms, at the same computes: those that `span` gives both, or those of `like`.

    The fits then start from the laws of `like`.

    Raises ScalingError for an arm that isn't recorded, for sizes that only one of them has, and where the fits fail.
    """
    arms = [points[points["arm"] == name] for name in (first, second)]
    for name, arm in zip((first, second), arms, strict=True):
        if arm.empty:
            raise ScalingError(f"{name!r} is not among the points' arms: {', '.join(sorted(set(points['arm'])))}.")
    if set(arms[0]["size"]) != set(arms[1]["size"]):
        raise ScalingError(f"{first} and {second} are not recorded at the same sizes; finish the grid first.")
    if like is None:
        lows, highs = zip(*map(span, arms), strict=True)
        computes = np.geomspace(max(lows), min(highs), POINTS)
    else:
        computes = like.envelopes[0]["flops"]
    lines = tuple(envelope(arm, computes) for arm in arms)
    curves = [(line["flops"], line["loss"]) for line in lines]
    near, parallel = (like.laws, like.parallel) if like else ((None, None), None)
    laws = tuple(fit_law(*curve, law) for curve, law in zip(curves, near, strict=True))
    return Comparison((first, second), lines, laws, tuple(fit_parallel(curves, parallel)))


# ------------------------------------------------------------------------------------------------ chance


def seed_spread(points: pd.DataFrame) -> tuple[float, int]:
    """Standard deviation of a run's log loss about the mean of its arm and size, and its degrees of freedom.

    Taken over the later half of the curves, where seeds have at least one companion. Raises ScalingError if none has.
    """
    squares, freedom = 0.0, 0
    for _, same in points.groupby(["arm", "size"]):
        table = np.log(same.pivot(index="step", columns="seed", values="loss").dropna())
        if table.shape[1] > 1:
            late = table.iloc[len(table) // 2 :]
            squares += float(late.sub(late.mean(axis=1), axis=0).pow(2).sum(axis=1).mean())
            freedom += table.shape[1] - 1
    if not freedom:
        raise ScalingError("no size has more than one seed, so nothing is known about chance; record more seeds.")
    return float(np.sqrt(squares / freedom)), freedom


@dataclass(frozen=True)
class Chance:
    """Ratios of compute in many imagined repetitions: a column a loss (nats), and "one" for the laws that share α, c.

    sigma: the measured spread of a run's log loss. failed: repetitions without a law, left out.
    """

    draws: pd.DataFrame
    sigma: float
    failed: int

    def interval(self, level: float = 0.95) -> pd.DataFrame:
        """From which to which ratio the middle `level` of the repetitions reach: a row a column of `draws`."""
        return self.draws.quantile([(1 - level) / 2, (1 + level) / 2]).T.set_axis(["low", "high"], axis=1)


def bootstrap(
    points: pd.DataFrame, found: Comparison, losses: Sequence[float], draws: int = 200, seed: int = 0
) -> Chance:
    """Repeat the comparison with other seeds, in the imagination: each run's whole curve moves by one random factor.

    The points of a curve are one draw of luck, not many: to resample them would make any interval as narrow as one
    likes. Seeds are too few to resample (one, at most sizes), and to resample sizes is to ask about other experiments.
    So the spread between seeds is measured where there are several (`seed_spread`), and every run is moved by its own
    draw from a normal distribution with this spread, itself redrawn for the uncertainty of so few seeds. Runs of one
    seed are taken as independent.

    Not covered: the choice of sizes, learning rates, batch and text; the form of the law; noise inside a curve.
    Raises ScalingError if no size has two seeds, or if one repetition in ten carries no law.
    """
    sigma, freedom = seed_spread(points)
    rng, rows, failed = np.random.default_rng(seed), [], 0
    two = points[points["arm"].isin(found.names)]
    names = two["run"].unique()
    for _ in range(draws):
        scale = sigma * np.sqrt(freedom / rng.chisquare(freedom))
        moved = two["run"].map(dict(zip(names, rng.normal(0, scale, len(names)), strict=True)))
        try:
            again = compare(two.assign(loss=two["loss"] * np.exp(moved)), *found.names, like=found)
            rows.append({**{loss: again.ratio(loss) for loss in losses}, "one": again.one_ratio})
        except ScalingError:
            failed += 1
    if failed > draws // 10:
        raise ScalingError(f"{failed} of {draws} repetitions carry no law or never reach a loss: too noisy to compare.")
    return Chance(pd.DataFrame(rows), sigma, failed)


def reached(curve: pd.DataFrame, loss: ArrayLike, axis: str = "flops") -> np.ndarray:
    """Where along `axis` (flops, step) points of one arm and size, seeds averaged, first fall to each loss."""
    mean = curve.groupby(axis)["loss"].mean().cummin()
    return np.exp(np.interp(-np.asarray(loss, float), -mean, np.log(mean.index)))


def size_ratios(
    points: pd.DataFrame, first: str, second: str, above: float = 1.1, draws: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """What the first arm takes to a loss over what the second takes, size by size, and the geometric mean of all sizes.

    No law and no envelope: if at every size the curve of one arm is that of the other, moved by one factor of compute,
    then the envelopes are apart by this factor too. The loss is `above` times the lowest that both reach. Columns:
    size, loss, steps and flops (the ratios), low and high (the middle 95 % of imagined repetitions, in flops, as in
    `bootstrap`: what is covered and what is not is said there). `above` leaves room for curves that are moved.
    """
    sigma, freedom = seed_spread(points)
    rng = np.random.default_rng(seed)
    scale = sigma * np.sqrt(freedom / rng.chisquare(freedom, draws))
    rows, drawn = [], []
    for size in points.sort_values("N", kind="stable")["size"].unique():
        pair = [points[(points["size"] == size) & (points["arm"] == arm)] for arm in (first, second)]
        if any(curve.empty for curve in pair):
            continue
        loss = above * max(curve.groupby("flops")["loss"].mean().min() for curve in pair)
        ratios = [float(np.divide(*(reached(curve, loss, axis) for curve in pair))) for axis in ("step", "flops")]
        moved = [loss * np.exp(scale * rng.normal(size=draws) / np.sqrt(curve["run"].nunique())) for curve in pair]
        drawn.append(np.log(np.divide(*(reached(curve, to) for curve, to in zip(pair, moved, strict=True)))))
        rows.append([size, loss, *ratios, *np.exp(np.quantile(drawn[-1], (0.025, 0.975)))])
    if not rows:
        raise ScalingError(f"there is no size at which both {first} and {second} are recorded.")
    both = np.exp([np.mean(np.log([row[place] for row in rows])) for place in (2, 3)])
    rows.append(["all", np.nan, *both, *np.exp(np.quantile(np.mean(drawn, axis=0), (0.025, 0.975)))])
    return pd.DataFrame(rows, columns=["size", "loss", "steps", "flops", "low", "high"])
