"""What pages tell to run is taken by its program, also where it is not run by any test."""

from __future__ import annotations

import pytest

from tests.support.programs.documented_options import (
    HISTORY,
    PAGES,
    ROOT,
    CommandLine,
    command_lines,
    parse,
)

COMMANDS = [line for page in PAGES if page.name != HISTORY for line in command_lines(page)]


def test_commands_are_found_wherever_they_stand() -> None:
    found = {(line.place.partition(":")[0], line.program) for line in COMMANDS}
    assert ("README.md", "train_agent.py") in found
    assert ("docs/race.md", "drlpp") in found
    page = "benchmarks/emulated_cluster/README.md"
    assert (page, "benchmarks.emulated_cluster") in found, "behind sudo"
    assert ("benchmarks/README.md", "benchmarks") in found
    assert len(COMMANDS) > 50
    assert ROOT / "README.md" in PAGES


@pytest.mark.parametrize("line", COMMANDS, ids=str)
def test_a_documented_command_is_taken(line: CommandLine) -> None:
    parse(line)


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "alexnet", "--accelerators", "4"),
        ("trian",),
        ("learn", "--budget", "many"),
        ("train",),
    ],
)
def test_what_is_not_taken_is_noticed(words: tuple[str, ...]) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|unknown|valid|missing"):
        parse(CommandLine("here.md:1", "drlpp", words))
