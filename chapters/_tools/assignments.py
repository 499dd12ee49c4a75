"""Assignments: notebooks for students, the same checks without nbgrader, and a class with it.

    python chapters/_tools/assignments.py release FOLDER          notebooks without solutions and hidden checks
    python chapters/_tools/assignments.py check FOLDER            run every check on all notebooks in the folder
    python chapters/_tools/assignments.py check FOLDER --visible  only the checks that a student sees
    python chapters/_tools/assignments.py class FOLDER            nbgrader: release, autograde, feedback, grades.csv
    python chapters/_tools/assignments.py table                   all tasks with points, minutes and difficulty

The source of an assignment is chapters/assignments/A*.py (py:percent). A task is three cells: a text that begins with

    ## 1 · Title
    *2 points · about 10 minutes · difficulty 1 of 3*

then the answer, `nbgrader={"grade_id": "norm", "solution": true}`, with ### BEGIN SOLUTION … ### END SOLUTION, and its
check, `nbgrader={"grade_id": "check_norm", "grade": true, "points": 2}`, with ### BEGIN HIDDEN TESTS … ### END HIDDEN
TESTS. A text that a teacher grades is one cell that is both. Cells given to students carry {"grade_id": "given_…",
"locked": true}. The other keys that nbgrader wants are filled in here.
"""

import argparse
import csv
import json
import os
import re
import shutil
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from notebooks import ENVIRONMENT, from_source
from student_run import run_cells

TOOLS = Path(__file__).resolve().parent
ASSIGNMENTS = TOOLS.parent / "assignments"
STUB = '# Your answer goes here.\nraise NotImplementedError("This task is not done yet.")'
ANSWER = "*Your answer goes here.*"
SECONDS = 60  # for one cell

SOLUTION = re.compile(r"^([ \t]*)### BEGIN SOLUTION\n(.*?)^[ \t]*### END SOLUTION$", re.MULTILINE | re.DOTALL)
HIDDEN = re.compile(r"^[ \t]*### BEGIN HIDDEN TESTS\n(.*?)^[ \t]*### END HIDDEN TESTS$\n?", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"\b(?:BEGIN|END) (?:SOLUTION|HIDDEN TESTS)\b")
HEADING = re.compile(
    r"## (\d+) · (.+)\n\*(\d+) points? · about (\d+) minutes · difficulty ([123]) of 3\*\n", re.MULTILINE
)


class SourceError(ValueError):
    """An assignment's source, or what lies in a folder, is not as it must be; the message says where."""


# ------------------------------------------------------------------------------------------- from source to release


@dataclass(frozen=True)
class Task:
    """One graded task: what its text says, and its cells. A written task has no check, but a teacher."""

    assignment: str
    name: str
    title: str
    points: int
    minutes: int
    difficulty: int
    answer: str  # the source of the cell with the solution
    check: str | None  # the source of the cell with the checks, hidden ones too


def sources() -> list[Path]:
    return sorted(ASSIGNMENTS.glob("A[0-9]_*.py"))


def read_source(path: Path) -> NotebookNode:
    """The notebook of an assignment with its solutions, and with all the keys that nbgrader wants in its cells."""
    notebook = from_source(path)
    # Our pyproject.toml pairs notebooks with scripts; a student's copy must say that it is not to be paired.
    notebook.metadata["jupytext"] = {"formats": "ipynb"}
    for cell in notebook.cells:
        # A formatter puts blank lines before a marker; what a student sees shall not end in them.
        cell.source = re.sub(r"\n+(?=\n### BEGIN HIDDEN TESTS$)", "", cell.source, flags=re.MULTILINE)
        if "nbgrader" in cell.metadata:
            said = dict(cell.metadata.nbgrader)
            full = {"grade": False, "locked": False, "solution": False, "task": False, "schema_version": 3} | said
            full["locked"] = full["locked"] or (full["grade"] and not full["solution"])
            full["cell_type"] = cell.cell_type
            cell.metadata["nbgrader"] = nbformat.from_dict(full)
    repeated = [name for name, count in Counter(map(grade_id, notebook.cells)).items() if name and count > 1]
    if repeated:
        raise SourceError(f"{path.name}: two cells have the grade_id {repeated[0]}.")
    return notebook


def grade_id(cell: NotebookNode) -> str | None:
    return cell.metadata.get("nbgrader", {}).get("grade_id")


def kind(cell: NotebookNode, key: str) -> bool:
    """Whether nbgrader's key `grade`, `solution` or `locked` holds for a cell."""
    return bool(cell.metadata.get("nbgrader", {}).get(key))


def tasks(path: Path) -> list[Task]:
    """The tasks of an assignment in order. SourceError where text, answer and check do not follow each other."""
    notebook, found, heading = read_source(path), [], None
    cells = iter(notebook.cells)
    for cell in cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            heading = HEADING.match(cell.source)
            if cell.source[3:4].isdigit() and not heading:
                raise SourceError(f"{path.name}: the line under {cell.source.splitlines()[0]!r} is not as it must be.")
        if not kind(cell, "solution"):
            continue
        name, check = grade_id(cell), cell if kind(cell, "grade") else next(cells, None)
        if heading is None or int(heading[1]) != len(found) + 1:
            raise SourceError(f"{path.name}: {name} has no heading of its own, or its number is not {len(found) + 1}.")
        if check is None or not (check is cell or grade_id(check) == f"check_{name}"):
            raise SourceError(f"{path.name}: the cell after {name} must be check_{name}.")
        if check.metadata.nbgrader.get("points") != int(heading[3]):
            raise SourceError(f"{path.name}: the text of {name} and its check do not say the same points.")
        title, numbers = heading[2], [int(heading[group]) for group in (3, 4, 5)]
        found.append(Task(path.stem, name, title, *numbers, cell.source, None if check is cell else check.source))
        heading = None
    return found


def without_solution(source: str, stub: str) -> str:
    """The source of an answer cell with each solution replaced by the stub, at the solution's indentation."""
    text, count = SOLUTION.subn(lambda match: re.sub("^", match[1], stub, flags=re.MULTILINE), source)
    if not count or MARKER.search(text):
        raise SourceError(f"a solution is not properly marked in: {source[:60]!r}")
    return text


def without_hidden(source: str) -> str:
    """The source of a check cell without its hidden tests."""
    text = HIDDEN.sub("", source).rstrip("\n")
    if MARKER.search(text):
        raise SourceError(f"hidden tests are not properly marked in: {source[:60]!r}")
    return text


def release(source: NotebookNode) -> NotebookNode:
    """What a student gets: no solutions, no hidden checks, no outputs."""
    student = nbformat.from_dict(json.loads(json.dumps(source)))
    for cell in student.cells:
        if kind(cell, "solution"):
            cell.source = without_solution(cell.source, STUB if cell.cell_type == "code" else ANSWER)
        elif kind(cell, "grade"):
            cell.source = without_hidden(cell.source)
        if kind(cell, "locked"):
            cell.metadata.update(editable=False, deletable=False)
    nbformat.validate(student)
    return student


def write_release(folder: Path) -> list[Path]:
    """Write every assignment's notebook for students into `folder`; a notebook that is there is left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in sources():
        target = folder / f"{path.stem}.ipynb"
        if target.exists():
            raise SourceError(f"{target} exists, perhaps with somebody's answers: choose an empty folder.")
        written.append((target, release(read_source(path))))
    for target, notebook in written:
        nbformat.write(notebook, target)
    return [target for target, _ in written]


# --------------------------------------------------------------------------------------- checks without nbgrader


@dataclass(frozen=True)
class Outcome:
    """What became of one task in one notebook: passed, failed (with the reason), or to be read by a teacher."""

    notebook: str
    task: str
    points: int
    status: str  # PASSED, FAILED or TO READ
    message: str = ""

    @property
    def earned(self) -> int | None:
        return None if self.status == "TO READ" else self.points if self.status == "PASSED" else 0


def merged(source: NotebookNode, student: NotebookNode, visible: bool) -> list[tuple[str, str]]:
    """The code cells to run, as (name, source): the student's, but locked cells and checks as in the source.

    SourceError if a cell that the source has is missing or there twice."""
    ours = {grade_id(cell): cell for cell in source.cells if grade_id(cell)}
    counts = Counter(name for cell in student.cells if (name := grade_id(cell)) in ours)
    lost, twice = [name for name in ours if not counts[name]], [name for name in counts if counts[name] > 1]
    if lost:
        raise SourceError(f"the cell {lost[0]} is missing: copy it back from a fresh notebook.")
    if twice:
        raise SourceError(f"the cell {twice[0]} is there twice: delete the copy.")
    cells = []
    for number, cell in enumerate(student.cells, start=1):
        if cell.cell_type != "code":
            continue
        own = ours.get(grade_id(cell))
        text = own.source if own is not None and kind(own, "locked") else cell.source
        cells.append((grade_id(cell) or f"cell_{number}", without_hidden(text) if visible else text))
    return cells


def check_notebook(path: Path, name: str, visible: bool = False, seconds: float = SECONDS) -> list[Outcome]:
    """All tasks of a student's notebook. `name` is how reports call it."""
    original = ASSIGNMENTS / f"{path.stem}.py"
    todo = [Outcome(name, task.name, task.points, "TO READ") for task in tasks(original)]
    graded = {task.name for task in tasks(original) if task.check is not None}
    try:
        student = nbformat.read(path, as_version=4)
        cells = merged(read_source(original), student, visible)
    except (SourceError, nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
        return [replace(o, status="FAILED", message=str(error).splitlines()[0]) for o in todo]
    said = dict(
        zip([cell for cell, _ in cells], run_cells(cells, seconds, ENVIRONMENT | {"MPLBACKEND": "Agg"}), strict=True)
    )
    outcomes = []
    for outcome in todo:
        if outcome.task in graded:
            # A name error in the check says little where the answer's own cell did not run.
            message = said[f"check_{outcome.task}"] and (said[outcome.task] or said[f"check_{outcome.task}"])
            outcome = replace(outcome, status="FAILED" if message else "PASSED", message=message or "")
        outcomes.append(outcome)
    return outcomes


def check_folder(folder: Path, visible: bool, seconds: float, table: Path | None = None) -> int:
    """Check every A*.ipynb in a folder and below, print as pytest does; 1 if a task failed."""
    known = {path.stem for path in sources()}
    found = [path for path in sorted(folder.rglob("*.ipynb")) if ".ipynb_checkpoints" not in path.parts]
    mine = [path for path in found if path.stem in known]
    for path in found:
        if path.stem not in known:
            print(f"{path.relative_to(folder)}: not one of {', '.join(sorted(known))}; left out")
    if not mine:
        raise SourceError(f"There is no notebook named like an assignment ({', '.join(sorted(known))}) in {folder}.")
    everything = []
    for path in mine:
        parts = path.relative_to(folder).with_suffix("").parts
        name = "/".join(parts[:-1] if parts[-2:-1] == parts[-1:] else parts)  # nbgrader has the name twice
        outcomes = check_notebook(path, name, visible, seconds)
        for o in outcomes:
            score = f"{o.earned if o.earned is not None else '?'}/{o.points}"
            print(f"{name}::{o.task} {o.status} {score}" + (f"\n    {o.message}" if o.message else ""), flush=True)
        earned, reachable = sum(o.earned or 0 for o in outcomes), sum(o.points for o in outcomes)
        unread = sum(o.points for o in outcomes if o.status == "TO READ")
        print(f"== {name}: {earned} of {reachable} points" + (f", {unread} more to be read" if unread else "") + " ==")
        everything += outcomes
    if table is not None:
        with table.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.writer(handle)
            writer.writerow(("notebook", "task", "status", "earned", "points", "message"))
            writer.writerows((o.notebook, o.task, o.status, o.earned, o.points, o.message) for o in everything)
    return 1 if any(o.status == "FAILED" for o in everything) else 0


# --------------------------------------------------------------------------------------------- a class with nbgrader


def up_to_date(made: Path, *parts: Path) -> bool:
    """Whether `made` exists and none of the parts is younger."""
    return made.exists() and all(made.stat().st_mtime >= part.stat().st_mtime for part in parts)


def run_class(folder: Path) -> int:
    """Bring a class folder up to date: source and release, then grades, feedback and grades.csv for what is submitted.

    Submissions lie in submitted/STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb, as nbgrader has it. What was graded already is
    graded again only if the submission or the assignment has changed since. Returns 1 if nbgrader could not do a step.
    """
    try:
        from nbgrader.apps import NbGraderAPI
        from nbgrader.plugins import CsvExportPlugin
        from traitlets.config.loader import PyFileConfigLoader
    except ImportError:
        raise SourceError(
            "nbgrader is not installed: pip install 'minihaares[class]', or use `check`, which needs none."
        ) from None
    # nbgrader starts programs of its environment by their bare names, also where that environment is not activated.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(TOOLS / "nbgrader_config.py", folder / "nbgrader_config.py")
    config = PyFileConfigLoader("nbgrader_config.py", path=str(folder)).load_config()
    config.CourseDirectory.root = str(folder)
    config.CsvExportPlugin.to = str(folder / "grades.csv")
    config.NbGraderAPI.log_level = "ERROR"
    api, failed = NbGraderAPI(config=config), False

    def report(what: str, result: dict[str, Any]) -> None:
        nonlocal failed
        failed |= not result["success"]
        print(f"{what}: {'done' if result['success'] else 'FAILED'}", flush=True)
        if not result["success"]:
            print(f"{result.get('log', '')}\n{result.get('error', '')}".strip())

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="nbgrader")  # how it uses its data base is not our reader's business
        for path in sources():
            name, text = path.stem, nbformat.writes(read_source(path)) + "\n"
            source, released = (folder / part / name / f"{name}.ipynb" for part in ("source", "release"))
            source.parent.mkdir(parents=True, exist_ok=True)
            if not source.exists() or source.read_text(encoding="utf-8") != text:
                source.write_text(text, encoding="utf-8")
            if not up_to_date(released, source):
                report(f"release {name}", api.generate_assignment(name))
            for student in sorted(api.get_submitted_students(name)):
                submitted, graded = (folder / part / student / name for part in ("submitted", "autograded"))
                if not up_to_date(graded / f"{name}.ipynb", source, *submitted.glob("*.ipynb")):
                    report(f"autograde {name} of {student}", api.autograde(name, student))
                report(f"feedback for {student} on {name}", api.generate_feedback(name, student))
        with api.gradebook as gradebook:
            CsvExportPlugin(config=config).export(gradebook)
    print(f"Grades: {folder / 'grades.csv'}; written answers wait in `jupyter lab` there, under Formgrader.")
    return 1 if failed else 0


# ------------------------------------------------------------------------------------------------- the command line


def table() -> str:
    """All tasks as a markdown table, with a line of sums for each assignment."""
    lines = ["| assignment | task | points | minutes | difficulty |", "|---|---|---|---|---|"]
    for path in sources():
        found = tasks(path)
        sums = [sum(getattr(task, name) for task in found) for name in ("points", "minutes")]
        lines.append(f"| **{path.stem}** | {len(found)} tasks | {sums[0]} | {sums[1]} | |")
        lines += [f"| | {t.title} | {t.points} | {t.minutes} | {'●' * t.difficulty} |" for t in found]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("release", "check", "class"):
        commands.add_parser(name).add_argument("folder", type=Path)
    commands.add_parser("table")
    check = commands.choices["check"]
    check.add_argument("--visible", action="store_true", help="leave the hidden checks out")
    check.add_argument("--seconds", type=float, default=SECONDS, help="for one cell")
    check.add_argument("--csv", type=Path, help="write one row a task to this file")
    arguments = parser.parse_args()
    try:
        match arguments.command:
            case "release":
                print("\n".join(map(str, write_release(arguments.folder))))
                return 0
            case "check":
                return check_folder(arguments.folder, arguments.visible, arguments.seconds, arguments.csv)
            case "class":
                return run_class(arguments.folder.resolve())
            case _:
                print(table())
                return 0
    except SourceError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    sys.exit(main())
