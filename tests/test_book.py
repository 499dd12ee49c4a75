"""The web book, built once: whole, offline, and readable on a phone, in the dark and with a keyboard.

The pages are read as files by every run. Where a Chromium or Chrome is found, they are also opened in it, from the file
system; elsewhere those tests are skipped and say so. MINIHAARES_CHROMIUM names a browser in another place.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

import check_jsonschema
import jupytext
import pytest
import yaml
from pybtex.database import parse_file

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = ROOT / "chapters"
BOOK = CHAPTERS / "_tools" / "book"
sys.path.insert(0, str(BOOK))
import front_matter  # noqa: E402

from minihaares import plots  # noqa: E402

SOURCES = sorted(CHAPTERS.glob("[0-9][0-9]_*.py"))
NOTEBOOKS = sorted(CHAPTERS.glob("[0-9][0-9]_*.ipynb"))
PAGES = [*(path.stem for path in NOTEBOOKS), *(path.stem for path in sorted(CHAPTERS.glob("*.md"))), "genindex"]
TEX = re.compile(r"\\[a-zA-Z]{2,}|\\[()\[\]]|\$\$|\$[^$\s][^$]*\$")


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built book; a warning fails the build."""
    folder = tmp_path_factory.mktemp("book")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", BOOK, "-d", folder / "doctrees"]
    done = subprocess.run([*command, CHAPTERS, folder / "html"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return folder / "html"


# --- what the chapters say of themselves ----------------------------------------------------------------------------


def markdown(source: Path) -> str:
    return "\n\n".join(cell.source for cell in jupytext.read(source).cells if cell.cell_type == "markdown")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_exercise_of_a_chapter_can_be_read(source: Path):
    assert front_matter.unread(int(source.stem[:2]), markdown(source)) == []


def test_an_exercise_is_read():
    text = "## Exercises\n\n### Exercise 7.1 · A *title*\n*Hard, 30 minutes and a night.* Do.\n\n"
    text += "### Exercise 7.2 · By hand?\n\n*Easy, 1 minute.* Do.\n\n### Exercise 7.3 · More\n*Open, an evening.* Do."
    first, second, third = front_matter.exercises(7, text)
    assert (first.title, first.difficulty, first.time) == ("A *title*", "hard", "30 minutes and a night")
    assert (second.title, second.difficulty, second.time) == ("By hand?", "easy", "1 minute")
    assert (third.number, third.difficulty, third.time) == (3, "open", "an evening")
    assert text[second.start :].startswith("### Exercise 7.2") and second.anchor == "exercise-7-2"


@pytest.mark.parametrize(
    "text",
    [
        "no exercise",
        "### Exercise 7.1 · Title\nEasy, 5 minutes. Do.",
        "### Exercise 7.1 · Title\n*Simple, 5 minutes.* Do.",
        "### Exercise 7.1 · Title\n*Hard, soon.* Do.",
        "### Exercise 7.1 · Title\n*Easy.* Do.",
        "### Exercise 7.2 · Title\n*Easy, 5 minutes.* Do.",
    ],
)
def test_an_exercise_that_cannot_be_read_is_seen(text: str):
    assert len(front_matter.unread(7, text)) == 1


def heading_levels(text: str) -> list[int]:
    text = re.sub(r"```.*?```|<details>.*?</details>", "", text, flags=re.DOTALL)
    return [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_chapter_has_a_table_of_contents(source: Path):
    """JupyterLab's and the book's are made of the headings: one title, sections below it, no level left out."""
    levels = heading_levels(markdown(source))
    assert levels[0] == 1 and levels.count(1) == 1 and levels.count(2) >= 3
    assert all(level <= before + 1 for before, level in zip(levels, levels[1:], strict=False)), levels


def test_headings_in_code_do_not_count():
    assert heading_levels("# a\n```\n# b\n```\n## c\n<details>\n\n# d\n</details>\n#### e") == [1, 2, 4]


def accidental_lists(text: str) -> list[str]:
    """Lines of a paragraph that begin like a list item, and are made one: "adds up to / 1. So which" or "e^b / - 1"."""
    lines = re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines()
    begins = re.compile(r"(?:1[.)]|[-+*])\s")
    other = re.compile(r"\s*$|\s+\S|(?:\d+[.)]|[-+*>])\s|#|\|")  # no line of a paragraph
    pairs = zip(lines, lines[1:], strict=False)
    return [line for before, line in pairs if begins.match(line) and not other.match(before)]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_no_line_of_prose_becomes_a_list(source: Path):
    assert accidental_lists(markdown(source)) == []


def test_an_accidental_list_is_seen():
    text = "which add up to\n1. So which\n\n$e^b\n- 1$\n\n1. one\n2. two\n\n* a\n  b\n* c\n\n```\nx\n- y\n```\n"
    assert accidental_lists(text) == ["1. So which", "- 1$"]


# --- the bibliography -----------------------------------------------------------------------------------------------


def named_ids() -> set[str]:
    """Every arXiv id in the chapters, the package and the README."""
    files = [*SOURCES, *sorted((ROOT / "minihaares").rglob("*.py")), *CHAPTERS.glob("*.md"), ROOT / "README.md"]
    return {number for path in files for number in front_matter.arxiv_ids(path.read_text(encoding="utf-8"))}


def test_the_bibliography_holds_every_arxiv_id_that_is_named_and_no_other():
    entries = parse_file(CHAPTERS / "references.bib").entries
    listed = [entry.fields["eprint"] for entry in entries.values() if "eprint" in entry.fields]
    assert len(listed) == len(set(listed)) > 30
    named = named_ids()
    assert {"missing": named - set(listed), "not named": set(listed) - named} == {"missing": set(), "not named": set()}


def test_an_entry_is_complete_and_of_the_year_of_its_id():
    for key, entry in parse_file(CHAPTERS / "references.bib").entries.items():
        assert entry.persons.get("author") and entry.fields["title"], key
        number = re.fullmatch(r"(?:cmp-lg/)?(\d\d)\d\d\.?\d+", entry.fields.get("eprint", ""))
        if number:
            assert entry.fields["archivePrefix"] == "arXiv", key
            assert entry.fields["year"][2:] == number[1], key
        assert entry.fields["year"] in key, key


def test_arxiv_ids_are_found_and_linked():
    text = "arXiv 2606.06564, FlashAttention, 2205.14135; `arXiv 1111.11111` [arXiv 2402.02622](https://x/2402.02622)"
    assert front_matter.arxiv_ids(text + " arXiv cmp-lg/9606011, arXiv 1412.6980; 3.14159 12345.678901 2013.12345") == [
        *("2606.06564", "2205.14135", "1111.11111", "2402.02622", "cmp-lg/9606011", "1412.6980")
    ]
    linked = front_matter.link_arxiv(text)
    assert linked.startswith("[arXiv 2606.06564](https://arxiv.org/abs/2606.06564), Flash")
    assert linked.endswith("`arXiv 1111.11111` [arXiv 2402.02622](https://x/2402.02622)")


# --- other doors ----------------------------------------------------------------------------------------------------


def test_the_cell_for_the_cloud_installs_this_version_and_only_where_it_is_missing(monkeypatch: pytest.MonkeyPatch):
    text = (CHAPTERS / "other_doors.md").read_text(encoding="utf-8")
    assert set(re.findall(r"minihaares(?:@v|-)(\d[\d.]*\d)", text)) == {version("minihaares")}
    (cell,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    installs = re.sub(r"%pip install (.*)", "asked.append(1)", cell)
    asked: list[int] = []
    exec(installs, {"asked": asked})
    assert asked == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    exec(installs, {"asked": asked})
    assert asked == [1]


def lint(workflow: Path) -> int:
    arguments = ["--builtin-schema", "vendor.github-workflows", str(workflow)]
    return check_jsonschema.main(arguments, standalone_mode=False)


def unknown_contexts(text: str) -> set[str]:
    """Names behind `matrix.` in the expressions of a workflow that no matrix of it has."""
    jobs = yaml.safe_load(text)["jobs"].values()
    known = {name for job in jobs for name in job.get("strategy", {}).get("matrix", {})}
    return {name for name in re.findall(r"\$\{\{\s*matrix\.([\w-]+)", text)} - known


def test_the_workflow_passes_a_linter(tmp_path: Path):
    workflow = ROOT / ".github" / "workflows" / "test.yml"
    text = workflow.read_text(encoding="utf-8")
    assert lint(workflow) == 0 and unknown_contexts(text) == set()
    (tmp_path / "spoilt.yml").write_text(text.replace("fail-fast", "fail-fst"), encoding="utf-8")
    assert lint(tmp_path / "spoilt.yml") == 1
    assert unknown_contexts(text.replace("matrix.python", "matrix.pyton")) == {"pyton"}


# --- the pages, as files --------------------------------------------------------------------------------------------

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Page(HTMLParser):
    """What of a page is checked: ids, links, what it loads, pictures, titles, and its words outside math and code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.words: list[str] = []
        self.titles = 0
        self.open: list[tuple[str, bool]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        self.titles += tag == "h1" and "article" in (tag for tag, _ in self.open)
        if tag == "a":
            self.links.append(given.get("href") or "")
        elif given.get("href"):
            self.loads.append(given["href"])
        if given.get("src"):
            self.loads.append(given["src"])
        if tag == "img":
            self.pictures.append(given)
        if tag not in VOID:
            quiet = tag in {"script", "style", "pre", "code"} or "math" in (given.get("class") or "").split()
            self.open.append((tag, quiet))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not any(quiet for _, quiet in self.open):
            self.words.append(data)


@pytest.fixture(scope="module")
def pages(book: Path) -> dict[str, Page]:
    return {path.stem: Page(path.read_text(encoding="utf-8")) for path in sorted(book.glob("*.html"))}


def unresolved(pages: dict[str, Page], book: Path) -> Iterator[str]:
    """Links inside the book that lead to no file or to no anchor."""
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            path = unquote(parts.path) or f"{name}.html"
            target = pages.get(path.removesuffix(".html"))
            there = target is not None if path.endswith(".html") else (book / path).exists()
            if not there or (parts.fragment and target and unquote(parts.fragment) not in target.ids):
                yield f"{name}: {link}"


def test_every_page_is_there_with_one_title(pages: dict[str, Page]):
    assert set(PAGES) <= set(pages)
    assert {name: pages[name].titles for name in PAGES if pages[name].titles != 1} == {}


def test_every_link_of_the_book_leads_somewhere(pages: dict[str, Page], book: Path):
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert list(unresolved(pages, book)) == []
    planted = Page('<h1 id="a"></h1><a href="#a"></a><a href="#b"></a><a href="no.html"></a><a href="https://x/#b"></a>')
    assert list(unresolved({"p": planted}, book)) == ["p: #b", "p: no.html"]


def test_a_page_loads_only_what_lies_beside_it(pages: dict[str, Page], book: Path):
    for name, page in pages.items():
        assert page.loads, name
        for link in page.loads:
            parts = urlsplit(link)
            assert not parts.scheme and not parts.netloc and (book / unquote(parts.path)).exists(), f"{name}: {link}"
    outside = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//")
    sheets = sorted(book.rglob("*.css"))
    assert book / "_static" / "book.css" in sheets
    assert [str(sheet) for sheet in sheets if outside.search(sheet.read_text(encoding="utf-8"))] == []


def test_every_picture_is_described(pages: dict[str, Page]):
    pictures = [(name, given) for name, page in pages.items() for given in page.pictures]
    assert len(pictures) > 20
    assert [(name, given) for name, given in pictures if len((given.get("alt") or "").split()) < 4] == []


def test_the_index_describes_its_picture_as_the_figure_does():
    """One alt text per figure: the one that plots.save stored in it."""
    ((alt, name),) = re.findall(r"!\[([^\]]*)\]\(\.\./figures/(\w+\.png)\)", (CHAPTERS / "index.md").read_text("utf-8"))
    assert plots.alt_text(ROOT / "figures" / name) == alt


def test_no_tex_is_left_outside_math(pages: dict[str, Page]):
    left = {name: TEX.findall(" ".join(page.words)) for name, page in pages.items()}
    assert {name: found for name, found in left.items() if found} == {}
    planted = Page(r'<p>$x$ <b>\alpha</b></p><span class="math">\(\beta\)</span><br><code>$y$ \gamma</code>')
    assert TEX.findall(" ".join(planted.words)) == ["$x$", r"\alpha"]


def test_the_search_index_knows_every_page(pages: dict[str, Page], book: Path):
    """As a script, since from the file system a page may not fetch it."""
    assert "searchindex.js" in pages["search"].loads
    index = (book / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(index.removeprefix("Search.setIndex(").rstrip().removesuffix(")"))
    assert set(index["docnames"]) == set(PAGES) - {"genindex"}
    assert index["terms"]["residu"] and index["terms"]["wavelet"]


def test_the_table_of_exercises_is_that_of_the_chapters(pages: dict[str, Page]):
    """As many rows as the sources have exercises, each with a link to the exercise itself."""
    expected = [
        f"{notebook.stem}.html#{exercise.anchor}"
        for notebook in NOTEBOOKS
        for exercise in front_matter.exercises(int(notebook.stem[:2]), markdown(notebook.with_suffix(".py")))
    ]
    links = [link for link in pages["exercises"].links if "#exercise-" in link]
    assert len(expected) > 50 and links == expected


def test_a_chapter_says_how_to_open_it_and_how_long_it_runs(pages: dict[str, Page], book: Path):
    seconds = json.loads(front_matter.RUN_TIMES.read_text(encoding="utf-8"))
    for notebook in NOTEBOOKS:
        html = (book / f"{notebook.stem}.html").read_text(encoding="utf-8")
        assert f"chapters/{notebook.name}" in html, notebook.name
        if notebook.stem in seconds:
            assert f"in {seconds[notebook.stem]}\N{NO-BREAK SPACE}s on one core" in html, notebook.name
    assert "in JupyterLab" in front_matter.facts("99_to_come") and "core" not in front_matter.facts("99_to_come")


def test_the_index_leaves_out_parts_without_chapters():
    text = "a\n```{toctree}\n:caption: X\n:glob:\n\n0[12]_*\n10_*\n```\nb\n```{toctree}\n:glob:\n\n20_*\n```\nc"
    assert front_matter.parts_that_exist(text, ["01_x", "index"]) == (
        "a\n```{toctree}\n:caption: X\n:glob:\n\n0[12]_*\n```\nb\n\nc"
    )


# --- the pages, in a browser ----------------------------------------------------------------------------------------

PLACES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ON_A_MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"]


def find_browser() -> str | None:
    named = os.environ.get("MINIHAARES_CHROMIUM")
    found = named or next((path for path in map(shutil.which, PLACES) if path), None)
    return found or (str(ON_A_MAC) if ON_A_MAC.exists() else None)


BROWSER = find_browser()
in_a_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed here")

# Elements that stick out at the right and that nothing around them lets the reader scroll to.
STICKS_OUT = """() => {
  const width = document.documentElement.clientWidth, found = [];
  const look = element => {
    if (element.matches(".visually-hidden, mjx-assistive-mml")) return;
    const box = element.getBoundingClientRect();
    if (box.width > 0 && box.right > width + 1)
      found.push(element.tagName + "." + element.className + ": " + element.textContent.slice(0, 60));
    if (!["auto", "scroll"].includes(getComputedStyle(element).overflowX) && !element.matches("mjx-container, svg"))
      [...element.children].forEach(look);
  };
  look(document.querySelector("article"));
  if (document.documentElement.scrollWidth > width) found.push("the page: " + document.documentElement.scrollWidth);
  return found.slice(0, 5);
}"""

WORDS = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), words = [];
  while (walker.nextNode())
    if (!walker.currentNode.parentElement.closest("script, style, pre, code, mjx-container"))
      words.push(walker.currentNode.data);
  return words.join(" ");
}"""

# Contrast, as in WCAG 2, of an element's text with the nearest painted background.
CONTRAST = """selector => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(x => x / 255)
      .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let element = document.querySelector(selector), around = element, paint;
  const text = light(getComputedStyle(element).color);
  do { paint = getComputedStyle(around).backgroundColor; around = around.parentElement; }
  while (around && paint.endsWith(", 0)"));
  const [a, b] = [text, light(paint)].sort((x, y) => y - x);
  return {contrast: (a + 0.05) / (b + 0.05), background: light(paint)};
}"""


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=QUIET)
        yield running
        running.close()


def new_page(browser, **options):
    """An empty page; its `complaints` gathers errors and requests that leave the file system."""
    page = browser.new_page(**options)
    page.complaints = []
    page.on("console", lambda said: said.type == "error" and page.complaints.append(said.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on(
        "request",
        lambda asked: asked.url.startswith(("file:", "data:", "blob:")) or page.complaints.append(asked.url),
    )
    return page


def go(page, folder: Path, name: str) -> None:
    """Open a page of the book and wait until its math is set."""
    page.complaints.clear()
    page.goto((folder / f"{name}.html").as_uri())
    page.evaluate("() => window.MathJax && MathJax.startup && MathJax.startup.promise")


@pytest.fixture(scope="module")
def phone(browser):
    return new_page(browser, viewport={"width": 400, "height": 800})


@pytest.fixture
def desk(browser):
    page = new_page(browser, viewport={"width": 1280, "height": 900})
    yield page
    page.close()


@in_a_browser
@pytest.mark.parametrize("name", PAGES)
def test_a_page_reads_well_on_a_phone(phone, book: Path, name: str):
    """No error, no request, no TeX, nothing that sticks out at 400 pixels; answers unfolded."""
    go(phone, book, name)
    phone.evaluate("() => document.querySelectorAll('details').forEach(answer => answer.open = true)")
    assert phone.complaints == []
    assert phone.locator("mjx-merror, [data-mjx-error]").count() == 0
    assert TEX.findall(phone.evaluate(WORDS)) == []
    assert phone.evaluate(STICKS_OUT) == []


@in_a_browser
def test_what_sticks_out_and_what_fails_is_seen(phone, tmp_path: Path):
    wide = "<article><p style='width: 900px'>a</p><div style='overflow-x: auto'><b style='padding: 600px'>b</b></div>"
    html = f"<!doctype html>{wide}</article><img src='https://nowhere.invalid/x.png'><script>no()</script>"
    (tmp_path / "planted.html").write_text(html, encoding="utf-8")
    go(phone, tmp_path, "planted")
    assert [line.partition(":")[0] for line in phone.evaluate(STICKS_OUT)] == ["P.", "the page"]
    complaints = " ".join(phone.complaints)
    assert "nowhere" in complaints and "no is not" in complaints


@in_a_browser
def test_a_keyboard_reaches_search_contents_and_text(desk, book: Path):
    go(desk, book, "05_attention_over_depth")
    reached = []
    for _ in range(60):
        desk.keyboard.press("Tab")
        reached.append(
            desk.evaluate(
                """() => {
                  const at = document.activeElement, style = getComputedStyle(at);
                  const place = at.closest(".search-button, .search-button-field") ? "search"
                    : at.closest(".bd-sidebar-primary") ? "contents" : at.closest(".bd-sidebar-secondary") ? "sections"
                    : at.closest("article") ? "text" : "other";
                  const seen = style.outlineStyle !== "none" || style.boxShadow !== "none";
                  return [place, seen, at.outerHTML.slice(0, 130)];
                }"""
            )
        )
    places = [place for place, *_ in reached]
    assert {"search", "contents", "text"} <= set(places), reached
    assert places.index("contents") < 20, reached
    assert [entry for entry in reached if not entry[1]] == [], "focus is not visible"


@in_a_browser
def test_search_works_from_the_file_system(desk, book: Path):
    go(desk, book, "index")
    desk.keyboard.press("Control+k")
    desk.keyboard.type("permutations")
    desk.keyboard.press("Enter")
    desk.wait_for_selector("#search-results li a")
    found = desk.locator("#search-results li a").all_inner_texts()
    assert any(title.startswith("07") for title in found), found
    assert desk.complaints == []


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(desk, book: Path, scheme: str):
    desk.emulate_media(color_scheme=scheme)
    go(desk, book, "05_attention_over_depth")
    assert desk.locator("html").get_attribute("data-theme") == scheme
    for selector in ("article p", "article h2", "article p code", ".chapter-facts", "article pre", "article p a"):
        seen = desk.evaluate(CONTRAST, selector)
        assert (seen["background"] < 0.2) == (scheme == "dark"), (selector, seen)
        assert seen["contrast"] >= 4.5, (selector, seen)
