"""The web book: `make book` builds it from the executed notebooks and runs nothing; warnings are errors.

All that a page needs lies beside it (fonts, scripts, MathJax, the search index), so it reads the same without a
network and from the file system.
"""

import json
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "minihaares"
author = PROJECT["authors"][0]["name"]
release = PROJECT["version"]
language = "en"

extensions = ["myst_nb", "sphinx-mathjax-offline"]  # with hyphens: that is the second module's name
root_doc = "index"
include_patterns = ["index.md", "[0-9][0-9]_*.ipynb"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_merge_streams = True

html_theme = "sphinx_book_theme"
html_title = project
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "use_download_button": False,
    # The theme has a search button of its own at the side; these would put a second one on top.
    "navbar_start": [],
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],
}


def give_pictures_their_alt_text(app: Sphinx, docname: str, content: list[str]) -> None:
    """myst-nb takes a picture's alt text from the metadata of its cell; plots.show stores it with the picture."""
    if Path(app.env.doc2path(docname)).suffix != ".ipynb":
        return
    notebook = json.loads(content[0])
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            alt = output.get("metadata", {}).get("image/png", {}).get("alt")
            if alt:
                cell["metadata"].setdefault("mystnb", {})["image"] = {"alt": alt}
    content[0] = json.dumps(notebook)


def setup(app: Sphinx) -> None:
    app.connect("source-read", give_pictures_their_alt_text)
