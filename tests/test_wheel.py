"""The wheel carries all that a chapter needs: without the checkout, cells that read the store run as they do in it.

`make wheel-check` is the long form: every chapter, from an empty folder, in a fresh environment.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import jupytext
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "chapters").glob("[0-9][0-9]_*.py"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the wheel is made from, so that building leaves nothing in the checkout."""
    folder = tmp_path_factory.mktemp("tree")
    leave = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("minihaares", "figures/data"):
        shutil.copytree(ROOT / name, folder / name, ignore=leave)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def unpacked(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the unpacked wheel, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    done = subprocess.run([*build, "--wheel-dir", folder, tree], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("minihaares-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def files(folder: Path) -> set[str]:
    """What lies in a folder and below it, but for what Python compiled there."""
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in paths}


def test_the_wheel_holds_package_and_store_and_nothing_else(tree: Path, unpacked: Path):
    """A new kind of record, or a new subpackage, has to be named in pyproject.toml before it travels."""
    expected = files(tree / "minihaares") | {f"store/{name}" for name in files(tree / "figures" / "data")}
    assert {"model.py", "relatives/hires.py", "grids/headline.toml", "store/bench_target.csv"} <= expected
    assert files(unpacked / "minihaares") == expected
    assert {path.name.partition("-")[0] for path in unpacked.iterdir()} == {"minihaares"}


# Runs code given on stdin and prints, last, every path of the checkout that was opened or listed meanwhile.
WITNESS = """
import json, os, sys
checkout, touched = sys.argv[1], set()

def watch(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, os.PathLike)):
        path = os.path.abspath(arguments[0])
        if path.startswith(checkout + os.sep) and not path.startswith(sys.prefix + os.sep):
            touched.add(path)

code = sys.stdin.read()
sys.addaudithook(watch)
exec(compile(code, "cells", "exec"), {"__name__": "__main__"})
print(json.dumps(sorted(touched)))
"""


def run_away_from_the_checkout(code: str, first: Path, cwd: Path) -> tuple[list[str], list[str]]:
    """Lines that the code printed, and paths of the checkout it touched, with `first` first on Python's path."""
    done = subprocess.run(
        [sys.executable, "-c", WITNESS, str(ROOT)],
        input=code,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(first), "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *printed, touched = done.stdout.splitlines()
    return printed, json.loads(touched)


def code_cells(source: Path) -> list[str]:
    return [cell.source for cell in jupytext.read(source).cells if cell.cell_type == "code"]


def test_cells_that_read_the_store_need_no_checkout(tree: Path, unpacked: Path, tmp_path: Path):
    """Nothing of the checkout is opened and nothing is written beside the notebook."""
    imports, *cells = code_cells(ROOT / "chapters" / "12_the_same_read_for_less.py")
    reading = [cell for cell in cells if "recorded()" in cell]
    assert len(reading) >= 2
    ask = "print(experiments.recorded(), len(experiments.read_runs(experiments.recorded())))"
    code = "\n".join([imports, *reading, ask])
    printed, touched = run_away_from_the_checkout(code, unpacked, tmp_path)
    runs = tree / "figures" / "data" / "runs.csv"
    rows = len(runs.read_text(encoding="utf-8").splitlines()) - 1 if runs.exists() else 0
    assert printed[-1] == f"{unpacked / 'minihaares' / 'store'} {rows}"
    assert touched == [] and list(tmp_path.iterdir()) == []


def test_in_a_checkout_the_store_is_the_checkouts(tmp_path: Path):
    code = "from minihaares import experiments\nprint(experiments.recorded())\nexperiments.recorded().stat()\n"
    printed, touched = run_away_from_the_checkout(code, ROOT, tmp_path)
    assert printed == [str(ROOT / "figures" / "data")]
    assert any(path.endswith("experiments.py") for path in touched), "the witness sees nothing"


# --- what the chapters ask for ---------------------------------------------------------------------------------------


def top_names(code: str) -> set[str]:
    """First names of all that a piece of code imports."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_chapter_imports_only_what_the_wheel_brings(source: Path):
    """What `pip install 'minihaares[lab]'` asks for by name, and IPython, which comes with ipykernel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["dependencies"] + project["optional-dependencies"]["lab"]
    asked = {canonicalize_name(Requirement(line).name) for line in lines} | {"minihaares", "ipython"}
    providers = packages_distributions() | {"minihaares": ["minihaares"]}
    names = set().union(*map(top_names, code_cells(source))) - set(sys.stdlib_module_names)
    assert "minihaares" in names
    assert {name for name in names if not asked & {canonicalize_name(p) for p in providers.get(name, [])}} == set()


CHECKOUT_PATH = re.compile(r"""["'](?:\.\./|\./|(?:figures|chapters|minihaares|tests|runs)/)""")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_chapter_names_no_path_of_the_checkout(source: Path):
    assert [line for cell in code_cells(source) for line in cell.splitlines() if CHECKOUT_PATH.search(line)] == []


def test_imports_and_paths_are_seen():
    code = textwrap.dedent("""
        import numpy.linalg as la
        def f():
            from outside.part import x
            return open("figures/data/runs.csv"), open('../x'), open("data.csv")
    """)
    assert top_names(code) == {"numpy", "outside"}
    assert CHECKOUT_PATH.findall(code) == ['"figures/', "'../"]
