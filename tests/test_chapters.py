"""The book: every chapter follows the rules, each rule catches its fault, and the output check is strict.

The chapters' outputs themselves are compared by nbval (chapters/conftest.py), cell by cell, in the same pytest run.
"""

import copy
import importlib.util
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import jupytext
import nbformat
import pytest
from jupytext import TextFileContentsManager
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = ROOT / "chapters"
TOOLS = CHAPTERS / "_tools"
sys.path.insert(0, str(TOOLS))
import notebooks  # noqa: E402
import rules  # noqa: E402

SOURCES = notebooks.chapter_sources()
ALT = {"image/png": {"alt": "A line falls from three to one."}}
PNG = "iVBORw0KGgo="
CHAPTER_SECONDS, BOOK_SECONDS = 60, 600


def load_numeric():
    spec = importlib.util.spec_from_file_location("chapters_conftest", CHAPTERS / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


numeric = load_numeric()


# --- the chapters ---------------------------------------------------------------------------------------------------


def test_the_chapters_are_those_of_the_readme():
    """The rows of the README's chapter table, `| 00 | [title](chapters/00_title.ipynb) | ...`, name every chapter."""
    rows = re.findall(
        r"^\|\s*(\d\d)\s*\|.*?\]\(chapters/(\d\d)(_\w+)\.ipynb\)",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert all(number == prefix for number, prefix, _ in rows), rows
    listed = [prefix + title for _, prefix, title in rows]
    assert listed, "the README lists no chapter"
    assert listed == [source.stem for source in SOURCES]


def test_every_notebook_has_a_source():
    assert sorted(path.stem for path in CHAPTERS.glob("*.ipynb")) == [source.stem for source in SOURCES]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_chapter_follows_the_rules(source: Path):
    stored = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(stored)
    assert rules.problems(jupytext.read(source), stored) == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_cell_ids_are_those_of_the_maker(source: Path):
    """Ids drawn at random would change in every run's diff."""
    stored = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    assert [cell.id for cell in stored.cells] == [cell.id for cell in notebooks.from_source(source).cells]


def test_chapters_keep_to_their_time():
    """`make times` measures them, one after the other."""
    seconds = json.loads(notebooks.RUN_TIMES.read_text(encoding="utf-8"))
    assert list(seconds) == [source.stem for source in SOURCES], "run `make times`"
    assert all(0 < taken <= CHAPTER_SECONDS for taken in seconds.values()), seconds
    assert sum(seconds.values()) <= BOOK_SECONDS, seconds


def test_jupyterlab_opens_a_source_older_than_its_notebook(tmp_path: Path):
    """As every source is after `make notebooks`. Without the two filters in both files JupyterLab refuses."""
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    source = tmp_path / "01_x.py"
    source.write_text("# %% [markdown]\n# # Title\n\n# %%\n1 + 1\n", encoding="utf-8")
    stored = notebooks.from_source(source)
    stored.cells[1].execution_count = 1
    stored.cells[1].outputs = [new_output("execute_result", {"text/plain": "2"}, execution_count=1)]
    nbformat.write(stored, source.with_suffix(".ipynb"))
    os.utime(source, (1_000_000_000, 1_000_000_000))
    manager = TextFileContentsManager(root_dir=str(tmp_path))
    opened = manager.get("01_x.py", type="notebook")
    assert opened["content"].cells[1].outputs[0].data == {"text/plain": "2"}


# --- each rule finds its fault --------------------------------------------------------------------------------------


def good_chapter() -> nbformat.NotebookNode:
    box = "# Title\n\nWords.\n\n**You will build** a. **You will learn** b. **You need** c. **Runs in** 1 s."
    cells = [new_markdown_cell(box)]
    for count in range(1, 5):
        value = new_output("execute_result", {"text/plain": "0.5"}, execution_count=count)
        cells.append(new_code_cell("value", execution_count=count, outputs=[value]))
    picture = new_output("display_data", {"image/png": PNG, "text/plain": "alt"}, metadata=ALT)
    cells.append(new_code_cell("plots.show(figure)", execution_count=5, outputs=[picture]))
    cells.append(new_markdown_cell("![a small cat asleep](cat.png) and <img src='x.png' alt='a dog'>"))
    return new_notebook(cells=cells, metadata={"jupytext": dict(rules.FILTERS)})


def spoil_text(text):
    return lambda stored: stored.cells[1].outputs[0].data.update({"text/plain": text})


def spoil_stderr(stored):
    stored.cells[1].outputs.append(new_output("stream", name="stderr", text="UserWarning: no"))


FAULTS = {
    "another cell": lambda nb: nb.cells[2].update(source="other"),
    "another tag": lambda nb: nb.cells[2].metadata.update(tags=["nbval-raises-exception"]),
    "a cell less": lambda nb: nb.cells.pop(),
    "no jupytext filters": lambda nb: nb.metadata.pop("jupytext"),
    "one filter": lambda nb: nb.metadata.jupytext.pop("cell_metadata_filter"),
    "widget state": lambda nb: nb.metadata.update(widgets={}),
    "timing": lambda nb: nb.cells[1].metadata.update(execution={}),
    "a cell not run": lambda nb: nb.cells[2].update(execution_count=None),
    "cells run out of order": lambda nb: nb.cells[2].update(execution_count=7),
    "a warning": spoil_stderr,
    "a path": spoil_text("saved in /srv/somebody/file.txt"),
    "a windows path": spoil_text("D:\\data"),
    "an address": spoil_text("<object at 0x7f3a2b1c9d10>"),
    "something from outside": lambda nb: nb.cells[1].outputs[0].data.update({"text/html": '<img src="//a.b/c">'}),
    "two pictures": lambda nb: nb.cells[5].outputs.append(nb.cells[5].outputs[0]),
    "no alt text": lambda nb: nb.cells[5].outputs[0].update(metadata={}),
    "an svg": lambda nb: nb.cells[1].outputs[0].data.update({"image/svg+xml": "<svg/>"}),
    "a widget": lambda nb: nb.cells[1].outputs[0].data.update({rules.WIDGET: {}}),
}
SOURCE_FAULTS = {  # the same fault in both files
    "two unchecked cells of five": lambda nb: [cell.metadata.update(tags=[rules.IGNORE]) for cell in nb.cells[1:3]],
    "nbval told by a comment": lambda nb: nb.cells[1].update(source="value  # NBVAL_IGNORE_OUTPUT"),
    "a skipped cell": lambda nb: nb.cells[1].metadata.update(tags=["nbval-skip"]),
    "a request": lambda nb: nb.cells[1].update(source="import urllib.request"),
    "a long cell": lambda nb: nb.cells[1].update(source="value\n" * 26),
    "no box": lambda nb: nb.cells[0].update(source="# Title"),
    "no title": lambda nb: nb.cells[0].update(source=nb.cells[0].source.removeprefix("# ")),
    "a markdown image without alt": lambda nb: nb.cells[6].update(source="![](cat.png)"),
    "an html image without alt": lambda nb: nb.cells[6].update(source='<img src="cat.png" alt="">'),
}


def test_a_good_chapter_has_no_problems():
    assert rules.problems(good_chapter(), good_chapter()) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_notebook_is_found(fault: str):
    stored = copy.deepcopy(good_chapter())
    FAULTS[fault](stored)
    assert len(rules.problems(good_chapter(), stored)) == 1


@pytest.mark.parametrize("fault", SOURCE_FAULTS)
def test_a_fault_of_the_source_is_found(fault: str):
    spoilt = good_chapter()
    SOURCE_FAULTS[fault](spoilt)
    assert rules.problems(copy.deepcopy(spoilt), spoilt)


def test_a_notebook_without_code_is_found():
    empty = good_chapter()
    empty.cells = empty.cells[:1]
    assert rules.problems(empty, empty) == ["there is no code cell"]


# --- the maker ------------------------------------------------------------------------------------------------------

TINY = '''# %% [markdown]
# # Title

# %%
import os

from tqdm import tqdm

for _ in tqdm(range(3)):
    print("one", flush=True)
print(os.environ["OMP_NUM_THREADS"], os.environ["PYTHONHASHSEED"])

# %%
import matplotlib.pyplot as plt

from minihaares import plots

figure, axes = plt.subplots(figsize=(1, 1))
plots.show(figure, alt="An empty pair of axes, nothing more.")

# %% tags=["nbval-ignore-output"]
import ipywidgets

ipywidgets.interact(lambda x: x, x=(0, 1));
'''


def test_the_maker_stores_the_same_bytes_twice_and_leaves_no_traces(tmp_path: Path):
    source = tmp_path / "01_tiny.py"
    source.write_text(TINY, encoding="utf-8")
    code = f"import sys; sys.path.insert(0, {str(TOOLS)!r}); import notebooks, pathlib, os\n"
    code += f"os.environ.update(notebooks.ENVIRONMENT); print(notebooks.run(pathlib.Path({str(source)!r}))[1])"
    stored = source.with_suffix(".ipynb")
    results = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
        results.append(stored.read_bytes())
    assert results[0] == results[1]
    notebook = nbformat.read(stored, as_version=4)
    first, picture, widget = (cell for cell in notebook.cells if cell.cell_type == "code")
    assert [output.text for output in first.outputs] == ["one\none\none\n1 0\n"]  # one piece, no progress bar
    assert picture.outputs[0].metadata["image/png"]["alt"] == "An empty pair of axes, nothing more."
    assert widget.outputs == [] and "widgets" not in notebook.metadata
    found = rules.problems(jupytext.read(source), notebook)
    assert all("box" in line or "unchecked" in line or rules.IGNORE in line for line in found), found


def test_a_chapter_that_fails_keeps_its_notebook(tmp_path: Path):
    source = tmp_path / "01_bad.py"
    source.write_text("# %%\n1 / 0\n", encoding="utf-8")
    stored = source.with_suffix(".ipynb")
    stored.write_text("as it was", encoding="utf-8")
    _, error = notebooks.run(source)
    assert "ZeroDivisionError" in error and "\x1b" not in error
    assert stored.read_text(encoding="utf-8") == "as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["01_bad.ipynb", "01_bad.py"]


def test_only_tags_and_grading_go_from_source_to_notebook(tmp_path: Path):
    source = tmp_path / "01_x.py"
    source.write_text('# %% tags=["a"] editable=false\ndef f(): pass\n# %%\n1\n\n\n\n\n# %%\n2\n', encoding="utf-8")
    assert [dict(cell.metadata) for cell in notebooks.from_source(source).cells] == [{"tags": ["a"]}, {}, {}]


def test_cell_ids_survive_a_cell_put_in_front(tmp_path: Path):
    source = tmp_path / "01_x.py"
    source.write_text("# %%\n1\n\n# %%\n1\n\n# %%\n2\n", encoding="utf-8")
    before = [cell.id for cell in notebooks.from_source(source).cells]
    source.write_text("# %%\n0\n\n" + source.read_text(encoding="utf-8"), encoding="utf-8")
    after = [cell.id for cell in notebooks.from_source(source).cells]
    assert len(set(before)) == 3 and after[1:] == before


@pytest.mark.parametrize("change", [None, "a cell changed", "no notebook"])
def test_check_says_which_notebook_is_out_of_step(change: str | None, tmp_path: Path, capsys):
    source = tmp_path / "01_x.py"
    source.write_text("# %%\n1\n", encoding="utf-8")
    if change != "no notebook":
        nbformat.write(notebooks.from_source(source), source.with_suffix(".ipynb"))
    if change == "a cell changed":
        source.write_text("# %%\n2\n", encoding="utf-8")
    assert notebooks.check([source]) == (0 if change is None else 1)
    assert ("01_x.ipynb is out of step" in capsys.readouterr().out) == (change is not None)


# --- the comparison -------------------------------------------------------------------------------------------------

SAME = [
    ("loss 0.50001", "loss 0.50002"),
    ("1e-05 next", "1.0001e-05 next"),
    ("a  0.1000\nb -0.5", "a 0.10001\nb -0.50001"),
    ("tensor([1.0000, 2.])", "tensor([1.0001, 2.])"),
    ("[1. 2.]", "[1.0001 2.    ]"),
    ("1,234.5 tokens", "1,234.6 tokens"),
    ("-1e-10", "1e-10"),
    ("<td>3.1416</td>", "<td>3.1415</td>"),
    ("0.50s", "0.5001s"),
]
DIFFERENT = [
    ("loss 0.50", "loss 0.51"),
    ("loss 0.50", "Loss 0.50"),
    ("12 blocks", "13 blocks"),
    ("There are 1200.", "There are 1201."),
    ("100000", "100001"),
    ("version 2.13.0", "version 2.13.1"),
    ("version 2.13.0", "version 2.14.0"),
    ("1", "1.0"),
    ("0.5", "-0.5"),
    ("0.5", "nan"),
    ("0.5 0.5", "0.5"),
    ("ab", "a b"),
    ("block1.5000", "block1.5001"),
    ("1e-05", "2e-05"),
    ("x**2/2", "x**2/3"),
]


@pytest.mark.parametrize(("stored", "shown"), SAME)
def test_floats_within_tolerance_agree(stored: str, shown: str):
    assert numeric.floats_agree(stored, shown) and numeric.floats_agree(shown, stored)
    assert not numeric.NumericText(stored) != numeric.NumericText(shown)


@pytest.mark.parametrize(("stored", "shown"), DIFFERENT)
def test_all_else_must_be_the_same(stored: str, shown: str):
    assert not numeric.floats_agree(stored, shown) and not numeric.floats_agree(shown, stored)
    assert numeric.NumericText(stored) != numeric.NumericText(shown)


def stored_result(text, kind="text/plain"):
    return lambda count: [new_output("execute_result", {kind: text}, execution_count=count)]


def stored_streams(**texts):
    return lambda count: [new_output("stream", name=name, text=text) for name, text in texts.items()]


# What a cell does, what is stored for it, and whether the check lets it pass.
PLANTED = {
    "the number it shows": ("1 / 3", stored_result("0.3333333333333333"), True),
    "a float off by less than the tolerance": ("1 / 3", stored_result("0.33334"), True),
    "a wrong float": ("1 / 3", stored_result("0.3343333333333333"), False),
    "a wrong integer": ("10**6", stored_result("1000001"), False),
    "a wrong text": ("print('haares')", stored_streams(stdout="block\n"), False),
    "the right text": ("print('haares')", stored_streams(stdout="haares\n"), True),
    "a missing output": ("'haares'", lambda count: [], False),
    "another warning": ("import sys; print('b', file=sys.stderr)", stored_streams(stderr="a\n"), True),
    "a semicolon": ("1 + 1;", lambda count: [], True),
    "a wrong output nobody looks at": ("2", stored_result("3"), True),  # tagged nbval-ignore-output
    "an error": ("1 / 0", lambda count: [], False),
    "progress bars off": ("import os; os.environ['TQDM_DISABLE']", stored_result("'1'"), True),
    "no network": (
        "import urllib.request as r\ntry:\n    r.urlopen('http://example.org')\n"
        "except OSError as e:\n    print('refused' in str(e))",
        stored_streams(stdout="True\n"),
        True,
    ),
}


def test_nbval_refuses_what_is_planted(tmp_path: Path):
    """One notebook, run as the chapters are, with right and wrong outputs; the wrong ones fail and no others."""
    cells = []
    for count, (name, (code, outputs, _)) in enumerate(PLANTED.items(), start=1):
        cells.append(new_code_cell(code, execution_count=count, outputs=outputs(count)))
        if "nobody looks" in name:
            cells[-1].metadata["tags"] = [rules.IGNORE]
    path = tmp_path / "planted.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", str(ROOT / "pyproject.toml")]
    command += ["-p", "no:cacheprovider", "-q", f"--junitxml={report}", str(path)]
    environment = os.environ | {"PYTHONPATH": str(CHAPTERS)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    cases = ET.parse(report).getroot().iter("testcase")
    passed = [case.find("failure") is None and case.find("error") is None for case in cases]
    assert dict(zip(PLANTED, passed, strict=True)) == {name: good for name, (_, _, good) in PLANTED.items()}
