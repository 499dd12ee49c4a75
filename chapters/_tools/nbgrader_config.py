"""Settings of nbgrader for a class of this book; assignments.py copies this file into the class folder.

Run `nbgrader` commands, or `jupyter lab` with its Formgrader, in that folder, and they find it there.
"""

SECONDS = 60  # for one cell of a student's notebook

c = get_config()  # noqa: F821  traitlets puts it there

c.CourseDirectory.course_id = "minihaares"
# Without "*.py" a source that lies beside its notebook is copied into the release, solutions and all.
c.CourseDirectory.ignore = [".ipynb_checkpoints", "*.pyc", "__pycache__", "*.py", "runs"]
c.IncludeHeaderFooter.header = ""

# The same words as STUB and ANSWER in assignments.py: both ways to a release give the same cells.
c.ClearSolutions.code_stub = {
    "python": '# Your answer goes here.\nraise NotImplementedError("This task is not done yet.")'
}
c.ClearSolutions.text_stub = "*Your answer goes here.*"

c.ExecutePreprocessor.timeout = SECONDS
c.ExecutePreprocessor.extra_arguments = ["--HistoryManager.hist_file=:memory:", "--log-level=ERROR"]
c.ExecutePreprocessor.error_on_timeout = {
    "ename": "CellTimeoutError",
    "evalue": f"stopped after {SECONDS} seconds",
    "traceback": [f"This cell was stopped after {SECONDS} seconds: is there a loop that does not end?"],
}
# A deleted check cell is put back and scores what it scores; otherwise it would silently be worth nothing.
c.OverwriteCells.add_missing_cells = True
