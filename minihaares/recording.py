"""The commands that measure and record: `minihaares ablate` runs grids, `minihaares bench` counts and times."""

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import pandas as pd
import tyro

from . import bench, bench_read, findings, profiles, results
from .experiments import STORE, GridError, grid_names, missing, read_grid, run_grid, seconds_ahead, select
from .ngrams import record_ngrams

__all__ = ["Ablate", "Bench", "GridError"]
README = Path("README.md")


@dataclass(frozen=True)
class Ablate:
    """Do the runs of a grid that are not recorded yet; it can be stopped at any time and goes on where it was."""

    grid: tyro.conf.Positional[str] = "headline"
    """a grid of the book (a name that doesn't exist lists them), or a .toml file"""
    only: str | None = None
    """just the runs of this arm, or whose id begins so"""
    list: bool = False
    """show the runs and whether they are recorded; run nothing"""
    dry_run: bool = False
    """show how long the missing runs would take here; run nothing"""
    table: bool = False
    """print what is recorded beside the paper's numbers, and put it into a README.md that has a place for it; run
    nothing"""
    ngrams: bool = False
    """count n-grams on the grid's text, for the level lines under its learning curves; run nothing"""
    data_dir: Path | None = None
    """where the corpus lies, if not in the hub's cache"""
    runs: Path = Path("runs")
    """holds the run folders; remove it when all is recorded"""
    store: Path = STORE
    """holds runs.csv and curves/"""
    compile: bool = False
    """sublayers through torch.compile: quicker, if the computer has a compiler"""

    def __call__(self) -> None:
        grid = select(read_grid(self.grid), self.only)
        if self.table:
            table = results.results_table(findings.read(self.store), findings.setting(self.grid))
            print(table)
            if results.write_results(table, README):
                print(f"The same table is in {README} now.")
            return
        if self.ngrams:
            first = grid[0].config
            data = replace(first.data, data_dir=self.data_dir or first.data.data_dir)
            losses = record_ngrams(data, first.train.eval_chunks, store=self.store)
            print(losses[["order", "loss"]].round(4).to_string(index=False))
            return
        left = missing(grid, self.store)
        if self.list:
            for p in grid:
                done = "" if p.id in {q.id for q in left} else "recorded"
                print(f"{p.id}  {p.arm:30s} {p.config.model.layers:3d} layers  seed {p.config.train.seed:<6d} {done}")
        elif self.dry_run:
            ahead = seconds_ahead(left, self.store)
            for p in left:
                print(f"{p.id}  {p.arm:30s} {p.config.model.layers:3d} layers  {ahead[p.id] / 60:7.1f} minutes")
            print(f"{len(left)} of {len(grid)} runs to do, about {sum(ahead.values()) / 3600:.1f} hours")
        else:
            finished = run_grid(grid, self.runs, self.store, self.data_dir, self.compile)
            print(f"{finished} runs recorded in {self.store / 'runs.csv'}; {len(missing(grid, self.store))} to do.")
            others = ", ".join(name for name in grid_names() if name != self.grid)
            print(f"Next: minihaares ablate {self.grid} --list" + (f", or another grid: {others}" if others else ""))


@dataclass(frozen=True)
class Bench:
    """Time, saved bytes, memory and FLOPs of schemes, as ratios to Standard; a setting given beats the preset's."""

    preset: str = "target"
    """target, depth, pocket, pocket-all, small-all, medium-all or paper; read times one read alone, and profile says
    which kinds of operations a step of `target` spends its time in"""
    family: str | None = None
    """pocket, small, medium, large"""
    layers: tuple[int, ...] | None = None
    """depths to measure"""
    schemes: tuple[str, ...] | None = None
    """such as: standard block haares haares:plain haares:recompute"""
    work: tuple[str, ...] | None = None
    """of forward, backward (both passes), step (with AdamW), generate"""
    batch_size: int | None = None
    """sequences at once"""
    context: int | None = None
    """tokens of a sequence"""
    rounds: int | None = None
    """how often each scheme has its turn"""
    device: str | None = None
    """auto, cpu, cuda, mps"""
    threads: int | None = None
    """CPU threads"""
    autocast: bool = False
    """sublayers in bfloat16"""
    tf32: bool = False
    """coarser, quicker float32 products on CUDA"""
    compile: bool = False
    """sublayers through torch.compile"""
    record: bool = False
    """add the rows to the store"""
    store: Path = STORE
    """where bench_PRESET.csv is kept"""

    def __call__(self) -> None:
        rounds = {"rounds": self.rounds} if self.rounds else {}
        if self.preset == "read":
            settings = {"device": "cpu", "threads": self.threads}
            table = bench_read.run_read(threads=self.threads, **rounds)
        else:
            given = {f.name: getattr(self, f.name) for f in fields(bench.BenchConfig) if hasattr(self, f.name)}
            config = profiles.SETTING if self.preset == "profile" else bench.preset(self.preset)
            config = replace(config, **{k: v for k, v in given.items() if v not in (None, False)})
            settings = asdict(config)
            table = profiles.run_profile(config) if self.preset == "profile" else bench.run(config)
        with pd.option_context("display.width", 200, "display.max_columns", None):
            print(table.round(3).to_string(index=False))
        if self.record:
            print(f"recorded in {bench.keep(table, settings, self.preset, self.store)}")
        else:
            print("Next: the same with --record keeps the rows for the book's figures.")


