"""What pages tell to run is taken by its program, also where it is not run by any test."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from drlpp.cli.main import app
from tests.support.programs.documented_commands import ROOT, blocks_of

PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("benchmarks/**/*.md")),
)
HISTORY = "CHANGELOG.md"

_PROGRAM = re.compile(
    r"(?:^|(?<=\s))(?:[\w./]+/)?"
    r"(?:(?P<drlpp>drlpp)|python (?:-m (?P<module>(?:benchmarks|drlpp)[.\w]*)|"
    r"(?P<script>train_agent\.py)))"
    r"(?= |$)"
)
_ENDS = {"|", "||", "&&", ";", "&", ">", "2>&1", "done", "do"}


@dataclass(frozen=True)
class CommandLine:
    """A command of a page: where it stands, its program, and its words."""

    place: str
    program: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place}: {' '.join([self.program, *self.words])}"


def command_lines(page: Path) -> Iterator[CommandLine]:
    """Yield the commands of this project in the fences of a page, those that are not run too."""
    for block in blocks_of(str(page.relative_to(ROOT))):
        for line in block.text.replace("\\\n", "  ").splitlines():
            yield from _in_line(block.place, line)


def _in_line(place: str, line: str) -> Iterator[CommandLine]:
    if not re.match(
        r"\s*(?:\$ |sudo |until |while |[A-Z_]+=\S+ )*\S*(?:drlpp|python)(?: |$)", line
    ):
        return
    for found in _PROGRAM.finditer(line.partition(" #")[0]):
        program = found["drlpp"] or found["module"] or found["script"]
        words = []
        for word in shlex.split(line.partition(" #")[0][found.end() :]):
            if word in _ENDS:
                break
            words.append(word.rstrip(";"))
        yield CommandLine(place, program, tuple(words))


def parse(line: CommandLine) -> None:
    """Parse the words of a command as its program does.

    Raises:
        Exception: of typer's, the program does not take them.
    """
    command, words = _program(line.program), list(line.words)
    if "--config" in words:
        # It is read while options are parsed.
        at = words.index("--config")
        del words[at : at + 2]
    while True:
        context = command.make_context(line.program, words)
        if not hasattr(command, "resolve_command"):
            return
        words = [*context._protected_args, *context.args]
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found


@cache
def _program(name: str) -> Any:
    """Return the command of a program, by the name with which a page starts it."""
    if name in ("drlpp", "train_agent.py"):
        command = typer.main.get_command(app)
        return command if name == "drlpp" else command.commands["learn"]
    with _caught() as apps:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    (found,) = apps
    return typer.main.get_command(found)


@contextmanager
def _caught() -> Iterator[list[typer.Typer]]:
    """Give the program that would have run."""
    apps: list[typer.Typer] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drlpp.cli.command_line.run_program", lambda app, name: apps.append(app))
        patch.setattr(sys, "path", [str(ROOT), *sys.path])
        yield apps


COMMANDS = [line for page in PAGES if page.name != HISTORY for line in command_lines(page)]


@pytest.mark.parametrize("line", COMMANDS, ids=str)
def test_a_documented_command_is_taken(line: CommandLine) -> None:
    parse(line)
