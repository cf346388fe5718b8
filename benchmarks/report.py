"""Tables of results: for a terminal, and in a Markdown page between two marks.

A table is a frame of texts: each row is made as a dictionary, whose keys are the headings.
"""

from __future__ import annotations

from pathlib import Path

from pandas import DataFrame
from rich.box import SIMPLE_HEAD
from rich.table import Table

from drlpp.errors import InvalidInput
from drlpp.io.files import write_atomically


def markdown(frame: DataFrame) -> str:
    """Return a table for a page, unpadded: a figure that changes changes its own line only."""
    lines = [frame.columns, ["---"] * len(frame.columns), *frame.itertuples(index=False)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def terminal(frame: DataFrame, title: str | None = None, *, names: int = 1) -> Table:
    """Return a table for a terminal; all but the first ``names`` columns are aligned right."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for number, heading in enumerate(frame.columns):
        table.add_column(heading, justify="left" if number < names else "right")
    for row in frame.itertuples(index=False):
        table.add_row(*row)
    return table


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
