"""What the recorded runs say: arms compared seed by seed, with every point and the spread, beside the paper's figures.

A difference is always arm − baseline at the same seed, so a negative one means that the arm is better. Losses are nats
per predicted token. Nothing here runs a model: the store is read (`experiments`), and so is `paper.csv` beside it, the
one place where the numbers of the HAARES paper (arXiv 2606.06564) are kept.

    records = read()                                     # the book's store
    base = setting("headline")                           # what two runs must share to be compared
    found = records.difference(arm("haares"), arm("block"), base)
    found.points, found.mean, found.sd, found.interval   # by seed, nats per token
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit  # the inverse of Student's t distribution

from .experiments import GridError, read_curve, read_grid, read_runs, recorded
from .model import scheme_options

LEVEL, SEEDS_FOR_INTERVAL = 0.95, 6  # fewer points are shown one by one and get no interval


# ------------------------------------------------------------------------------------------------ arms and settings


def identity(scheme: str, options: Mapping[str, Any]) -> str:
    """What a model is, whatever it was called and whichever defaults were spelt out; how it reads doesn't count.

    Raises ConfigError for an unknown scheme or option.
    """
    kind, complete = scheme_options(scheme, options)
    values = {k: float(v) if type(v) is int else v for k, v in asdict(complete).items() if k != "read"}
    return f"{kind.__name__} {json.dumps(values, sort_keys=True)}"


@dataclass(frozen=True)
class Arm:
    """One of the models of a comparison: its name in tables, its scheme, and the options it sets."""

    label: str
    scheme: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        return identity(self.scheme, self.options)


ARMS: dict[str, Arm] = {
    "standard": Arm("Standard", "standard"),
    "block": Arm("Block AttnRes", "block"),
    "haares": Arm("HAARES", "haares"),
    "duplicate": Arm("duplicate C", "haares", {"detail": "duplicate"}),
    "random sign": Arm("random sign", "haares", {"detail": "random_sign"}),
    "no match": Arm("no RMS match", "haares", {"match": "none"}),
    "bias 0": Arm("bias fixed at 0", "haares", {"bias": "fixed", "bias_init": 0}),
    "bias -2": Arm("bias fixed at −2", "haares", {"bias": "fixed", "bias_init": -2}),
    "bias -4": Arm("bias fixed at −4", "haares", {"bias": "fixed", "bias_init": -4}),
    "phase": Arm("phase detail", "haares", {"detail": "phase"}),
    "attnres": Arm("Full AttnRes", "attnres"),
    "rezero": Arm("ReZero", "rezero"),
    "layerscale": Arm("LayerScale", "layerscale"),
}
"""The arms the book speaks of, by the names that `paper.csv` and the grids use."""


def arm(name: str, **options: Any) -> Arm:
    """The arm of that name, with further options: arm("haares", blocks=6). Raises GridError for an unknown name."""
    if name not in ARMS:
        raise GridError(f"There is no arm {name!r}; there are {', '.join(ARMS)}.")
    known = ARMS[name]
    words = "".join(f", {'N' if key == 'blocks' else key} = {value}" for key, value in options.items())
    return replace(known, label=known.label + words, options={**known.options, **options})


def setting(grid: str = "headline", **changes: Any) -> dict[str, Any]:
    """What two runs must share to be compared, but for scheme, options and seed: that of a grid's first run.

    `changes` overrule: setting("headline", layers=24). Keys are columns of runs.csv. Raises GridError for others.
    """
    config = read_grid(grid)[0].config
    m, d, t = config.model, config.data, config.train
    found = {name: getattr(m, name) for name in ("layers", "width", "heads", "ff")}
    found |= {name: getattr(d, name) for name in ("corpus", "tokenizer", "context")}
    found |= {name: getattr(t, name) for name in ("batch_size", "lr", "steps", "eval_every", "data_seed")}
    found |= {"eval_chunks": t.eval_chunks or 0, "dtype": "bfloat16 autocast" if t.autocast else "float32"}
    if unknown := set(changes) - set(found):
        raise GridError(f"A setting has no {', '.join(sorted(unknown))}; it has {', '.join(found)}.")
    return {**found, **changes}


def narrowed(table: pd.DataFrame, fixed: Mapping[str, Any]) -> pd.DataFrame:
    """The rows that have these values in these columns."""
    return table[(table[list(fixed)] == pd.Series(fixed, dtype=object)).all(axis=1)]


def unit(setting: Mapping[str, Any]) -> str:
    """What a loss of this setting is per: a character or a token."""
    return "character" if setting["tokenizer"] == "char" else "token"


def corpus_name(setting: Mapping[str, Any]) -> str:
    """The corpus in a reader's words."""
    names = {"tinystories": "TinyStories", "stories": "built-in stories", "python-source": "Python source"}
    return names.get(setting["corpus"], Path(setting["corpus"]).name)


# ------------------------------------------------------------------------------------------------ one curve


def area(curve: pd.DataFrame) -> float:
    """Mean validation loss over tokens (trapezium rule) from the first evaluation after the start; NaN for only one."""
    after = curve[curve["step"] > 0]
    if len(after) < 2:
        return math.nan
    return float(np.trapezoid(after["valid_loss"], after["tokens"]) / np.ptp(after["tokens"]))


def first_attainment(curve: pd.DataFrame, loss: float) -> float:
    """Tokens after which the validation loss first is `loss` or less, linear between evaluations; NaN if never."""
    tokens, losses = curve["tokens"].to_numpy(float), curve["valid_loss"].to_numpy(float)
    low = np.flatnonzero(losses <= loss)
    if not len(low):
        return math.nan
    i = low[0]
    if i == 0:
        return float(tokens[0])
    return float(tokens[i - 1] + (tokens[i] - tokens[i - 1]) * (losses[i - 1] - loss) / (losses[i - 1] - losses[i]))


# ------------------------------------------------------------------------------------------------ differences


@dataclass(frozen=True)
class Difference:
    """Paired differences, arm − baseline, one a seed; NaN where there are too few for a figure."""

    points: pd.Series  # by seed

    @property
    def n(self) -> int:
        return len(self.points)

    @property
    def mean(self) -> float:
        return float(self.points.mean())

    @property
    def sd(self) -> float:
        """Sample standard deviation (n − 1)."""
        return float(self.points.std(ddof=1))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % t interval of the mean from six seeds on; None for fewer, which cannot carry one."""
        if self.n < SEEDS_FOR_INTERVAL:
            return None
        half = stdtrit(self.n - 1, (1 + LEVEL) / 2) * self.sd / math.sqrt(self.n)
        return self.mean - half, self.mean + half


MEASURES = {"best": "best_loss", "last": "last_loss", "bits": "bits_per_byte", "area": None}
"""What can be compared, and its column in runs.csv: best scheduled validation loss (the paper's choice), the last one,
bits per UTF-8 byte (of the best), and the area under the learning curve, which rewards speed."""


@dataclass(frozen=True)
class Records:
    """The rows of a store with, in column `model`, what each one's model is; curves are read when asked for."""

    runs: pd.DataFrame
    store: Path

    def rows(self, arm: Arm, setting: Mapping[str, Any]) -> pd.DataFrame:
        """The runs of an arm in a setting, by seed, whichever grid they were recorded for; empty if there are none.

        Raises GridError if two runs of one seed differ in something that the store doesn't tell.
        """
        rows = narrowed(self.runs, {**setting, "model": arm.identity}).set_index("seed").sort_index()
        if rows.index.has_duplicates:
            twice = rows.index[rows.index.duplicated()][0]
            raise GridError(f"{arm.label} has several runs of seed {twice} that differ in what runs.csv does not tell.")
        return rows

    def values(self, arm: Arm, setting: Mapping[str, Any], measure: str = "best") -> pd.Series:
        """One of MEASURES by seed (nats per token; bits for "bits"); empty if nothing is recorded."""
        if measure not in MEASURES:
            raise GridError(f"There is no measure {measure!r}; there are {', '.join(MEASURES)}.")
        rows = self.rows(arm, setting)
        if measure == "area":
            return pd.Series({seed: area(self.curve(run)) for seed, run in rows["run"].items()}, dtype=float)
        return rows[MEASURES[measure]].astype(float)

    def curve(self, run: str) -> pd.DataFrame:
        return read_curve(run, self.store)

    def curves(self, arm: Arm, setting: Mapping[str, Any]) -> pd.DataFrame:
        """Validation loss of an arm: a column a seed, a row an evaluation, indexed by tokens; empty if not recorded."""
        rows = self.rows(arm, setting)
        read = {seed: self.curve(run).set_index("tokens")["valid_loss"] for seed, run in rows["run"].items()}
        return pd.DataFrame(read).dropna()

    def pairs(self, arm: Arm, baseline: Arm, setting: Mapping[str, Any]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The rows of both arms at the seeds they share. Raises GridError if they did not learn from the same text."""
        ours, theirs = self.rows(arm, setting), self.rows(baseline, setting)
        seeds = ours.index.intersection(theirs.index)
        ours, theirs = ours.loc[seeds], theirs.loc[seeds]
        for name in ("corpus_hash", "tokenizer_hash"):
            if (ours[name] != theirs[name]).any():
                raise GridError(f"{arm.label} and {baseline.label} learned from different texts: see {name}.")
        return ours, theirs

    def difference(self, arm: Arm, baseline: Arm, setting: Mapping[str, Any], measure: str = "best") -> Difference:
        """arm − baseline in one of MEASURES, at every seed that both have; without points if there is none."""
        seeds = self.pairs(arm, baseline, setting)[0].index
        ours, theirs = (self.values(which, setting, measure).loc[seeds] for which in (arm, baseline))
        return Difference(ours - theirs)

    def attainment(self, arm: Arm, baseline: Arm, setting: Mapping[str, Any], step_ratio: float = 1.0) -> pd.DataFrame:
        """When an arm reaches the baseline's best validation loss, by seed. Times use `step_ratio` (see there).

        target           the baseline's best loss, nats per token
        arm_tokens       tokens at the arm's first attainment; NaN if it never got there
        baseline_tokens  tokens at the baseline's own first attainment: the denominator the paper does not have
        budget_tokens    tokens of the baseline's whole run: the paper's denominator (its Table 14)
        time             the arm's time to the target over the baseline's own
        time_of_budget   the arm's time to the target over the baseline's whole run
        """
        found, (ours, theirs) = {}, self.pairs(arm, baseline, setting)
        for seed in ours.index:
            base = self.curve(theirs.loc[seed, "run"])
            target, budget = base["valid_loss"].min(), float(base["tokens"].iloc[-1])
            reached = first_attainment(self.curve(ours.loc[seed, "run"]), target)
            own = first_attainment(base, target)
            found[seed] = (target, reached, own, budget, step_ratio * reached / own, step_ratio * reached / budget)
        names = ["target", "arm_tokens", "baseline_tokens", "budget_tokens", "time", "time_of_budget"]
        return pd.DataFrame.from_dict(found, orient="index", columns=names, dtype=float)

    def settings(self, **fixed: Any) -> list[dict[str, Any]]:
        """Every setting in which something is recorded, most runs first; `fixed` narrows: settings(layers=48)."""
        names = list(setting())
        sizes = narrowed(self.runs, fixed).groupby(names).size().sort_values(ascending=False, kind="stable")
        return [dict(zip(names, values, strict=True)) for values in sizes.index]

    def tokens(self, setting: Mapping[str, Any]) -> int:
        """Predicted tokens that a run of this setting was trained on, padding not counted; 0 if none is recorded."""
        return int(narrowed(self.runs, setting)["tokens"].max()) if len(narrowed(self.runs, setting)) else 0


def read(store: Path | None = None) -> Records:
    """The records of a store; None: the book's own. Raises GridError if nothing is recorded there."""
    store = recorded() if store is None else store
    runs = read_runs(store)
    if runs.empty:
        raise GridError(f"No run is recorded in {store}: `minihaares ablate headline` makes the first ones.")
    models = [identity(row.scheme, json.loads(row.options)) for row in runs.itertuples()]
    return Records(runs.assign(model=models, eval_chunks=runs["eval_chunks"].fillna(0).astype(int)), store)


def step_ratio(scheme: str, baseline: str, layers: int, table: pd.DataFrame | None = None) -> float:
    """Seconds a training step of a scheme takes over those of a baseline, both in steady state.

    `table` is what `bench` recorded (column step_median: ratio to Standard); None: that of the pocket family. The
    latest measurement counts. Raises GridError if one of the two was not timed at this depth.
    """
    table = pd.read_csv(recorded() / "bench_pocket-all.csv") if table is None else table
    timed = table[table["layers"] == layers].dropna(subset="step_median").drop_duplicates("scheme", keep="last")
    ratios = timed.set_index("scheme")["step_median"]
    for name in (scheme, baseline):
        if name not in ratios:
            raise GridError(f"No step of {name} at {layers} layers is timed: `minihaares bench --record` does it.")
    return float(ratios[scheme] / ratios[baseline])


def signed(x: float, digits: int = 4) -> str:
    """A difference as print has it, with a true minus sign."""
    return f"{x:+.{digits}f}".replace("-", "−")


# ------------------------------------------------------------------------------------------------ beside the paper


def paper(**fixed: Any) -> pd.DataFrame:
    """The paper's numbers as differences arm − baseline; `fixed` narrows by columns: paper(table=12, arm="duplicate").

    Column `seed` is <NA> in the rows that hold a mean.
    """
    return narrowed(pd.read_csv(recorded() / "paper.csv", dtype={"seed": "Int64"}), fixed)


def paper_mean(**fixed: Any) -> float:
    """The one mean among those rows. Raises GridError if there is none, or more than one."""
    rows = paper(**fixed)
    means = rows[rows["seed"].isna()]["difference"]
    if len(means) != 1:
        raise GridError(f"paper.csv has {len(means)} means for {fixed}: say which table, corpus, layers and blocks.")
    return float(means.iloc[0])


@dataclass(frozen=True)
class Comparison:
    """One row of the book's table: two arms at a depth and a number of blocks, and the paper's table that has them."""

    arm: str
    baseline: str = "block"
    layers: int = 48
    blocks: int = 4
    table: int | None = 12
    corpus: str = "OpenWebText"  # the paper's, in that table

    def arms(self) -> tuple[Arm, Arm]:
        routed = {} if self.blocks == 4 else {"blocks": self.blocks}
        first, second = (arm(name, **({} if name == "standard" else routed)) for name in (self.arm, self.baseline))
        return first, second


COMPARISONS = (
    Comparison("haares", table=10, corpus="TinyStories"),
    Comparison("block", "standard", table=7),
    *(Comparison(name) for name in ("duplicate", "random sign", "no match", "bias 0", "bias -2", "bias -4")),
    Comparison("haares", "duplicate"),
    Comparison("haares", "no match"),
    Comparison("haares", "bias -2", table=None),
    *(Comparison("haares", blocks=blocks, table=11) for blocks in (6, 8)),
    *(Comparison("haares", layers=layers, table=10, corpus="TinyStories") for layers in (12, 24)),
    *(Comparison("block", "standard", layers=layers, table=None) for layers in (12, 24)),
    Comparison("attnres", "standard", table=None),
    *(Comparison(name, "standard", n, table=None) for name in ("rezero", "layerscale") for n in (12, 24, 48)),
    Comparison("phase", table=None),
)
"""What the book compares. The first six kinds are the paper's; rows without a table of its own show ours alone."""


def beside_the_paper(records: Records, base: Mapping[str, Any], measure: str = "best") -> pd.DataFrame:
    """Our differences and the paper's, a row a Comparison; unrecorded ones have n = 0 and NaN.

    Columns: arm, baseline (names), layers, blocks, n, mean, sd, low, high (the interval, NaN for few seeds), paper,
    table, corpus (the paper's), same_side (how many of the n seeds have the sign of the paper's mean).
    """
    found = []
    for c in COMPARISONS:
        d = records.difference(*c.arms(), {**base, "layers": c.layers}, measure)
        low, high = d.interval or (math.nan, math.nan)
        theirs = math.nan if c.table is None else paper_mean(**asdict(c))
        side = int((np.sign(d.points) == np.sign(theirs)).sum())
        found.append({**asdict(c), "n": d.n, "mean": d.mean, "sd": d.sd, "low": low, "high": high, "paper": theirs,
                      "same_side": side})  # fmt: skip
    return pd.DataFrame(found).astype({"table": "Int64"})
