"""What counts as one record of a text: a story, a line, a paragraph, a function, a review, a whole file.

The model sees records one by one, never across the border of two. Blank records are left out, and so are the line
ends around a record, which belong to the file it stands in.
"""

import ast
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from .tokens import DataError

SEPARATOR = "<|endoftext|>"  # a line that is exactly this ends a story; anywhere else it is text
RECORDS = ("story", "line", "paragraph", "function", "review", "file")
READ_BYTES = 1 << 24
ENDS = {  # a line that ends a story also ends the paragraph and is not one of the lines
    "story": re.compile(r"^<\|endoftext\|>$", re.MULTILINE),
    "paragraph": re.compile(r"^<\|endoftext\|>$|\n[ \t]*\n", re.MULTILINE),
    "line": re.compile(r"^<\|endoftext\|>$|\n", re.MULTILINE),
}


def text_records(path: Path, record: str) -> Iterator[str]:
    """The records of a text file. DataError for text that is not UTF-8, or has no records of this kind."""
    if record == "function":
        return functions("".join(read(path)), path)
    if record == "file":
        whole = "".join(read(path))
        return iter([whole] if whole.strip() else [])
    if record not in ENDS:
        raise DataError(f"{path} has no records of kind '{record}': use --record story, paragraph, line or file.")
    return pieces(read(path), record)


def table_records(path: Path, column: str, record: str, row_is: str) -> Iterator[str]:
    """The records in a text column of a parquet file, whose rows are records of kind `row_is`.

    DataError if pyarrow is missing, if the file is damaged or lacks the column, or for another kind of record."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"Reading {path.name} needs pyarrow: pip install 'minihaares[hub]'.") from None
    if record not in (row_is, "line", "paragraph"):
        raise DataError(
            f"A row of {path.name} is one {row_is}: use --record {row_is}, paragraph or line, not {record}."
        )
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            names = table.schema_arrow.names
            if column not in names:
                raise DataError(f"{path} has no column '{column}' but {', '.join(names)}: it is another data set.")
            for part in table.iter_batches(columns=[column], batch_size=1024):
                for row in part.column(0).to_pylist():
                    text = unix_newlines(row or "")
                    yield from _clean([text]) if record == row_is else pieces([text], record)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read as a parquet file ({reason}): fetch it again.") from None


def read(path: Path) -> Iterator[str]:
    """The text of a file in blocks of whole lines, without a byte order mark, every line end a bare newline."""
    offset = 0
    with path.open("rb") as handle:
        while data := handle.read(READ_BYTES) + handle.readline():
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path} is not UTF-8 text (byte {offset + error.start} is 0x{data[error.start]:02x}): save it "
                    "as UTF-8, or choose another file."
                ) from None
            yield unix_newlines(text.removeprefix("\ufeff") if offset == 0 else text)
            offset += len(data)


def unix_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def pieces(blocks: Iterable[str], record: str) -> Iterator[str]:
    """Cut running text, given in blocks of whole lines, into stories, paragraphs or lines."""
    rest = ""
    for block in blocks:
        *done, rest = ENDS[record].split(rest + block)
        yield from _clean(done)
    yield from _clean([rest])


def _clean(texts: Iterable[str]) -> Iterator[str]:
    return (text.strip("\n") for text in texts if text.strip())


def functions(text: str, path: Path) -> Iterator[str]:
    """The functions and methods of a Python file, decorators and all, moved to the left margin.

    A function inside a function is a part of it. DataError if the file is not Python."""
    if path.suffix != ".py":
        raise DataError(f"Functions are cut out of Python files, and {path} is none: use another --record.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in somebody else's code
            tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise DataError(f"{path} is not Python that this version can read ({error}): use --record file.") from None
    lines = text.split("\n")

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                yield textwrap.dedent("\n".join(lines[first - 1 : child.end_lineno]))
            elif isinstance(child, ast.stmt | ast.excepthandler):
                yield from walk(child)

    return walk(tree)


def has_separator(file: Path) -> bool:
    """Whether the first mebibyte of a file has a line that ends a story."""
    with file.open("rb") as handle:
        return re.search(rb"^<\|endoftext\|>\r?$", handle.read(1 << 20), re.MULTILINE) is not None
