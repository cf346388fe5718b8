"""Results in a Markdown document: tables, written between two marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from drlpp.errors import InvalidInput
from drlpp.io.documents import write_atomically


def write_between(document: Path, begin: str, end: str, text: str) -> None:
    """Put ``text`` between the marks ``begin`` and ``end`` in ``document``.

    Raises:
        InvalidInput: if it is not a file with both marks.
    """
    content = document.read_text(encoding="utf-8") if document.is_file() else ""
    before, found_begin, rest = content.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise InvalidInput(
            f"{document}: expected a Markdown file with the lines '{begin}' and '{end}', between "
            "which the results are written"
        )
    write_atomically(document, f"{before}{begin}\n\n{text}\n{end}{after}".encode())


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
