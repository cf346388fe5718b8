"""What pages tell to run is taken by its program, also where it is not run by any test."""

from __future__ import annotations

import pytest

from tests.support.programs.documented_options import (
    HISTORY,
    PAGES,
    CommandLine,
    command_lines,
    parse,
)

COMMANDS = [line for page in PAGES if page.name != HISTORY for line in command_lines(page)]


@pytest.mark.parametrize("line", COMMANDS, ids=str)
def test_a_documented_command_is_taken(line: CommandLine) -> None:
    parse(line)
