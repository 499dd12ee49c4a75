"""HAARES and its relatives in one table: what each method stores and does, what it costs, and what loss it reached.

The words are those of the methods' papers; tests/test_comparison.py holds them to the state of real models. Costs come
from `costs`, times from `bench` (its preset `relatives`), losses from the store (the grid `relatives`).

All methods train on the same tokens, though some do more with each. Two more columns ask what is left then: the loss
at as many FLOPs, or seconds, as the whole run of Standard took. The learning rate is constant, so a run cut short is
the beginning of a longer one, and the learning curve has the answer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sympy import Expr, Integer

from . import costs, findings
from .algebra import L, N
from .bench import BenchConfig
from .experiments import GridError, read_grid, recorded
from .findings import Arm, Difference, Records, arm
from .model import ModelConfig

DEPTHS = (12, 48)


@dataclass(frozen=True)
class Method:
    """A method with its defaults. `source` is an arXiv id; `timed` its name in `bench`.

    `stored` counts the vectors of d that its state holds at most before an event, in L layers and N blocks. `add` says
    whether what an event wrote reaches the head as it is, or is mixed, scaled or normed on the way.
    """

    arm: Arm
    source: str
    timed: str
    stored: Expr
    weights: str
    action: str
    readout: str

    @property
    def add(self) -> bool:
        return self.action == "add"


METHODS: dict[str, Method] = {
    "standard": Method(arm("standard"), "1512.03385", "standard", Integer(1), "all 1", "add", "the stream"),
    "block": Method(
        arm("block"), "2603.15031", "block", N + 1, "softmax by token", "replace", "softmax over e and the sums"
    ),
    "haares": Method(
        arm("haares"), "2606.06564", "haares", 2 * N + 1, "softmax by token, details biased", "replace",
        "softmax over e and the sums",
    ),
    "hires": Method(
        Arm("HiRes", "hires"), "", "hires", Integer(3), "matrices D × d", "add and norm, by group", "the last read"
    ),
    "vwn": Method(
        Arm("VWN", "vwn"), "2511.11238", "vwn", Integer(2), "tanh by token, and static", "mix, n slots",
        "a matrix, after a norm",
    ),
    "hc": Method(
        Arm("Hyper-Connections", "hc"), "2409.19606", "hc", Integer(4), "tanh by token, and static", "mix, n streams",
        "the sum of the streams",
    ),
    "mhc": Method(
        Arm("mHC", "mhc"), "2512.24880", "mhc", Integer(4), "σ and Sinkhorn by token", "average, n streams",
        "the sum of the streams",
    ),
    "denseformer": Method(
        Arm("DenseFormer", "denseformer"), "2402.02622", "denseformer", L + 1, "static numbers", "replace, by layer",
        "the last mixture",
    ),
    "muddformer": Method(
        Arm("MUDDFormer", "muddformer"), "2502.12170", "muddformer", L + 1, "MLP by token, any sign",
        "replace, 4 ways, by layer", "the last mixture",
    ),
    "delta_block": Method(
        Arm("Delta Block", "delta", {"blocks": 4}), "2605.18855", "delta:block", N + 2, "softmax by token", "add",
        "the stream",
    ),
    "delta": Method(
        Arm("Delta AttnRes", "delta"), "2605.18855", "delta", 2 * L + 1, "softmax by token", "add", "the stream"
    ),
}  # fmt: skip
"""By the names of arms in the grid `relatives`, in the order of the table: parents, wider streams, denser ones."""


def words(methods: Mapping[str, Method] = METHODS) -> pd.DataFrame:
    """What each method is, a row each: label, stored, weights, action, readout, source."""
    rows = {
        name: {"method": m.arm.label, "stored": str(m.stored), "weights": m.weights, "what a layer wrote": m.action,
               "readout": m.readout, "arXiv": m.source}
        for name, m in methods.items()
    }  # fmt: skip
    return pd.DataFrame.from_dict(rows, orient="index")


# ------------------------------------------------------------------------------------------------ costs


def vocabulary(records: Records, base: Mapping[str, Any]) -> int:
    """Entries of the vocabulary of a setting's runs, from the parameters of one. Raises GridError if none is there."""
    for method in METHODS.values():
        rows = records.rows(method.arm, base)
        if len(rows):
            empty = costs.price(config(method, base, 1), base["context"]).parameters - base["width"]
            return (int(rows["parameters"].iloc[0]) - empty) // base["width"]
    raise GridError(f"No run at {base['layers']} layers is recorded: `minihaares ablate relatives` makes them.")


def config(method: Method, base: Mapping[str, Any], vocab_size: int) -> ModelConfig:
    """The model that a method is in a setting."""
    sizes = {name: base[name] for name in ("layers", "width", "heads", "ff")}
    return ModelConfig(**sizes, vocab_size=vocab_size, scheme=method.arm.scheme, options=dict(method.arm.options))


def bill(base: Mapping[str, Any], vocab_size: int) -> pd.DataFrame:
    """The costs of each method in a setting, on paper. Columns: stored (vectors of d), parameters, flops (of a step, a
    token), traffic (vectors of d along depth, a token), saved (numbers, a token)."""
    rows = {}
    for name, method in METHODS.items():
        price = costs.price(config(method, base, vocab_size), base["context"])
        stored = method.stored.subs({L: base["layers"], N: BenchConfig().blocks})
        rows[name] = (stored, price.parameters, price.forward + price.backward, price.traffic, price.saved)
    names = ["stored", "parameters", "flops", "traffic", "saved"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=names, dtype=float)


def timings(layers: int, store: Path | None = None) -> pd.Series:
    """Seconds of a training step over those of Standard, by method, from the latest `bench_relatives.csv`; empty if
    nothing was timed at this depth."""
    path = (recorded() if store is None else store) / "bench_relatives.csv"
    if not path.exists():
        return pd.Series(dtype=float)
    table = pd.read_csv(path)
    latest = table[table["layers"] == layers].drop_duplicates("scheme", keep="last").set_index("scheme")["step_median"]
    return pd.Series({name: latest[m.timed] for name, m in METHODS.items() if m.timed in latest}, dtype=float)


# ------------------------------------------------------------------------------------------------ losses


def read(store: Path | None = None) -> Records:
    """The records of a store (None: the book's own) at the seeds that the grid gives to all methods; some have more."""
    records = findings.read(store)
    seeds = {planned.config.train.seed for planned in read_grid("relatives")}
    return replace(records, runs=records.runs[records.runs["seed"].isin(seeds)])


def loss_by(curve: pd.DataFrame, tokens: float) -> float:
    """Best validation loss after at most so many training tokens, linear between evaluations (nats per token).

    Beyond the end of the curve it is the best of all; ValueError for a budget before its beginning.
    """
    at, losses = curve["tokens"].to_numpy(float), curve["valid_loss"].to_numpy(float)
    if tokens < at[0]:
        raise ValueError(f"The curve begins at {at[0]:g} tokens, behind {tokens:g}.")
    return float(min(np.append(losses[at <= tokens], np.interp(tokens, at, losses))))


def budgeted(records: Records, method: Arm, base: Mapping[str, Any], ratio: float) -> pd.Series:
    """Best losses by seed if a step costs `ratio` times Standard's, and no more may be spent than Standard's run."""
    rows = records.rows(method, base)
    curves = {seed: records.curve(run) for seed, run in rows["run"].items()}
    return pd.Series({s: loss_by(c, c["tokens"].iloc[-1] / max(ratio, 1)) for s, c in curves.items()}, dtype=float)


def behind(records: Records, method: Arm, base: Mapping[str, Any], ratio: float = 1.0) -> Difference:
    """Method − Standard by seed, at as much as Standard's whole run cost, where a step costs `ratio` times Standard's.
    A ratio below 1 counts as 1: the method's curve ends there."""
    standard = METHODS["standard"].arm
    seeds = records.pairs(method, standard, base)[0].index
    return Difference((budgeted(records, method, base, ratio) - budgeted(records, standard, base, 1)).loc[seeds])


def table(records: Records, base: Mapping[str, Any], times: pd.Series | None = None) -> pd.DataFrame:
    """The comparison in a setting, a row a method, NaN where nothing is recorded.

    method; stored: vectors of d; parameters, flops, traffic, saved, time: ratios to Standard; n: seeds; loss, sd: mean
    and sample standard deviation of the best validation loss over all tokens; at_tokens, at_flops, at_seconds: mean of
    method − Standard, paired by seed, at equal tokens, FLOPs, seconds. `times` None: `timings` of the store.
    """
    paper = bill(base, vocabulary(records, base))
    times = timings(base["layers"], records.store) if times is None else times
    ratios = paper.div(paper.loc["standard"]).assign(stored=paper["stored"], time=times)
    rows = {}
    for name, method in METHODS.items():
        losses = records.values(method.arm, base)
        budgets = {"at_tokens": 1.0, "at_flops": ratios.loc[name, "flops"], "at_seconds": ratios.loc[name, "time"]}
        gaps = {at: behind(records, method.arm, base, x).mean if x == x else np.nan for at, x in budgets.items()}
        rows[name] = {"n": len(losses), "loss": losses.mean(), "sd": losses.std(ddof=1), **gaps}
    found = ratios.join(pd.DataFrame.from_dict(rows, orient="index"))
    found.insert(0, "method", [m.arm.label for m in METHODS.values()])
    return found


def missing(records: Records, base: Mapping[str, Any], names: Iterable[str] = METHODS) -> list[str]:
    """Labels of the methods that have no run in a setting."""
    return [METHODS[name].arm.label for name in names if records.rows(METHODS[name].arm, base).empty]
