"""What a chapter must be like, so that it can be read, re-run and compared: one small function for each rule.

A rule takes the notebook as its .py says it (`source`) and as it is stored with outputs (`stored`), and yields one
line for each thing that is wrong. The notebook maker prints these lines; tests/test_chapters.py asserts there are
none, and plants one fault for each rule to see that it is found.
"""

import re
from collections.abc import Callable, Iterator

from nbformat import NotebookNode

FILTERS = {"notebook_metadata_filter": "-all", "cell_metadata_filter": "tags,nbgrader,-all"}
KEPT = ("tags", "nbgrader")  # of a cell's metadata
WIDGET = "application/vnd.jupyter.widget-view+json"
IGNORE = "nbval-ignore-output"
ONE_IN = 4  # at most one output cell in four may go unchecked
CELL_LINES = 25  # "about 20", not counting blank lines
ALT_WORDS = 4  # fewer can hardly say what a picture shows
BOX = ("You will build", "You will learn", "You need", "Runs in")

ABSOLUTE_PATH = re.compile(r"(?<![\w.:/<])/(?:[\w.+-]+/)+[\w.+-]+|\b[A-Z]:\\\w+")
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{8,}")
OUTSIDE = re.compile(r"""(?:src|href)=["']?(?:https?:)?//|@import|url\(["']?https?:""")
NETWORK_MODULE = re.compile(r"^\s*(?:import|from)\s+(?:requests|urllib|http|socket|httpx|aiohttp)\b", re.MULTILINE)
NBVAL_COMMENT = re.compile(r"#\s*(?:PYTEST_VALIDATE_IGNORE_OUTPUT|NBVAL_\w+)")
MARKDOWN_IMAGE = re.compile(r"!\[(.*?)\]\(", re.DOTALL)
HTML_IMAGE = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
HTML_ALT = re.compile(r"""\balt=(["'])\s*\S.*?\1""", re.IGNORECASE | re.DOTALL)


def cell_text(cell: NotebookNode) -> tuple:
    """What of a cell must be the same in both files."""
    return cell.cell_type, cell.source, sorted(tags(cell)), cell.metadata.get("nbgrader")


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def in_step(source: NotebookNode, stored: NotebookNode) -> bool:
    return [cell_text(cell) for cell in source.cells] == [cell_text(cell) for cell in stored.cells]


def code_cells(notebook: NotebookNode) -> list[tuple[int, NotebookNode]]:
    """The code cells that are not empty, with their position among all cells, counted from 1."""
    return [
        (place, cell)
        for place, cell in enumerate(notebook.cells, start=1)
        if cell.cell_type == "code" and cell.source.strip()
    ]


def output_texts(cell: NotebookNode) -> Iterator[str]:
    for output in cell.outputs:
        yield output.get("text", "")
        yield "\n".join(output.get("traceback", []))
        for kind, value in output.get("data", {}).items():
            if not kind.startswith("image/"):
                yield value if isinstance(value, str) else str(value)


def images_without_alt(markdown: str) -> list[str]:
    """The images in a piece of markdown that say nothing to a reader who can't see them."""
    bare = [match.group(0) for match in MARKDOWN_IMAGE.finditer(markdown) if not match.group(1).strip()]
    return bare + [image for image in HTML_IMAGE.findall(markdown) if not HTML_ALT.search(image)]


def same_cells(source: NotebookNode, stored: NotebookNode) -> Iterator[str]:
    for place, (ours, theirs) in enumerate(zip(source.cells, stored.cells, strict=False), start=1):
        if cell_text(ours) != cell_text(theirs):
            yield f"cell {place} of the notebook is not the one in the .py: run `make notebooks`"
            return
    if len(source.cells) != len(stored.cells):
        yield f"the .py has {len(source.cells)} cells, the notebook {len(stored.cells)}: run `make notebooks`"


def plain_metadata(source: NotebookNode, stored: NotebookNode) -> Iterator[str]:
    if dict(stored.metadata.get("jupytext", {})) != FILTERS:
        yield f"the notebook's jupytext metadata must be {FILTERS}, or JupyterLab refuses to open the .py"
    if extra := set(stored.metadata) - {"jupytext", "kernelspec", "language_info"}:
        yield f"the notebook's metadata holds {sorted(extra)}"
    for place, cell in enumerate(stored.cells, start=1):
        if extra := set(cell.metadata) - set(KEPT):
            yield f"cell {place}: its metadata holds {sorted(extra)}"


def executed_in_order(source: NotebookNode, stored: NotebookNode) -> Iterator[str]:
    """nbval compares nothing in a cell that has no execution count, so such a cell would pass unseen."""
    counts = [cell.execution_count for _, cell in code_cells(stored)]
    if not counts:
        yield "there is no code cell"
    elif counts != list(range(1, len(counts) + 1)):
        yield f"the code cells were not run once, in order: their execution counts are {counts}"


def checked_outputs(source: NotebookNode, stored: NotebookNode) -> Iterator[str]:
    showing = [cell for _, cell in code_cells(stored) if cell.outputs]
    ignored = [cell for _, cell in code_cells(stored) if IGNORE in tags(cell)]
    if ONE_IN * len(ignored) > len(showing):
        yield f"{len(ignored)} cells carry {IGNORE}, more than one in {ONE_IN} of the {len(showing)} with outputs"
    for place, cell in code_cells(stored):
        if NBVAL_COMMENT.search(cell.source):
            yield f"cell {place}: say what nbval shall do with tags, not with comments"
        if "nbval-skip" in tags(cell):
            yield f"cell {place}: a cell that nbval skips is checked by nobody"


def quiet_outputs(source: NotebookNode, stored: NotebookNode) -> Iterator[str]:
    for place, cell in code_cells(stored):
        if any(output.output_type == "stream" and output.name == "stderr" for output in cell.outputs):
            yield f"cell {place}: its output holds a warning or another line of stderr"
        for text in output_texts(cell):
            if match := ABSOLUTE_PATH.search(text):
                yield f"cell {place}: its output holds a path of this machine: {match.group(0)}"
            if match := ADDRESS.search(text):
                yield f"cell {place}: its output holds a memory address: {match.group(0)}"
            if OUTSIDE.search(text):
                yield f"cell {place}: its output loads something from the network"


def described_pictures(source: NotebookNode, stored: NotebookNode) -> Iterator[str]:
    for place, cell in code_cells(stored):
        pictures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
        if len(pictures) > 1:
            yield f"cell {place}: it shows {len(pictures)} pictures; the web book can describe one a cell"
        for output in pictures:
            if len(output.metadata.get("image/png", {}).get("alt", "").split()) < ALT_WORDS:
                yield f"cell {place}: its picture has no alt text; show it with plots.show(figure, alt=...)"
        for kind in {kind for output in cell.outputs for kind in output.get("data", {})}:
            if kind == WIDGET or (kind.startswith("image/") and kind != "image/png"):
                yield f"cell {place}: its output is {kind}; pictures are stored as PNG, widgets not at all"
    for place, cell in enumerate(stored.cells, start=1):
        if cell.cell_type == "markdown":
            for image in images_without_alt(cell.source):
                yield f"cell {place}: {image} has no alt text"


def offline_source(source: NotebookNode, stored: NotebookNode) -> Iterator[str]:
    for place, cell in code_cells(source):
        if match := NETWORK_MODULE.search(cell.source):
            yield f"cell {place}: `{match.group(0).strip()}`: a chapter needs no network"


def short_cells(source: NotebookNode, stored: NotebookNode) -> Iterator[str]:
    for place, cell in code_cells(source):
        lines = sum(bool(line.strip()) for line in cell.source.splitlines())
        if lines > CELL_LINES:
            yield f"cell {place} has {lines} lines; at most {CELL_LINES} can be read at a glance"


def opening_box(source: NotebookNode, stored: NotebookNode) -> Iterator[str]:
    opening = "\n".join(cell.source for cell in source.cells[:3] if cell.cell_type == "markdown")
    if not opening.startswith("# "):
        yield "a chapter begins with its title, `# ...`"
    for words in BOX:
        if words not in opening:
            yield f"the box at the start does not say: {words}"


RULES: tuple[Callable[[NotebookNode, NotebookNode], Iterator[str]], ...] = (
    same_cells,
    plain_metadata,
    executed_in_order,
    checked_outputs,
    quiet_outputs,
    described_pictures,
    offline_source,
    short_cells,
    opening_box,
)


def problems(source: NotebookNode, stored: NotebookNode) -> list[str]:
    return [line for rule in RULES for line in rule(source, stored)]
