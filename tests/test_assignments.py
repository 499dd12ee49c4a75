"""The assignments keep their contract: every solution passes, every stub fails, every listed wrong answer is caught.

Cells run here by plain `exec`, an assignment after the other; `contract` runs each once, in order, and at each task
tries the stub, the wrong answers and the other right ones in copies of the namespace. The run in a process of its own,
with a time limit, has its tests below; so has nbgrader, on one small assignment.
"""

import ast
import csv
import functools
import re
import subprocess
import sys
import textwrap
from collections import Counter
from copy import deepcopy
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import jupytext
import nbformat
import pytest
from torch import Tensor
from wrong_answers import RIGHT, WRONG

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "chapters" / "_tools"
sys.path.insert(0, str(TOOLS))
import assignments  # noqa: E402
import student_run  # noqa: E402

SOURCES = assignments.sources()
TASKS = {task.name: task for path in SOURCES for task in assignments.tasks(path)}
by_stem = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)


# --- the contract ---------------------------------------------------------------------------------------------------


class Trial(NamedTuple):
    """What the checks of a task said to one answer; None where they were content."""

    task: str
    kind: str  # solution, stub, wrong, right or replay
    why: str
    visible: str | None
    whole: str | None


def plain(value: Any) -> bool:
    """Numbers and texts, and lists and dicts of them."""
    if isinstance(value, (list, dict)):
        return all(map(plain, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (int, float, str))


def copied(namespace: dict[str, Any]) -> dict[str, Any]:
    """A namespace in which an answer can do what it likes: plain containers are copied, the rest is shared."""
    return {name: deepcopy(value) if plain(value) else value for name, value in namespace.items()}


def without_graph(value: Any) -> Any:
    """A copy of what a function gave, tensors detached."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(without_graph, value))
    return value.detach().clone() if isinstance(value, Tensor) else deepcopy(value)


def try_answer(task: assignments.Task, kind: str, why: str, answer: str, namespace: dict[str, Any]) -> Trial:
    """Both checks, each after the answer in a fresh copy of the namespace."""
    said = []
    for check in (assignments.without_hidden(task.check), task.check):
        copy = copied(namespace)
        ran = student_run.execute(task.name, answer, copy)
        said.append((found := student_run.execute(f"check_{task.name}", check, copy)) and (ran or found))
    return Trial(task.name, kind, why, *said)


def edited(answer: str, edit: str | dict[str, str]) -> str:
    """The solution's cell with another answer in it."""
    if isinstance(edit, str):
        region = assignments.SOLUTION.search(answer)
        return answer[: region.start()] + textwrap.indent(edit, region[1]) + answer[region.end() :]
    for old, new in edit.items():
        assert answer.count(old) == 1, f"{old!r} occurs {answer.count(old)} times in the solution"
        answer = answer.replace(old, new)
    return answer


def replay(task: assignments.Task, namespace: dict[str, Any]) -> Trial | None:
    """An answer that knows the examples of the visible check by heart, and after them repeats the last one.

    None where the answer is no function, so that there is nothing to know by heart."""
    names = [node.name for node in ast.parse(task.answer).body if isinstance(node, ast.FunctionDef)]
    if not names:
        return None
    recorded: dict[str, list[Any]] = {name: [] for name in names}

    def recording(name: str, function: FunctionType) -> FunctionType:
        def answer(*arguments, **options):
            result = function(*arguments, **options)
            recorded[name].append(without_graph(result))
            return result

        return answer

    def parrot(name: str) -> FunctionType:
        rest = [*recorded[name]]

        def answer(*arguments, **options):
            return without_graph(rest.pop(0) if len(rest) > 1 else rest[0])

        return answer

    copy = copied(namespace)
    copy |= {name: recording(name, copy[name]) for name in names}
    said = [student_run.execute(f"check_{task.name}", assignments.without_hidden(task.check), copy)]
    assert said == [None] and all(recorded.values()), f"the visible check of {task.name} does not call {names}"
    for check in (assignments.without_hidden(task.check), task.check):
        said.append(student_run.execute("check", check, copied(namespace) | {name: parrot(name) for name in names}))
    return Trial(task.name, "replay", "knows the examples by heart", *said[1:])


@functools.cache
def contract(path: Path) -> list[Trial]:
    """All trials of an assignment."""
    namespace, trials = student_run.fresh_namespace(), []
    todo = {task.name: task for task in assignments.tasks(path) if task.check is not None}
    for cell in assignments.read_source(path).cells:
        name = assignments.grade_id(cell)
        if cell.cell_type != "code" or (name or "").removeprefix("check_") in todo and name not in todo:
            continue
        if name not in todo:
            assert student_run.execute(name or "given", cell.source, namespace) is None
            continue
        task, before = todo[name], copied(namespace)
        assert student_run.execute(name, task.answer, namespace) is None
        for kind, why, answer in (
            ("stub", "nothing done", assignments.without_solution(task.answer, assignments.STUB)),
            *(("right", edit, edited(task.answer, edit)) for edit in RIGHT.get(path.stem, {}).get(name, [])),
            *(("wrong", wrong.why, edited(task.answer, wrong.edit)) for wrong in WRONG[path.stem][name]),
        ):
            trials.append(try_answer(task, kind, why, answer, before))
        trials += filter(None, [replay(task, namespace)])
        whole = student_run.execute(f"check_{name}", task.check, namespace)
        trials.append(Trial(name, "solution", "", whole, whole))
    return trials


def trials(path: Path, kind: str) -> list[Trial]:
    return [trial for trial in contract(path) if trial.kind == kind]


@by_stem
def test_every_solution_passes(path: Path):
    graded = [task.name for task in assignments.tasks(path) if task.check is not None]
    assert [trial.task for trial in trials(path, "solution")] == graded
    assert [trial for trial in trials(path, "solution") if trial.whole] == []


@by_stem
def test_other_right_answers_pass(path: Path):
    assert [trial for trial in trials(path, "right") if trial.visible or trial.whole] == []


@by_stem
def test_every_stub_fails_though_all_before_it_is_solved(path: Path):
    found = trials(path, "stub")
    assert len(found) == len(trials(path, "solution"))
    assert {(trial.visible, trial.whole) for trial in found} == {("not done yet", "not done yet")}


@by_stem
def test_every_wrong_answer_is_caught_by_the_check_that_is_said_to(path: Path):
    expected = {(name, wrong.why): wrong.caught for name, wrongs in WRONG[path.stem].items() for wrong in wrongs}
    caught = {
        (trial.task, trial.why): "visible" if trial.visible else "hidden" if trial.whole else "nobody"
        for trial in trials(path, "wrong")
    }
    assert caught == expected
    assert [trial for trial in trials(path, "wrong") if trial.visible and not trial.whole] == []


@by_stem
def test_knowing_the_examples_by_heart_is_not_enough(path: Path):
    found = trials(path, "replay")
    assert [trial for trial in found if trial.visible] == [], "the parrot must pass what it has heard"
    assert [trial.task for trial in found if not trial.whole] == []


@by_stem
def test_messages_help(path: Path):
    """What a wrong answer is told is a sentence, not the name of an exception."""
    for trial in trials(path, "wrong"):
        assert len((trial.visible or trial.whole).split()) >= 6, trial
        assert not (trial.visible or trial.whole).startswith("NameError"), trial


# --- the tasks ------------------------------------------------------------------------------------------------------


def test_there_are_enough_tasks_and_each_says_what_it_asks_for():
    assert len(TASKS) == sum(len(assignments.tasks(path)) for path in SOURCES), "two tasks have one name"
    assert [path.stem[:2] for path in SOURCES] == ["A1", "A2", "A3", "A4", "A5", "A6"] and len(TASKS) >= 30
    for task in TASKS.values():
        assert 1 <= task.points <= 6 and 5 <= task.minutes <= 60, task
    written = [task.name for task in TASKS.values() if task.check is None]
    assert "report" in written


def test_every_task_has_a_visible_and_a_hidden_check_and_wrong_answers():
    for path in SOURCES:
        graded = {task.name for task in assignments.tasks(path) if task.check is not None}
        assert set(WRONG[path.stem]) == graded
        assert set(RIGHT.get(path.stem, {})) <= graded
    for task in TASKS.values():
        if task.check is None:
            continue
        seen = assignments.without_hidden(task.check)
        hidden = "".join(assignments.HIDDEN.findall(task.check))
        assert re.search(r"\bchecks\.|\bassert\b|check_", seen) and re.search(
            r"\bchecks\.|\bassert\b|check_", hidden
        ), task
    assert all(1 <= len(wrongs) <= 6 for tasks in WRONG.values() for wrongs in tasks.values())
    assert {wrong.caught for tasks in WRONG.values() for wrongs in tasks.values() for wrong in wrongs} == {
        "visible",
        "hidden",
    }


def test_the_readme_of_the_assignments_has_the_sums_right():
    text = (assignments.ASSIGNMENTS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(A\d_\w+)\]\(\S+\) \|[^|]*\| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    expected = []
    for path in SOURCES:
        found = assignments.tasks(path)
        sums = len(found), sum(task.points for task in found), sum(task.minutes for task in found)
        expected.append((path.stem, *map(str, sums)))
    assert rows == expected


# --- from source to release -----------------------------------------------------------------------------------------


def open_and_secret(path: Path) -> tuple[set[str], list[str]]:
    """Lines of a source outside of all marked regions, and those inside of one; found without the maker's help."""
    outside, inside, secret = set(), [], False
    for cell in jupytext.read(path).cells:
        for line in cell.source.splitlines():
            if line.strip().startswith("### BEGIN "):
                secret = True
            elif line.strip().startswith("### END "):
                secret = False
            elif secret:
                inside.append(line.strip())
            else:
                outside.add(line.strip())
    return outside, inside


@by_stem
def test_nothing_of_a_solution_or_a_hidden_check_is_in_the_release(path: Path):
    source = assignments.read_source(path)
    released = assignments.release(source)
    outside, secret = open_and_secret(path)
    lines = [line.strip() for cell in released.cells for line in cell.source.splitlines()]
    assert len(secret) > 50
    assert [line for line in lines if line in secret and line not in outside] == []
    assert [line for line in lines if "SOLUTION" in line or "HIDDEN" in line] == []
    stubs = {line for text in (assignments.STUB, assignments.ANSWER) for line in text.splitlines()}
    assert set(lines) == outside | stubs & set(lines)
    assert [cell.cell_type for cell in released.cells] == [cell.cell_type for cell in source.cells]
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in released.cells)


def saved_in_jupyterlab(text: str, folder: Path) -> list[str]:
    """What lies in a folder like ours after JupyterLab has opened and saved a notebook there."""
    folder.mkdir()
    (folder / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (folder / "A1.ipynb").write_text(text, encoding="utf-8")
    manager = jupytext.TextFileContentsManager(root_dir=str(folder))
    manager.save(manager.get("A1.ipynb"), "A1.ipynb")
    return sorted(file.name for file in folder.glob("A1*"))


@by_stem
def test_a_release_is_the_same_each_time_and_stays_unpaired(path: Path, tmp_path: Path):
    first, second = (nbformat.writes(assignments.release(assignments.read_source(path))) for _ in range(2))
    assert first == second
    assert saved_in_jupyterlab(first, tmp_path / "ours") == ["A1.ipynb"]
    ids = [assignments.grade_id(cell) for cell in assignments.read_source(path).cells]
    kept = nbformat.read(tmp_path / "ours" / "A1.ipynb", as_version=4)
    assert [assignments.grade_id(cell) for cell in kept.cells] == ids
    unsaid = nbformat.reads(first, as_version=4)
    del unsaid.metadata["jupytext"]
    assert saved_in_jupyterlab(nbformat.writes(unsaid), tmp_path / "unsaid") == ["A1.ipynb", "A1.py"]


@by_stem
def test_the_released_notebook_runs_and_scores_nothing(path: Path):
    """As a whole, without the solutions of earlier tasks."""
    namespace, errors = student_run.fresh_namespace(), {}
    for cell in assignments.release(assignments.read_source(path)).cells:
        if cell.cell_type == "code":
            name = assignments.grade_id(cell)
            errors[name] = student_run.execute(name or "given", cell.source, namespace)
    assert errors["given_tools"] is None
    assert [task.name for task in assignments.tasks(path) if task.check and not errors[f"check_{task.name}"]] == []


def test_release_writes_every_notebook_once(tmp_path: Path):
    written = assignments.write_release(tmp_path / "new")
    assert [file.stem for file in written] == [path.stem for path in SOURCES]
    with pytest.raises(assignments.SourceError, match="choose an empty folder"):
        assignments.write_release(tmp_path / "new")


def test_assignments_are_no_chapters():
    assert all(path.parent == assignments.ASSIGNMENTS for path in SOURCES)
    import notebooks

    assert not set(notebooks.chapter_sources()) & set(SOURCES)
    listed = subprocess.run(
        ["git", "ls-files", "chapters/assignments/*.ipynb"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert listed.stdout == "", "release notebooks are made, not committed"


SMALL = """# %% nbgrader={"grade_id": "given_tools", "locked": true}
def check(answer, expected, hint):
    assert answer == expected, f"The answer is {answer}; expected was {expected}. {hint}"

# %% [markdown]
# ## 1 · Double
# *2 points · about 5 minutes · difficulty 1 of 3*
#
# Twice the number.

# %% nbgrader={"grade_id": "double", "solution": true}
def double(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION

# %% nbgrader={"grade_id": "check_double", "grade": true, "points": 2}
check(double(2), 4, "Twice two is four.")


### BEGIN HIDDEN TESTS
check(double(3), 6, "Twice three is six.")
### END HIDDEN TESTS

# %% [markdown]
# ## 2 · Words
# *3 points · about 5 minutes · difficulty 1 of 3*
#
# Why?

# %% [markdown] nbgrader={"grade_id": "words", "grade": true, "points": 3, "solution": true}
# ### BEGIN SOLUTION
# Because.
# ### END SOLUTION
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sources with one small assignment, in place of the real ones."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "A1_small.py").write_text(SMALL, encoding="utf-8")
    monkeypatch.setattr(assignments, "ASSIGNMENTS", folder)
    return folder / "A1_small.py"


SOURCE_FAULTS = {
    "no hidden end": ("### END HIDDEN TESTS\n", "", "hidden tests are not properly marked"),
    "no solution end": ("    ### END SOLUTION\n", "", "a solution is not properly marked"),
    "two cells of one name": ('"check_double"', '"double"', "two cells have the grade_id double"),
    "another check": ('"check_double"', '"check_triple"', "the cell after double must be check_double"),
    "points that differ": ("*2 points", "*3 points", "do not say the same points"),
    "a wrong number": ("## 2 · Words", "## 3 · Words", "its number is not 2"),
    "no difficulty": (" · difficulty 1 of 3*\n#\n# Twice", "*\n#\n# Twice", "is not as it must be"),
    "no heading": ("# ## 1 · Double", "# Double", "has no heading of its own"),
}


@pytest.mark.parametrize("fault", SOURCE_FAULTS)
def test_a_fault_of_the_source_is_found(fault: str, small: Path):
    old, new, message = SOURCE_FAULTS[fault]
    assert SMALL.count(old) == 1
    small.write_text(SMALL.replace(old, new), encoding="utf-8")
    with pytest.raises(assignments.SourceError, match=message):
        assignments.tasks(small)
        assignments.release(assignments.read_source(small))


def test_the_table_lists_every_task(small: Path):
    assert assignments.table().splitlines()[2:] == [
        "| **A1_small** | 2 tasks | 5 | 10 | |",
        "| | Double | 2 | 5 | ● |",
        "| | Words | 3 | 5 | ● |",
    ]


# --- checks without nbgrader ----------------------------------------------------------------------------------------


def hand_in(folder: Path, source: Path, answer: str | None, change=None) -> Path:
    """A student's notebook with this answer to the first task."""
    notebook = assignments.release(assignments.read_source(source))
    for cell in notebook.cells:
        if answer is not None and assignments.grade_id(cell) == "double":
            cell.source = answer
    if change:
        change(notebook)
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, folder / f"{source.stem}.ipynb")
    return folder / f"{source.stem}.ipynb"


GOOD = "def double(x):\n    return x + x"
FOUR = "def double(x):\n    return 4"
LOOP = "def double(x):\n    while True:\n        pass"


def test_a_folder_is_checked(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    for student, answer in (("ann", GOOD), ("bob", FOUR), ("cas", None)):
        hand_in(tmp_path / "in" / student, small, answer)
    (tmp_path / "in" / "notes.ipynb").write_text("{}", encoding="utf-8")
    grades = tmp_path / "grades.csv"
    assert assignments.check_folder(tmp_path / "in", visible=False, seconds=60, table=grades) == 1
    shown = capsys.readouterr().out
    assert (
        "ann/A1_small::double PASSED 2/2" in shown and "== ann/A1_small: 2 of 5 points, 3 more to be read ==" in shown
    )
    assert "bob/A1_small::double FAILED 0/2\n    The answer is 4; expected was 6. Twice three is six." in shown
    assert "cas/A1_small::double FAILED 0/2\n    not done yet" in shown
    assert "notes.ipynb: not one of A1_small; left out" in shown
    with grades.open(encoding="utf-8") as handle:
        rows = [(row["notebook"], row["task"], row["status"], row["earned"]) for row in csv.DictReader(handle)]
    assert rows[:2] == [("ann/A1_small", "double", "PASSED", "2"), ("ann/A1_small", "words", "TO READ", "")]
    assert Counter(status for _, _, status, _ in rows) == {"PASSED": 1, "FAILED": 2, "TO READ": 3}


def test_a_student_sees_the_visible_checks_alone(small: Path, tmp_path: Path):
    path = hand_in(tmp_path / "in", small, FOUR)
    assert [o.status for o in assignments.check_notebook(path, "x", visible=True)] == ["PASSED", "TO READ"]
    assert [o.status for o in assignments.check_notebook(path, "x")] == ["FAILED", "TO READ"]


def delete_check(notebook):
    notebook.cells = [cell for cell in notebook.cells if assignments.grade_id(cell) != "check_double"]


def copy_answer(notebook):
    answer = next(cell for cell in notebook.cells if assignments.grade_id(cell) == "double")
    notebook.cells.append(nbformat.v4.new_code_cell(answer.source, metadata=answer.metadata))


def loosen_check(notebook):
    next(cell for cell in notebook.cells if assignments.grade_id(cell) == "check_double").source = "True"


def own_cells(notebook):
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%matplotlib inline\n!ls\nprint('hello')\ndisplay(1)"))


MEDDLED = {
    "a check is deleted": (GOOD, delete_check, "FAILED", "the cell check_double is missing"),
    "an answer is there twice": (GOOD, copy_answer, "FAILED", "the cell double is there twice"),
    "a check is made easier": (FOUR, loosen_check, "FAILED", "Twice three is six"),
    "cells of one's own": (GOOD, own_cells, "PASSED", ""),
    "a syntax error": ("def double(x)\n    return 2", None, "FAILED", "SyntaxError in line 1: expected ':'"),
    "an error inside": (
        "def double(x):\n    return x.two",
        None,
        "FAILED",
        "AttributeError.*in double, line 2: return",
    ),
    "nothing returned": ("def double(x):\n    2 * x", None, "FAILED", "The answer is None"),
    "the end of the process": ("import os\nos._exit(1)", None, "FAILED", "ended the whole process"),
}


@pytest.mark.parametrize("meddling", MEDDLED)
def test_what_students_do(meddling: str, small: Path, tmp_path: Path):
    answer, change, status, message = MEDDLED[meddling]
    path = hand_in(tmp_path / "in", small, answer, change)
    outcome = assignments.check_notebook(path, "x")[0]
    assert outcome.status == status and re.search(message, outcome.message), outcome


@pytest.mark.parametrize("loop", ["plain", "stubborn"])
def test_an_endless_loop_is_stopped_and_said_to_be(loop: str, monkeypatch: pytest.MonkeyPatch):
    """A plain one is interrupted and the next cell runs; one that swallows interrupts costs the rest."""
    monkeypatch.setattr(student_run, "GRACE", 3)
    inner = "pass" if loop == "plain" else "try: time.sleep(0.01)\n    except BaseException: pass"
    cells = [("one", f"import time\nx = 1\nwhile True:\n    {inner}"), ("two", "assert x == 2, 'two is run'")]
    first, second = student_run.run_cells(cells, seconds=2, environment={})
    assert first == student_run.TIMEOUT and "time limit" in first
    assert second == ("two is run" if loop == "plain" else "not run: an earlier cell could not be stopped")


def test_the_command_line(tmp_path: Path):
    """On a real assignment: released, handed in untouched, checked."""
    tool = [sys.executable, TOOLS / "assignments.py"]
    made = subprocess.run([*tool, "release", tmp_path], capture_output=True, text=True, check=True)
    assert len(made.stdout.splitlines()) == len(SOURCES)
    again = subprocess.run([*tool, "release", tmp_path], capture_output=True, text=True, check=False)
    assert again.returncode == 2 and "choose an empty folder" in again.stderr and "Traceback" not in again.stderr
    for path in sorted(tmp_path.glob("*.ipynb"))[1:]:
        path.unlink()
    checked = subprocess.run([*tool, "check", tmp_path], capture_output=True, text=True, check=False)
    tasks = assignments.tasks(SOURCES[0])
    assert checked.returncode == 1 and "Traceback" not in checked.stderr
    assert [line.split()[1:] for line in checked.stdout.splitlines() if "::" in line] == [
        ["FAILED", f"0/{task.points}"] for task in tasks
    ]


# --- a class with nbgrader ------------------------------------------------------------------------------------------


def test_a_class_with_nbgrader(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """Release, one right and one wrong submission, one that does not end: grades, feedback, CSV."""
    pytest.importorskip("nbgrader", reason="the extra 'class' is not installed")
    quick = (TOOLS / "nbgrader_config.py").read_text(encoding="utf-8").replace("SECONDS = 60", "SECONDS = 4")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nbgrader_config.py").write_text(quick, encoding="utf-8")
    monkeypatch.setattr(assignments, "TOOLS", tools)
    course = tmp_path / "course"
    assert assignments.run_class(course) == 0
    released = nbformat.read(course / "release" / "A1_small" / "A1_small.ipynb", as_version=4)
    ours = assignments.release(assignments.read_source(small))
    assert [cell.source for cell in released.cells] == [cell.source for cell in ours.cells]
    assert [assignments.grade_id(cell) for cell in released.cells] == [assignments.grade_id(c) for c in ours.cells]
    assert released.metadata["jupytext"] == ours.metadata["jupytext"]
    assert sorted(file.name for file in (course / "release" / "A1_small").iterdir()) == ["A1_small.ipynb"]
    for student, answer in (("ann", GOOD), ("bob", FOUR), ("eve", LOOP)):
        hand_in(course / "submitted" / student / "A1_small", small, answer)
    assert assignments.run_class(course) == 0
    with (course / "grades.csv").open(encoding="utf-8") as handle:
        grades = {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in csv.DictReader(handle)}
    assert grades == {"ann": (2, 5), "bob": (0, 5), "eve": (0, 5)}
    feedback = {name: (course / "feedback" / name / "A1_small" / "A1_small.html").read_text() for name in grades}
    assert "Twice three is six" in feedback["bob"] and "stopped after 4 seconds" in feedback["eve"]
    hand_in(course / "submitted" / "bob" / "A1_small", small, GOOD)
    capsys.readouterr()
    assert assignments.run_class(course) == 0
    done = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("release", "autograde"))]
    assert done == ["autograde A1_small of bob: done"], "only what has changed is graded again"
