"""Run a notebook's cells one after the other, in a process of their own: what a student wrote may do anything.

`run_cells` starts this file, writes the cells to its standard input (JSON: a list of [name, source]) and reads one line
of JSON for each cell that has ended: null, or a sentence that says what went wrong. A cell that takes too long is
interrupted with SIGINT, and the next one is run. `execute` also serves the tests, without a process.
"""

import json
import linecache
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from typing import Any

GRACE = 10  # seconds until an interrupted cell has ended or is killed

TIMEOUT = "stopped after the time limit: is there a loop that does not end?"
MAGIC = re.compile(r"^([ \t]*)(?:%{1,2}|!)[A-Za-z].*$", re.MULTILINE)  # for IPython, not for Python
CELL = re.compile(r"<cell (\w+)>")  # the file name that tracebacks give to a cell


def fresh_namespace() -> dict[str, Any]:
    """What a notebook starts with."""
    return {"__name__": "__main__", "display": print}


def execute(name: str, source: str, namespace: dict[str, Any]) -> str | None:
    """Run one cell in a namespace; None, or one line on what went wrong. Lines for IPython alone are left out."""
    filename, source = f"<cell {name}>", MAGIC.sub(r"\1pass", source)
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    try:
        exec(compile(source, filename, "exec"), namespace)
    except (Exception, SystemExit) as error:  # a student's code may raise anything
        return describe(error)
    return None


def describe(error: BaseException) -> str:
    """One line for a student: the message of a check, or the error and the line of a cell that it came from."""
    if isinstance(error, NotImplementedError):
        return "not done yet"
    if isinstance(error, SyntaxError):
        return f"SyntaxError in line {error.lineno}: {error.msg}: {(error.text or '').strip()}"
    said = " ".join(str(error).split())
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if CELL.fullmatch(frame.filename)]
    if not frames:
        return f"{type(error).__name__}: {said}"
    last, line = frames[-1], (frames[-1].line or "").strip()
    if isinstance(error, AssertionError):
        return said or f"this does not hold: {line.removeprefix('assert ')}"
    return f"{type(error).__name__}: {said} (in {CELL.fullmatch(last.filename)[1]}, line {last.lineno}: {line})"


def run_cells(cells: list[tuple[str, str]], seconds: float, environment: dict[str, str]) -> list[str | None]:
    """Run cells in a process of their own: for each None, or a sentence on what went wrong.

    A cell that takes longer than `seconds` is interrupted, and the next one is run; if that does not help either, the
    process is killed, and the other cells are not run."""
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder,
        env=os.environ | environment,
        start_new_session=True,  # so that Ctrl-C in the terminal reaches us first
    ) as child:  # fmt: skip
        lines: queue.Queue[str] = queue.Queue()

        def listen() -> None:
            for line in child.stdout:
                lines.put(line)
            lines.put("")

        threading.Thread(target=listen, daemon=True).start()
        try:
            child.stdin.write(json.dumps(cells))
            child.stdin.close()
            return list(_collect(child, lines, len(cells), seconds))
        finally:
            child.kill()


def _collect(child: subprocess.Popen, lines: queue.Queue, count: int, seconds: float) -> Iterator[str | None]:
    for done in range(count):
        try:
            # Python itself starts before the first cell.
            line = lines.get(timeout=seconds + (GRACE if done == 0 else 0))
        except queue.Empty:
            child.send_signal(signal.SIGINT)
            try:
                line = lines.get(timeout=GRACE)
            except queue.Empty:
                yield TIMEOUT
                yield from ["not run: an earlier cell could not be stopped"] * (count - done - 1)
                return
        if not line:
            yield "this cell ended the whole process: was there too little memory?"
            yield from ["not run: an earlier cell ended the process"] * (count - done - 1)
            return
        yield json.loads(line)


def main() -> None:
    cells = json.load(sys.stdin)
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what a cell prints is nobody's report
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    namespace = fresh_namespace()
    for name, source in cells:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            outcome = execute(name, source, namespace)
        except KeyboardInterrupt:
            outcome = TIMEOUT
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(json.dumps(outcome), file=reports, flush=True)


if __name__ == "__main__":
    main()
