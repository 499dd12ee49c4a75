"""What the web book adds to the chapters when it is built, so that nothing of it is kept up by hand.

    on the index      only those parts that have a chapter already
    on each chapter   how to open it and how long it ran; links on its arXiv ids; alt text on its pictures; an anchor
                      on each exercise
    {exercise-table}  every exercise of every chapter: title, difficulty, minutes, link
    {named-in}        every arXiv id of references.bib, with the chapters that name it

The chapters are the notebooks beside index.md, and their sources stay as they are.
"""

import fnmatch
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from docutils import nodes
from pybtex.database import parse_file
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

RUN_TIMES = Path(__file__).resolve().parent.parent / "run_times.json"
CHAPTER = re.compile(r"(\d\d)_\w+")
# An exercise begins with two lines, and may leave one free between them:
#   ### Exercise 5.1 · A louder query
#   *Easy, 10 minutes.* In the case by hand, ...
LEVEL = "(?P<level>Easy|Medium|Hard|Open)"
TIME = r"(?P<time>(?:\d+ minutes?|an? (?:hour|evening|night|day|weekend))\b[^.,)*]*)"
EXERCISE = re.compile(rf"^### Exercise \d+\.(?P<n>\d+) · (?P<title>.+)\n+\*{LEVEL}, {TIME}\.\*", re.M)
NUMBER = r"(?:\d\d(?:0[1-9]|1[0-2])\.\d{4,5}|cmp-lg/\d{7})(?!\d)"
ARXIV = re.compile(rf"(?<!\[)arXiv[ :]({NUMBER})")
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


@dataclass(frozen=True)
class Exercise:
    """One exercise of a chapter; `start` is where it begins in the text it was found in."""

    chapter: int
    number: int
    title: str
    difficulty: str
    time: str
    start: int

    @property
    def anchor(self) -> str:
        return f"exercise-{self.chapter}-{self.number}"


def exercises(chapter: int, text: str) -> list[Exercise]:
    """The exercises that begin in a piece of a chapter's markdown, in their order."""
    found = EXERCISE.finditer(text)
    return [Exercise(chapter, int(m["n"]), m["title"], m["level"].lower(), m["time"], m.start()) for m in found]


def unread(chapter: int, text: str) -> list[str]:
    """What is wrong with the exercises in a whole chapter's markdown: the table would lack some."""
    form = f"an exercise begins `### Exercise {chapter}.1 · Title`, and below it `*Easy, 10 minutes.*` (Medium, Hard)"
    numbers = [exercise.number for exercise in exercises(chapter, text)]
    if len(re.findall("^### Exercise ", text, re.M)) > len(numbers) or numbers != list(range(1, len(numbers) + 1)):
        return [f"chapter {chapter:02d}: read as exercises {numbers}, but {form}."]
    return [] if numbers else [f"chapter {chapter:02d} has no exercise that can be read; {form}."]


def markdown_of(notebook: Path) -> str:
    """All markdown cells of a notebook, a blank line between them."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def title_of(text: str) -> str:
    """`05 · Attention over depth` of `# 05 · Attention over depth: can a layer choose what it reads?`."""
    return text.removeprefix("# ").partition("\n")[0].partition(":")[0]


def arxiv_ids(text: str) -> list[str]:
    """The arXiv ids a text names, each once, in their order; those of five digits also without the word arXiv."""
    found = re.findall(rf"arXiv[ :]({NUMBER})|(?<![\d.])(\d{{4}}\.\d{{5}})(?!\d)", text)
    return list(dict.fromkeys(named or bare for named, bare in found if named or bare[2:4] <= "12"))


# ------------------------------------------------------------------------------------------------ on each chapter


def facts(stem: str) -> str:
    """How to open a chapter, and how long it ran when `make times` last measured it."""
    seconds = json.loads(RUN_TIMES.read_text(encoding="utf-8")).get(stem)
    measured = f" It ran from top to bottom in {seconds}\u00a0s on one core." if seconds else ""
    return f":::{{container}} chapter-facts\nOpen `chapters/{stem}.ipynb` in JupyterLab (`make lab`).{measured}\n:::"


def link_arxiv(text: str) -> str:
    """arXiv ids as links, where they are neither code nor links already."""
    parts = CODE.split(text)
    parts[::2] = [ARXIV.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", part) for part in parts[::2]]
    return "".join(parts)


def with_anchors(text: str, found: Iterable[Exercise]) -> str:
    """Text with a target `(exercise-5-1)=` in front of each exercise."""
    for exercise in reversed(list(found)):
        text = f"{text[: exercise.start]}({exercise.anchor})=\n{text[exercise.start :]}"
    return text


def dress(notebook: dict, stem: str) -> None:
    """Add to a chapter's notebook, in place, what its page shows beside its cells."""
    chapter = int(stem[:2])
    for place, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "markdown":
            text = "".join(cell["source"])
            text = with_anchors(text, exercises(chapter, text))
            text = link_arxiv(text)
            if place == 0:
                heading, _, rest = text.partition("\n")
                text = f"{heading}\n\n{facts(stem)}\n{rest}"
            cell["source"] = text
        for output in cell.get("outputs", []):
            # myst-nb takes a picture's alt text from its cell; plots.show stores it with the picture.
            alt = output.get("metadata", {}).get("image/png", {}).get("alt")
            if alt:
                cell["metadata"].setdefault("mystnb", {})["image"] = {"alt": alt}


def parts_that_exist(text: str, names: Iterable[str]) -> str:
    """The index without the toctree patterns that match no chapter, at which Sphinx would warn."""
    names = list(names)

    def keep(match: re.Match) -> str:
        lines = match[0].splitlines()
        kept = [line for line in lines if not line.endswith("_*") or fnmatch.filter(names, line)]
        return "\n".join(kept) if any(line.endswith("_*") for line in kept) else ""

    return re.sub(r"^```\{toctree\}\n[^`]*?:glob:[^`]*?^```", keep, text, flags=re.M)


def dress_source(app: Sphinx, docname: str, content: list[str]) -> None:
    if docname == app.config.root_doc:
        content[0] = parts_that_exist(content[0], app.env.found_docs)
    elif Path(app.env.doc2path(docname)).suffix == ".ipynb":
        notebook = json.loads(content[0])
        dress(notebook, docname)
        content[0] = json.dumps(notebook)


# ------------------------------------------------------------------------------------------------------- tables


def rows(lines: Iterable[Iterable[str]]) -> str:
    """A markdown table; the first line is its head."""
    head, *body = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    table = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in table)


def exercise_lines(chapters: Iterable[Path]) -> Iterator[list[str]]:
    yield ["exercise", "title", "difficulty", "time"]
    for path in chapters:
        text, number = markdown_of(path), int(path.stem[:2])
        for place, exercise in enumerate(exercises(number, text)):
            if place == 0:
                yield [f"**{number:02d}**", f"[{title_of(text)[5:]}]({path.name})", "", ""]
            name = f"{number}.{exercise.number}"
            yield [name, f"[{exercise.title}](#{exercise.anchor})", exercise.difficulty, exercise.time]


def named_in_lines(chapters: Iterable[Path], bibliography: Path) -> Iterator[list[str]]:
    yield ["arXiv", "title", "named in"]
    texts = {path: path.read_text(encoding="utf-8") for path in chapters}
    for entry in sorted(parse_file(bibliography).entries.values(), key=lambda entry: entry.fields.get("eprint", "")):
        number = entry.fields.get("eprint")
        if number:
            places = [f"[{path.stem[:2]}]({path.name})" for path, text in texts.items() if number in text]
            title = re.sub("[{}]", "", entry.fields["title"])
            yield [f"[{number}](https://arxiv.org/abs/{number})", title, ", ".join(places) or "the package"]


class ChapterTable(SphinxDirective):
    """A table made from the chapters; the page that holds it is read anew in every build."""

    def lines(self, chapters: list[Path]) -> Iterator[list[str]]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        names = sorted(name for name in self.env.found_docs if CHAPTER.fullmatch(name))
        return self.parse_text_to_nodes(rows(self.lines([Path(self.env.doc2path(name)) for name in names])))


class ExerciseTable(ChapterTable):
    def lines(self, chapters: list[Path]) -> Iterator[list[str]]:
        return exercise_lines(chapters)


class NamedIn(ChapterTable):
    def lines(self, chapters: list[Path]) -> Iterator[list[str]]:
        return named_in_lines(chapters, Path(self.env.srcdir) / "references.bib")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", dress_source)
    app.add_directive("exercise-table", ExerciseTable)
    app.add_directive("named-in", NamedIn)
    return {"parallel_read_safe": True}
