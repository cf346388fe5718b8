"""Lines are broken between words, where what they stand in ends."""

from __future__ import annotations

import io
from itertools import pairwise

from rich.table import Table

from drlpp.cli.program_console import ProgramConsole


def _printed(renderable: object) -> list[str]:
    file = io.StringIO()
    ProgramConsole(width=40, file=file).print(renderable)
    return file.getvalue().splitlines()


def test_a_cell_is_filled_to_its_end() -> None:
    words = [f"operator-{number:02}," for number in range(12)]
    table = Table("number", "operators")
    table.add_row("0", " ".join(words))
    cells = [line.split("│")[2].strip() for line in _printed(table) if line.startswith("│")]
    assert " ".join(cells).split() == words
    room = max(map(len, cells))
    for cell, following in pairwise(cells):
        assert len(f"{cell} {following.split()[0]}") > room


def test_a_number_stays_with_its_unit_in_a_cell() -> None:
    table = Table("what", width=20)
    table.add_row("it takes some 1 ms")
    assert any("1 ms" in line for line in _printed(table))
