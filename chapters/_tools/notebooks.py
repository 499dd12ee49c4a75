"""Make the chapters' notebooks: run each chapters/NN_title.py and store what it shows in NN_title.ipynb.

    python chapters/_tools/notebooks.py                            run every chapter, two at a time
    python chapters/_tools/notebooks.py chapters/01_transformer.py run this one
    python chapters/_tools/notebooks.py --record-times             one by one; their run times go to run_times.json
    python chapters/_tools/notebooks.py --check                    run nothing; exit 1 if a notebook is out of step

It goes one way: the .py always wins, whatever the file times say. Nothing random or machine-made is stored (cell
ids come from the cells' text, no timing, no widget state), so a second run leaves an empty diff.
"""

import argparse
import hashlib
import json
import math
import os
import re
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from rules import FILTERS, KEPT, WIDGET, in_step, problems

CHAPTERS = Path(__file__).resolve().parent.parent
RUN_TIMES = Path(__file__).with_name("run_times.json")
CELL_SECONDS = 300

# What the kernels run under, here and when chapters/conftest.py checks the stored outputs: no progress bars, sums in
# one order, sets in one order, figures as PNG. A chapter must not need the network, so any request goes to a closed
# port and fails at once.
CLOSED_PORT = "http://127.0.0.1:9"
ENVIRONMENT = {
    "TQDM_DISABLE": "1",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "HF_HUB_OFFLINE": "1",
} | {name: CLOSED_PORT for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}


def chapter_sources() -> list[Path]:
    return sorted(CHAPTERS.glob("[0-9][0-9]_*.py"))


def from_source(source: Path) -> NotebookNode:
    """The notebook of a .py, not yet run, with cell ids that change only when a cell's text does."""
    notebook = jupytext.read(source)
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        cell["id"] = f"{digest}-{seen[digest]}"
        # jupytext also notes here how many blank lines follow a cell
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in KEPT if key in cell.metadata})
        seen[digest] += 1
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": kernel, "language_info": {"name": "python"}, "jupytext": dict(FILTERS)}
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def without_traces(notebook: NotebookNode) -> NotebookNode:
    """Take out what differs from run to run or from machine to machine and says nothing to a reader."""
    notebook.metadata["language_info"] = {"name": "python"}  # the kernel wrote this Python's version here
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
    return notebook


def run(source: Path) -> tuple[float, str | None]:
    """Run one chapter and store its notebook. Returns the seconds it took and, if a cell failed, what it said;
    then the notebook stays as it was."""
    notebook = from_source(source)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # how a stream is cut into pieces depends on timing
        extra_arguments=["--log-level=ERROR"],  # the kernel's warning that it talks over TCP is not about the chapter
        resources={"metadata": {"path": str(source.parent)}},
    )
    started = time.perf_counter()
    try:
        client.execute()
    except CellExecutionError as error:
        return time.perf_counter() - started, re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    seconds = time.perf_counter() - started
    without_traces(notebook)
    nbformat.validate(notebook)
    stored = source.with_suffix(".ipynb")
    unfinished = stored.with_suffix(".ipynb.part")
    nbformat.write(notebook, unfinished)
    os.replace(unfinished, stored)
    return seconds, None


def record(times: dict[str, float]) -> None:
    """Write whole seconds, rounded up, of the chapters that exist; the others keep their entry."""
    known = json.loads(RUN_TIMES.read_text(encoding="utf-8")) if RUN_TIMES.exists() else {}
    known |= {name: math.ceil(seconds) for name, seconds in times.items()}
    kept = {source.stem: known[source.stem] for source in chapter_sources() if source.stem in known}
    RUN_TIMES.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def check(sources: list[Path]) -> int:
    """Compare cells only; tests/test_chapters.py looks at all that the rules ask for."""
    stale = []
    for source in sources:
        stored = source.with_suffix(".ipynb")
        if not stored.exists() or not in_step(jupytext.read(source), nbformat.read(stored, as_version=4)):
            stale.append(source)
    for source in stale:
        print(f"{source.stem}.ipynb is out of step with {source.name}: make notebooks ONLY=chapters/{source.name}")
    return 1 if stale else 0


def make(sources: list[Path], record_times: bool) -> int:
    os.environ.update(ENVIRONMENT)
    times, failed = {}, False
    with ProcessPoolExecutor(max_workers=1 if record_times else 2) as pool:
        for source, (seconds, error) in zip(sources, pool.map(run, sources), strict=True):
            if error:
                print(f"{source.name} failed after {seconds:.0f} s, its notebook is as it was:\n{error}", flush=True)
                failed = True
                continue
            times[source.stem] = seconds
            found = problems(jupytext.read(source), nbformat.read(source.with_suffix(".ipynb"), as_version=4))
            print("\n    ".join([f"{source.name} ran in {seconds:.1f} s", *found]), flush=True)
            failed |= bool(found)
    if record_times:
        record(times)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chapters", nargs="*", type=Path, help="chapters/NN_title.py; without any, all of them")
    parser.add_argument("--check", action="store_true", help="run nothing, compare the cells of .py and .ipynb")
    parser.add_argument("--record-times", action="store_true", help="write the run times to run_times.json")
    arguments = parser.parse_args()
    for path in arguments.chapters:
        if path.suffix != ".py" or not path.exists():
            parser.error(f"{path} is not the .py of a chapter")
    sources = [path.resolve() for path in arguments.chapters] or chapter_sources()
    if not sources:
        parser.error(f"there is no chapter (NN_title.py) in {CHAPTERS}")
    return check(sources) if arguments.check else make(sources, arguments.record_times)


if __name__ == "__main__":
    sys.exit(main())
