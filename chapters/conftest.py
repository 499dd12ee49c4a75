"""Strict and numeric: `pytest --nbval` runs every cell of a chapter and compares what it shows with what is stored.

nbval compares outputs as strings. Stored outputs come from one machine and are checked on another, where the last
digits of a float differ, so here a float agrees within a tolerance and all else (words, integers, versions, layout
of a text without floats) must be the same. Pictures are not compared; their alt texts are.
"""

import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from nbval.plugin import IPyNbCell, IPyNbFile

sys.path.insert(0, str(Path(__file__).parent / "_tools"))
from notebooks import ENVIRONMENT  # noqa: E402

RELATIVE, ABSOLUTE = 1e-3, 1e-8
collect_ignore_glob = ["_tools/*", "assignments/*"]

# 0.5  .5  3.  1,234.5  6e-5: with a point or an exponent, and not part of a name or of a version such as 2.13.0.
FLOAT = re.compile(
    r"(?<![\w.])[-+]?"
    r"(?:(?:\d{1,3}(?:,\d{3})+|\d+)\.\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)"
    r"(?!\d|\.\d)"
)


def floats_agree(stored: str, shown: str) -> bool:
    """Whether two texts are the same but for floats that differ by no more than the tolerance."""
    if stored == shown:
        return True
    ours, theirs = FLOAT.findall(stored), FLOAT.findall(shown)
    # Columns move when a number gets longer, so blanks count as one once a float is among the text.
    if not ours or FLOAT.sub(" # ", stored).split() != FLOAT.sub(" # ", shown).split():
        return False
    return all(_close(a, b) for a, b in zip(ours, theirs, strict=True))


def _close(a: str, b: str) -> bool:
    if a.endswith(".") and b.endswith("."):  # "There are 12." ends a sentence; [1. 2.] is exact too
        return a == b
    first, second = float(a.replace(",", "")), float(b.replace(",", ""))
    return math.isclose(first, second, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


class NumericText(str):
    """A text that equals another one if floats_agree; nbval compares with != and prints both."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and floats_agree(str(self), str(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class ChapterCell(IPyNbCell):
    def sanitize(self, value: object) -> object:
        return NumericText(value) if isinstance(value, str) else value


class Chapter(IPyNbFile):
    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.skip_compare += ("stderr", "image/svg+xml")

    def setup(self) -> None:
        with patch.dict(os.environ, ENVIRONMENT):  # for the kernel only, not for the other tests of this process
            super().setup()
        client = self.kernel.kc

        # Without a history IPython does not see that a line ends in ";", and shows a result that nobody stored.
        def execute(source: str, allow_stdin: bool | None = None) -> str:
            return client.execute(source, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)

        self.kernel.execute_cell_input = execute

    def collect(self) -> Iterator[ChapterCell]:
        for cell in super().collect():
            yield ChapterCell.from_parent(
                self, name=cell.name, cell_num=cell.cell_num, cell=cell.cell, options=cell.options
            )


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Iterator[None]:
    """Where nbval would compare strings, put the numeric comparison."""
    collectors = yield
    return [
        Chapter.from_parent(parent, path=file_path) if isinstance(collector, IPyNbFile) else collector
        for collector in collectors
    ]
