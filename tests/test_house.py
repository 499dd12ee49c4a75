"""The house rules that no single module can keep: environment, imports, sizes, links, pictures, loose ends."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "chapters" / "_tools"))
import rules  # noqa: E402

from minihaares import plots  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = sorted((ROOT / "minihaares").rglob("*.py"))
README = ROOT / "README.md"

# --- environment ----------------------------------------------------------------------------------------------------

CONDA_NAMES = {"pytorch": "torch", "matplotlib-base": "matplotlib"}


def requirements(entries: list[str]) -> Iterator[Requirement]:
    """Requirements with `minihaares[extra]` replaced by what the extra holds."""
    for requirement in map(Requirement, entries):
        if requirement.name == PROJECT["name"]:
            for extra in sorted(requirement.extras):
                yield from requirements(PROJECT["optional-dependencies"][extra])
        else:
            yield requirement


def pip_bounds() -> dict[str, SpecifierSet]:
    """Name to bounds, of the package itself and all that `make` installs for development."""
    bounds: dict[str, SpecifierSet] = {"python": SpecifierSet(PROJECT["requires-python"])}
    for requirement in requirements(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]):
        name = canonicalize_name(requirement.name)
        assert bounds.setdefault(name, requirement.specifier) == requirement.specifier, f"two bounds for {name}"
    return bounds


def conda_bounds(dependencies: list) -> dict[str, SpecifierSet]:
    bounds = {}
    for entry in dependencies:
        if isinstance(entry, dict):
            assert "-e ." in entry["pip"], "the conda environment would not hold minihaares itself"
            for line in entry["pip"]:
                if line != "-e .":
                    requirement = Requirement(line)
                    bounds[canonicalize_name(requirement.name)] = requirement.specifier
        elif entry != "pip":
            name, _, bound = entry.partition(" ")
            bounds[canonicalize_name(CONDA_NAMES.get(name, name))] = SpecifierSet(
                f"=={bound}" if bound[:1].isdigit() else bound
            )
    return bounds


def test_conda_and_pip_ask_for_the_same():
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    assert conda_bounds(dependencies) == pip_bounds()


def test_a_bound_that_differs_is_seen():
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    loosened = ["pytorch >=1.0" if str(entry).startswith("pytorch ") else entry for entry in dependencies]
    assert loosened != dependencies and conda_bounds(loosened) != pip_bounds()


def test_what_is_installed_keeps_the_bounds():
    bounds = pip_bounds()
    bounds.pop("python")
    assert len(bounds) > 20
    assert {name: version(name) for name, bound in bounds.items() if not bound.contains(version(name))} == {}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs), "constraints.txt holds only name==version"
    assert len({canonicalize_name(name) for name, _ in pairs}) == len(pairs), "a package is pinned twice"
    return {canonicalize_name(name): number for name, number in pairs}


def installed_below(names: list[str]) -> dict[str, bool]:
    """Every installed package that these need, and whether one that needs it asks for an exact version."""
    found: dict[str, bool] = {}
    queue, seen = [(name, frozenset[str](), False) for name in names], set()
    while queue:
        name, extras, exact = queue.pop()
        found[name] = found.get(name, False) or exact
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for requirement in map(Requirement, distribution(name).requires or []):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
                only = any(part.operator in ("==", "===") and "*" not in part.version for part in requirement.specifier)
                queue.append((canonicalize_name(requirement.name), frozenset(requirement.extras), only))
    return found


def test_constraints_pin_all_that_is_installed():
    """CUDA's own libraries aside: torch asks for one exact version of each, so they need no second pin."""
    pinned, needed = pins(), installed_below([name for name in pip_bounds() if name != "python"])
    assert len(needed) > 100
    assert [name for name, exact in needed.items() if name not in pinned and not exact] == []
    differ = {name: (version(name), pinned[name]) for name in needed if name in pinned}
    assert {k: (ours, pin) for k, (ours, pin) in differ.items() if Version(ours).public != Version(pin).public} == {}


def test_pins_keep_the_bounds():
    pinned = pins()
    assert {name for name, bound in pip_bounds().items() if name != "python" and pinned[name] not in bound} == set()


def imported(tree: ast.AST) -> set[str]:
    """First names of all that a file imports by an absolute name."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(str(node.module).partition(".")[0])
    return names


NOT_ASKED_FOR = {
    "IPython",  # plots.show runs in a notebook or not at all
    "fla",  # bench_read compares with these two where they happen to be installed
    "attn_res",
}


def test_the_package_imports_only_what_it_asks_for():
    """What a wheel's own requirements bring must be enough for every module."""
    asked = {canonicalize_name(r.name) for r in requirements(PROJECT["dependencies"])}
    asked |= {canonicalize_name(r.name) for r in requirements(PROJECT["optional-dependencies"]["hub"])}
    providers = packages_distributions()
    outside = set().union(*(imported(ast.parse(path.read_text(encoding="utf-8"))) for path in MODULES))
    outside -= set(sys.stdlib_module_names) | NOT_ASKED_FOR | {"minihaares"}
    assert "torch" in outside
    assert {name for name in outside if not asked & {canonicalize_name(p) for p in providers.get(name, [])}} == set()


# --- the workshop ---------------------------------------------------------------------------------------------------


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_the_readme_names_the_two_commands_and_no_command_that_is_missing():
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named <= make_targets()


def test_ci_and_workflow_run_make_test():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, ".ci/run is not executable"
    assert script.read_text(encoding="utf-8").splitlines()[-1] == "make test"
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["test"]
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make test"]
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in job["steps"] if "uses" in step)
    matrix = job["strategy"]["matrix"]
    assert {system.partition("-")[0] for system in matrix["os"]} == {"ubuntu", "macos"}
    assert f">={matrix['python'][0]}" == PROJECT["requires-python"]


# --- sizes and imports ----------------------------------------------------------------------------------------------


def line_limit(module: Path) -> int:
    if module.parent.name == "relatives":
        return 150
    return 500 if module.name == "model.py" else 400


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short_enough_to_read(module: Path):
    lines = len(module.read_text(encoding="utf-8").splitlines())
    assert lines <= line_limit(module)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def internal_imports(path: Path, known: set[str]) -> set[str]:
    """The modules of the package that a file imports, at its top or inside a function."""
    own = module_name(path).split(".")
    package = own if path.name == "__init__.py" else own[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *(node.module.split(".") if node.module else [])])
            inner = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in known else base for name in inner}
    return {name for name in found if name in known}


def import_graph() -> dict[str, set[str]]:
    known = {module_name(path) for path in MODULES}
    return {module_name(path): internal_imports(path, known) for path in MODULES}


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found, queue = set(), [start]
    while queue:
        for name in graph[queue.pop()] - found:
            found.add(name)
            queue.append(name)
    return found


# What must never be reached from a module by imports, however many steps away.
TRAINING = {"train", "experiments", "cli"}
NEVER = {
    "depth_read": {"*"},
    "stories": {"*"},
    "algebra": {"*"},
    "model": {"*", "!depth_read"},
    "data": TRAINING | {"model", "depth_read"},
    "train": {"experiments", "cli"},
    "experiments": {"cli"},
    "plots": TRAINING | {"data"},
    "costs": TRAINING | {"data"},
    "relatives": TRAINING | {"data"},
}


def forbidden_imports(graph: dict[str, set[str]]) -> list[str]:
    found = []
    for name in graph:
        short = name.removeprefix("minihaares.")
        never = NEVER.get(short.partition(".")[0], set())
        for other in reachable(graph, name) - {"minihaares"}:
            other = other.removeprefix("minihaares.")
            if other == short:
                found.append(f"{short} imports itself in a circle")
            elif f"!{other}" not in never and ("*" in never or other.partition(".")[0] in never):
                found.append(f"{short} reaches {other}")
    return sorted(found)


def test_imports_run_one_way():
    graph = import_graph()
    assert "minihaares.depth_read" in graph["minihaares.model"], "the import graph does not see model's import"
    assert forbidden_imports(graph) == []


def test_imports_the_wrong_way_are_seen():
    graph = {f"minihaares.{name}": set() for name in ("model", "depth_read", "train", "data", "helper", "plots")}
    graph["minihaares.model"] = {"minihaares.depth_read"}
    assert forbidden_imports(graph) == []
    graph["minihaares.plots"] = {"minihaares.helper"}
    graph["minihaares.helper"] = {"minihaares.train"}
    graph["minihaares.train"] = {"minihaares.helper"}
    assert forbidden_imports(graph) == [
        "helper imports itself in a circle",
        "plots reaches train",
        "train imports itself in a circle",
    ]


def test_model_needs_only_torch():
    """So that a reader can take the file, and depth_read.py beside it, to another project."""
    for name in ("model.py", "depth_read.py"):
        names = imported(ast.parse((ROOT / "minihaares" / name).read_text(encoding="utf-8")))
        assert names - set(sys.stdlib_module_names) == {"torch"}


# --- prose, links and pictures --------------------------------------------------------------------------------------

LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)|(?:src|href)=[\"']([^\"']+)[\"']")


def prose() -> Iterator[tuple[Path, str]]:
    """Every text with links: the README and other markdown, and the markdown cells of the chapters."""
    pages = [README, *sorted(ROOT.glob("chapters/**/*.md")), *sorted(ROOT.glob("figures/*.md"))]
    for page in pages:
        if "_build" not in page.parts:
            yield page, page.read_text(encoding="utf-8")
    for source in sorted((ROOT / "chapters").glob("[0-9][0-9]_*.py")):
        lines, keep = [], False
        for line in source.read_text(encoding="utf-8").splitlines():
            if line.startswith("# %%"):
                keep = "[markdown]" in line
            elif keep:
                lines.append(line.removeprefix("#").removeprefix(" "))
        yield source, "\n".join(lines)


def anchors(page: str) -> set[str]:
    """The names that GitHub gives to the headings of a markdown page."""
    headings = re.findall(r"^#+\s+(.*?)\s*$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    text = re.sub(r"```.*?```|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]+\$", "", text, flags=re.DOTALL)
    for target in (first or second for first, second in LINK.findall(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        if not there.exists():
            broken.append(target)
        elif anchor and there.suffix == ".md" and anchor not in anchors(there.read_text(encoding="utf-8")):
            broken.append(target)
    return broken


def test_every_link_leads_somewhere():
    pages = list(prose())
    assert README in [page for page, _ in pages]
    assert {str(page.relative_to(ROOT)): found for page, text in pages if (found := broken_links(page, text))} == {}


def test_a_broken_link_is_seen(tmp_path: Path):
    page = tmp_path / "page.md"
    text = "# Some title!\n[a](page.md) [b](#some-title) [c](#no) [d](no.md)\n"
    text += "![e](no.png 'x') <img src='gone.png'> `[f](x)`"
    page.write_text(text, encoding="utf-8")
    assert broken_links(page, text) == ["#no", "no.md", "no.png", "gone.png"]


def test_every_picture_on_a_page_has_alt_text():
    pages = list(prose())
    assert {str(page.relative_to(ROOT)): bad for page, text in pages if (bad := rules.images_without_alt(text))} == {}
    assert rules.images_without_alt("![](a.png) ![b](b.png) <img src=c> <img src='d' alt='d'>") == [
        "![](",
        "<img src=c>",
    ]


def figure_faults(folder: Path) -> list[str]:
    """Each script NAME.py leaves NAME.svg and NAME.png, with alt text; each picture has a script."""
    faults = []
    scripts = {path.stem for path in folder.glob("*.py")}
    pictures = {path.stem for path in [*folder.glob("*.svg"), *folder.glob("*.png")]}
    faults += [f"{name}: no script draws it" for name in sorted(pictures - scripts - MADE_BY_A_COMMAND)]
    for name in sorted(scripts):
        svg, png = folder / f"{name}.svg", folder / f"{name}.png"
        if not (svg.exists() and png.exists()):
            faults.append(f"{name}: run `make figures`")
        elif not plots.alt_text(png):
            faults.append(f"{name}: no alt text; save it with plots.save")
    return faults


MADE_BY_A_COMMAND = {"demo"}  # by `minihaares demo`, on the reader's machine


def test_every_figure_has_a_script_two_files_and_alt_text():
    assert figure_faults(ROOT / "figures") == []


def test_a_figure_without_its_files_is_seen(tmp_path: Path):
    figure, axes = plots.plt.subplots(figsize=(1, 1))
    plots.save(figure, "good", "An empty pair of axes.", tmp_path)
    assert figure_faults(tmp_path) == ["good: no script draws it"]
    (tmp_path / "good.py").touch()
    assert figure_faults(tmp_path) == []
    (tmp_path / "lost.py").touch()
    figure.savefig(tmp_path / "mute.png")
    (tmp_path / "mute.svg").touch()
    (tmp_path / "mute.py").touch()
    assert figure_faults(tmp_path) == ["lost: run `make figures`", "mute: no alt text; save it with plots.save"]


def test_the_readme_describes_a_figure_as_the_figure_does():
    """One alt text per figure: the one that plots.save stored in it."""
    shown = re.findall(r"!\[([^\]]*)\]\(figures/(\w+)\.(?:png|svg)\)", README.read_text(encoding="utf-8"))
    assert [(name, alt) for alt, name in shown if plots.alt_text(ROOT / "figures" / f"{name}.png") != alt] == []


# --- loose ends -----------------------------------------------------------------------------------------------------

# Written in two halves, so that this file does not find itself.
UNFINISHED = re.compile("(?i:coming so" "on|lorem ip" r"sum)|\b(?:TO" "DO|FIX" "ME|XX" "X|HA" "CK|TB" r"D)\b")
MACHINE = re.compile(r"(?<![\w.])/(?:home|root|Users)/\w|\b[A-Z]:\\+Users")
# Not .ipynb: its words are in the .py, and the letters of a picture can spell anything.
TEXTS = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".csv", ".json", ".cfg", ".bib", ""}
TOP_LEVEL = {
    *("chapters", "minihaares", "figures", "tests", "environment.yml", "README.md"),  # the plan
    *("pyproject.toml", "constraints.txt", "Makefile", "LICENSE"),  # tools look for these here
}


def project_files() -> list[Path]:
    inside = [path for name in ("chapters", "minihaares", "figures", "tests", ".ci", ".github") for path in
              sorted((ROOT / name).rglob("*"))]  # fmt: skip
    files = [*inside, *(ROOT / name for name in TOP_LEVEL)]
    skip = {"__pycache__", "_build", ".ipynb_checkpoints"}
    return [path for path in files if path.is_file() and path.suffix in TEXTS and not skip & set(path.parts)]


def loose_ends(text: str) -> list[str]:
    return [match.group(0) for pattern in (UNFINISHED, MACHINE) for match in pattern.finditer(text)]


def test_nothing_is_left_unfinished_and_no_machine_is_named():
    files = project_files()
    assert Path(__file__) in files and ROOT / "minihaares" / "model.py" in files
    found = {str(path.relative_to(ROOT)): loose_ends(path.read_text(encoding="utf-8")) for path in files}
    assert {path: ends for path, ends in found.items() if ends} == {}


def test_loose_ends_are_seen():
    assert loose_ends("# TO" "DO: later, in /ho" "me/me/x") == ["TO" "DO", "/ho" "me/m"]
    assert loose_ends("to do, a hackathon, /homework") == []


def test_nothing_new_lies_at_the_top():
    """Of what git would take: the names of the plan, and dotfiles."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()}
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    extra = {name for name in names - TOP_LEVEL - ignored if not name.endswith(".egg-info")}
    assert extra == set()


def test_minihaares_is_installed_from_here():
    """Kernels and the command line use the installed package; it must be this one."""
    try:
        found = version("minihaares")
    except PackageNotFoundError:
        pytest.fail("minihaares is not installed: run the tests with `make test`")
    assert found == PROJECT["version"]
