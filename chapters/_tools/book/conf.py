"""The web book: `make book` builds it from the executed notebooks and runs nothing; warnings are errors.

All that a page needs lies beside it (fonts, scripts, MathJax, the search index), so it reads the same without a
network and from the file system.
"""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE))  # front_matter
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "minihaares"
author = PROJECT["authors"][0]["name"]
release = PROJECT["version"]
language = "en"

extensions = [
    "myst_nb",
    "sphinx-mathjax-offline",  # with hyphens: that is the module's name
    "sphinxcontrib.bibtex",
    "front_matter",
]
root_doc = "index"
include_patterns = ["*.md", "[0-9][0-9]_*.ipynb"]
bibtex_bibfiles = [str(ROOT / "chapters" / "references.bib")]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_merge_streams = True

html_theme = "sphinx_book_theme"
html_title = project
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # it fetches the pages found, which a browser refuses on the file system
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_context = {"default_mode": "auto"}  # light or dark as the reader's system is; unset, the theme logs an error
html_theme_options = {
    "show_toc_level": 2,
    "use_download_button": False,
    # The theme has a search button of its own at the side; these would put a second one on top.
    "navbar_start": [],
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],
}
