"""The one kind of table that programs print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table


def table_of(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None
) -> Table:
    """Make a table.

    Args:
        columns: their heads. A head that begins with ``>`` is of numbers, on the right and on one
            line; one that begins with ``=`` is of words on one line.
        rows: a text for each column.
        title: above it.
    """
    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        is_number = column.startswith(">")
        table.add_column(
            column.lstrip(">="),
            justify="right" if is_number else "left",
            no_wrap=column[:1] in (">", "="),
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    return table
