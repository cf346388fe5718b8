"""Measured rows, and what follows for more than was measured: along a line, and as text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from pandas import DataFrame

Row = TypeVar("Row", bound=Any)
"""A dataclass of numbers."""


def extrapolated_to(rows: Sequence[Row], what: str, number: int, same: Collection[str]) -> Row:
    """Return a row for more: along the line through the two largest that were measured.

    Args:
        rows: at least two.
        what: the field that there is more of.
        number: of it.
        same: fields that stay as they are.
    """
    first, second = sorted(rows, key=lambda row: getattr(row, what))[-2:]
    share = (number - getattr(first, what)) / (getattr(second, what) - getattr(first, what))
    values = {
        field.name: getattr(first, field.name)
        + share * (getattr(second, field.name) - getattr(first, field.name))
        for field in fields(second)
        if field.name not in same
    }
    found: Row = replace(second, **{**values, what: number})
    return found


def table_of_columns(
    rows: Sequence[Row],
    beyond: Sequence[Row],
    what: str,
    texts: Mapping[str, tuple[str, Callable[[float], str]]],
    unknown: Collection[str],
) -> DataFrame:
    """Return measured rows and extrapolated ones as text, a column for each.

    Args:
        rows: measured.
        beyond: extrapolated.
        what: the field of the headings.
        texts: of the other fields: a title, and how to write a value.
        unknown: fields that are not known of the extrapolated ones.
    """
    lines = []
    for name, (title, text) in texts.items():
        line = {what: title}
        line |= {f"{getattr(row, what):,}": text(getattr(row, name)) for row in rows}
        for row in beyond:
            shown = "–" if name in unknown else text(getattr(row, name))
            line[f"{getattr(row, what):,}, extrapolated"] = shown
        lines.append(line)
    return DataFrame(lines)
