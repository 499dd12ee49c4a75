"""Grids of runs, and the store of what they gave.

A grid is a TOML file: settings every run shares, and arms that differ. A run is recorded once, as one row of
`runs.csv` with its learning curve beside it, and never again: a grid can be stopped, killed and started anew, by any
number of processes, and does only what is missing. Figures and chapters read the store, never a run folder.
"""

import contextlib
import hashlib
import itertools
import json
import multiprocessing
import platform
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from .checkpoints import write_whole
from .corpora import reads_folder
from .data import PAD, Corpus, DataConfig, DataError, Tokenizer, load_corpus
from .machine import Interrupted, peak_resident
from .model import FAMILIES, ConfigError, ModelConfig, Transformer, scheme_options
from .settings import FREE, CheckpointError, RunConfig, TrainConfig, TrainError
from .train import token_losses, train

STORE = Path("figures/data")  # where a command puts what it finds


def recorded() -> Path:
    """The store that the book's figures and chapters read: the wheel's copy of it, or that of the checkout."""
    package = Path(__file__).resolve().parent
    copy = package / "store"  # see [tool.setuptools.package-dir] in pyproject.toml
    return copy if copy.is_dir() else package.parent / STORE


FULL_PRECISION = "%.17g"  # so that a float survives the file


class GridError(ValueError):
    """A grid file or a selection of runs that makes no sense; the message says what to do."""


@dataclass(frozen=True)
class Planned:
    """One run of a grid: the arm it belongs to, and everything it is made from."""

    grid: str
    arm: str
    config: RunConfig

    @property
    def id(self) -> str:
        """Twelve hex digits of a hash of every setting that decides what is learned: equal runs share a row."""
        settings = json.loads(self.config.to_json())
        for name in FREE:
            part, _, key = name.partition(".")
            if name != "train.steps":  # which may change in a resumed run, but makes another experiment
                del settings[part][key]
        kind, options = scheme_options(self.config.model.scheme, self.config.model.options)
        settings["model"]["options"] = {
            f.name: float(v) if type(v := getattr(options, f.name)) is int and f.type is float else v  # 4 is 4.0
            for f in fields(options)
            if f.name != "read"
        }
        settings["model"]["scheme"] = kind.__name__
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def grid_names() -> list[str]:
    """The grids that come with the package."""
    files = (p.name for p in resources.files("minihaares.grids").iterdir())
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def read_grid(name: str) -> list[Planned]:
    """The runs of a grid, by its name or the path of its file, in the order they should be done.

    Top-level tables `model` (with an optional `family`), `data` and `train` hold what all share. Each `[[arm]]` has
    a `name`, a `scheme`, and optionally `options`, `over` (lists of option values to combine), and lists `layers` and
    `seeds`; tables `model`, `data`, `train` inside an arm overrule. Seeds vary slowest, so that a grid cut short
    still holds complete comparisons.
    """
    path = Path(name) if name.endswith(".toml") else resources.files("minihaares.grids") / f"{name}.toml"
    try:
        grid = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(grid_names())
        raise GridError(f"There is no grid {name}; there are {known}, or give a .toml file.") from None
    except tomllib.TOMLDecodeError as error:
        raise GridError(f"{path} is not valid TOML: {error}.") from None
    planned = []
    for arm in grid.get("arm", []):
        unknown = set(arm) - {"name", "scheme", "options", "over", "layers", "seeds", "model", "data", "train"}
        if unknown or not {"name", "scheme"} <= set(arm):
            wrong = f"has no {', '.join(sorted(unknown))}" if unknown else "needs a name and a scheme"
            raise GridError(f"{path}: an arm {wrong}.")
        shared = {part: {**grid.get(part, {}), **arm.get(part, {})} for part in ("model", "data", "train")}
        family = FAMILIES[shared["model"].pop("family")] if "family" in shared["model"] else {}
        over = arm.get("over", {})
        for seed, layers, *values in itertools.product(
            arm.get("seeds", [42]), arm.get("layers", [shared["model"].pop("layers", 12)]), *over.values()
        ):
            options = {**arm.get("options", {}), **dict(zip(over, values, strict=True))}
            try:
                sizes = family | shared["model"] | {"layers": layers}
                model = ModelConfig(**sizes, scheme=arm["scheme"], options=options)
                run = RunConfig(model, DataConfig(**shared["data"]), TrainConfig(**shared["train"] | {"seed": seed}))
            except TypeError as error:
                raise GridError(f"{path}, arm {arm['name']}: {error}.") from None
            label = arm["name"] + "".join(f" {key}={value}" for key, value in zip(over, values, strict=True))
            planned.append((seed, Planned(path.name.removesuffix(".toml"), label, run)))
    if not planned:
        raise GridError(f"{path} holds no arm.")
    order = {seed: i for i, seed in enumerate(dict.fromkeys(seed for seed, _ in planned))}
    return [run for seed, run in sorted(planned, key=lambda pair: order[pair[0]])]


# ------------------------------------------------------------------------------------------------ the store


def read_runs(store: Path = STORE) -> pd.DataFrame:
    """Every recorded run, one a row, options as JSON text; empty if nothing is recorded."""
    path = store / "runs.csv"
    if not path.exists():
        return pd.DataFrame({"run": pd.Series(dtype=str)})
    return pd.read_csv(path, dtype={"run": str, "corpus_hash": str, "tokenizer_hash": str, "commit": str})


def read_curve(run: str, store: Path = STORE) -> pd.DataFrame:
    """The learning curve of a recorded run: step, tokens, train_loss, valid_loss (nats a token), seconds."""
    return pd.read_csv(store / "curves" / f"{run}.csv")


def append(row: dict[str, Any], curve: pd.DataFrame, store: Path = STORE) -> None:
    """Add a run and its curve, whole or not at all; a run that is there already stays as it is."""
    (store / "curves").mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(store / ".lock"):
        runs = read_runs(store)
        if row["run"] in set(runs["run"]):
            return
        curve_path = store / "curves" / f"{row['run']}.csv"
        write_whole(curve_path, lambda path: curve.to_csv(path, index=False, float_format=FULL_PRECISION))
        runs = pd.DataFrame([row]) if runs.empty else pd.concat([runs, pd.DataFrame([row])], ignore_index=True)
        write_whole(store / "runs.csv", lambda path: runs.to_csv(path, index=False, float_format=FULL_PRECISION))


def bytes_per_token(chunks: np.ndarray, tokenizer: Tokenizer) -> float:
    """UTF-8 bytes of text a predicted token of `chunks` [n, T+1] stands for, on average."""
    targets = [row[row != PAD] for row in chunks[:, 1:]]
    return sum(len(tokenizer.decode(row).encode()) for row in targets) / sum(map(len, targets))


def commit() -> str:
    """The checkout's commit, "+" added if files differ from it; "" where there is no checkout."""
    here = Path(__file__).resolve().parent
    try:
        ask = partial(subprocess.run, cwd=here, capture_output=True, text=True)
        head = ask(["git", "rev-parse", "--short=12", "HEAD"], check=True)
        diff = ask(["git", "diff", "--quiet", "HEAD", "--", "."])
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if diff.returncode else "")


def record(planned: Planned, corpus: Corpus, started: str, store: Path) -> None:
    """Train a planned run to its end (going on where it stood) and put it into the store."""
    result = train(planned.config, corpus, progress=True)
    m, d, t = planned.config.model, planned.config.data, planned.config.train
    curve = pd.DataFrame(result.curve, columns=result.curve[0]._fields)
    limit = t.eval_chunks or len(corpus.valid)
    row = {
        "run": planned.id,
        "grid": planned.grid,
        "arm": planned.arm,
        "scheme": m.scheme,
        "options": json.dumps(dict(m.options), sort_keys=True),
        **{name: getattr(m, name) for name in ("layers", "width", "heads", "ff")},
        "corpus": d.corpus,
        "corpus_hash": corpus.hash,
        "tokenizer": d.tokenizer,
        "tokenizer_hash": corpus.tokenizer.hash,
        "context": d.context,
        **{name: getattr(t, name) for name in ("batch_size", "lr", "steps", "eval_every", "eval_chunks")},
        "seed": t.seed,
        "data_seed": t.data_seed,
        "parameters": result.parameters,
        "tokens": result.tokens,
        "best_loss": result.best_loss,
        "best_step": result.best_step,
        "last_loss": result.last_loss,
        "bits_per_byte": result.best_loss / np.log(2) / bytes_per_token(corpus.valid[:limit], corpus.tokenizer),
        "seconds": result.seconds,
        "peak_mib": peak_resident() / 2**20,
        "device": result.device,
        "threads": result.threads,
        "dtype": "bfloat16 autocast" if t.autocast else "float32",
        "compiled": t.compile,
        "machine": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "commit": started,
        "finished": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "command": f"minihaares ablate {planned.grid} --only {planned.id}",
    }
    append(row, curve, store)


# ------------------------------------------------------------------------------------------------ running


def missing(grid: list[Planned], store: Path = STORE) -> list[Planned]:
    """The runs of a grid that are not recorded, each once."""
    done = set(read_runs(store)["run"])
    return [p for i, p in enumerate(grid) if p.id not in done and p.id not in {q.id for q in grid[:i]}]


def select(grid: list[Planned], only: str | None) -> list[Planned]:
    """The runs whose id starts with `only`, or whose arm is named so; all for None."""
    if only is None:
        return grid
    found = [p for p in grid if p.id.startswith(only) or p.arm == only]
    if not found:
        arms = ", ".join(dict.fromkeys(p.arm for p in grid))
        raise GridError(f"No run of the grid has the id or arm {only!r}; its arms are {arms}.")
    return found


ALIKE = ("scheme", "options", "layers", "width", "ff", "context", "batch_size", "threads")  # runs of one speed


def seconds_ahead(grid: list[Planned], store: Path = STORE) -> dict[str, float]:
    """Predicted seconds by run id: from recorded runs of the same model where there are any, else from timed steps."""
    runs, speed, ahead = read_runs(store), {}, {}
    for planned in tqdm(grid, desc="timing", leave=False, file=sys.stderr):
        m, t = planned.config.model, planned.config.train
        options = json.dumps(dict(m.options), sort_keys=True)
        threads = t.threads or torch.get_num_threads()
        key = (m.scheme, options, m.layers, m.width, m.ff, planned.config.data.context, t.batch_size, threads)
        if key not in speed:
            same = runs[(runs[list(ALIKE)] == list(key)).all(axis=1)] if len(runs) else runs
            speed[key] = (same["seconds"] / same["steps"]).median() if len(same) else time_step(planned.config)
        ahead[planned.id] = speed[key] * t.steps
    return ahead


def time_step(config: RunConfig, steps: int = 3) -> float:
    """Seconds a training step takes here, on random tokens: the quickest of a few, a tenth added for evaluations."""
    torch.set_num_threads(config.train.threads or torch.get_num_threads())
    model = Transformer(config.model)
    tokens = torch.randint(config.model.vocab_size, (config.train.batch_size, config.data.context + 1))
    best = float("inf")
    for _ in range(steps):
        start = time.perf_counter()
        token_losses(model, tokens[:, :-1], tokens[:, 1:], config.train.autocast, "mean").backward()
        best = min(best, time.perf_counter() - start)
    return 1.1 * best


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Whether this process may work in a run's folder: no other one does so now."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / ".claim", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _worker(planned: Planned, started: str, store: Path) -> None:
    if planned.config.train.threads:
        torch.set_num_threads(planned.config.train.threads)
    try:
        record(planned, load_corpus(planned.config.data, progress=False), started, store)
    except (ConfigError, DataError, CheckpointError, TrainError, Interrupted) as error:
        print(f"minihaares: {error}", file=sys.stderr)
        sys.exit(130 if isinstance(error, Interrupted) else 2)


def run_grid(
    grid: list[Planned],
    folder: Path = Path("runs"),
    store: Path = STORE,
    data_dir: Path | None = None,
    compile: bool = False,
) -> int:
    """Do the runs that are missing, each in a process of its own (so that its peak memory is its own).

    Run folders lie in `folder` by id; runs another process has claimed are left to it. `compile` puts sublayers
    through torch.compile, which is quicker and changes results by rounding. `data_dir` is for the runs whose corpus can
    lie in a folder. Gives the number of runs recorded here. A run that fails stops the grid with GridError; what it
    saved stays. GridError, too, if no run of the grid reads a folder.
    """
    if data_dir and not any(reads_folder(planned.config.data.corpus) for planned in grid):
        raise GridError("No run of this grid reads its text from a folder: drop --data-dir.")
    todo, finished, started = missing(grid, store), 0, commit()
    spawn = multiprocessing.get_context("spawn")
    for i, planned in enumerate(todo, 1):
        home, config = folder / planned.id, planned.config
        data = config.data
        if data_dir and reads_folder(data.corpus):
            data = replace(data, data_dir=data_dir)
        config = replace(config, train=replace(config.train, out=home, compile=compile), data=data)
        with claimed(home) as ours:
            if not ours or planned.id in set(read_runs(store)["run"]):
                continue
            what = f"{planned.arm}, {config.model.layers} layers, seed {config.train.seed}"
            print(f"[{i}/{len(todo)}] {planned.id} {what}", file=sys.stderr)
            began = time.perf_counter()
            process = spawn.Process(target=_worker, args=(replace(planned, config=config), started, store))
            process.start()
            try:
                process.join()
            except KeyboardInterrupt:  # the child has had it too, and saves
                process.join()
                raise
            if process.exitcode:
                raise GridError(f"Run {planned.id} ended with code {process.exitcode}; what it saved stays in {home}.")
            finished += 1
            row = read_runs(store).set_index("run").loc[planned.id]
            took = (time.perf_counter() - began) / 60
            print(f"    best {row.best_loss:.4f} at step {row.best_step}, {took:.1f} minutes", file=sys.stderr)
    return finished
