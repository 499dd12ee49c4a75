"""`minihaares doctor`: what is installed, which device and text there is, and what to put right."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import platformdirs
import torch
from packaging.requirements import Requirement

from .experiments import read_runs, recorded
from .hub import HUB, cached
from .machine import device_name, pick_device

FREE_GIB = 2.0  # a trained run, encoded text and a few checkpoints fit in it


@dataclass(frozen=True)
class Finding:
    """One line of the report; `advice` says what to do where something is wrong."""

    name: str
    value: str
    advice: str = ""


def packages() -> Iterator[Finding]:
    """The package's own needs, and of what its extras need the parts that are installed."""
    try:
        needs = [Requirement(line) for line in requires("minihaares") or ()]
    except PackageNotFoundError:
        yield Finding("minihaares", "not installed", "pip install -e . in the folder that holds pyproject.toml")
        return
    yield Finding("minihaares", version("minihaares"))
    for need in {need.name: need for need in sorted(needs, key=lambda need: need.name)}.values():
        if need.name == "minihaares":
            continue
        optional = need.marker is not None and not need.marker.evaluate({"extra": ""})
        try:
            found = version(need.name)
        except PackageNotFoundError:
            if not optional:
                yield Finding(need.name, "missing", f"pip install '{need.name}{need.specifier}'")
            continue
        fits = need.specifier.contains(found, prereleases=True)
        yield Finding(need.name, found, "" if fits else f"pip install '{need.name}{need.specifier}'")


def computer() -> Iterator[Finding]:
    """Python, operating system, cores, the device a run would use, and room on the disk."""
    old = sys.version_info < (3, 11)
    yield Finding("Python", platform.python_version(), "use Python 3.11 or newer" if old else "")
    yield Finding("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    yield Finding("cores", f"{os.cpu_count()}, of which torch uses {torch.get_num_threads()}")
    yield Finding("device", device_name(pick_device("auto")))
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    yield Finding("free disk", f"{free:.0f} GiB", "make room: runs are saved here" if free < FREE_GIB else "")


def text() -> Iterator[Finding]:
    """The corpora that need no network any more, and the records of the book."""
    yield Finding("corpus stories", "built in")
    for name in HUB:
        here = cached(name)
        yield Finding(f"corpus {name}", "in the hub's cache" if here else "downloaded when asked for, or --data-dir")
    yield Finding("encoded text", os.environ.get("MINIHAARES_CACHE") or platformdirs.user_cache_dir("minihaares"))
    runs = len(read_runs(recorded()))
    advice = "" if recorded().is_dir() else "chapters read records: reinstall minihaares, whose wheel carries them"
    yield Finding("recorded runs", str(runs), advice)


def report() -> tuple[list[str], bool]:
    """The lines of the report, and whether nothing needs attention."""
    findings = [*computer(), *packages(), *text()]
    width = max(len(f.name) for f in findings)
    lines = [f"{f.name:{width}s}  {f.value}" + (f"   <- {f.advice}" if f.advice else "") for f in findings]
    wrong = sum(bool(f.advice) for f in findings)
    lines.append("Everything is in place." if not wrong else f"{wrong} thing(s) to put right; each line says how.")
    return lines, not wrong


@dataclass(frozen=True)
class Doctor:
    """Look at this computer and say what is installed, found and missing; paste its output into a bug report."""

    def __call__(self) -> int:
        lines, fine = report()
        print("\n".join(lines))
        return 0 if fine else 1
