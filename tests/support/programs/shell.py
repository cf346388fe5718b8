"""Command lines as a user types them, run in this process, which has imported all of it already."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import pytest

from drlpp.cli.main import main


class Finished(NamedTuple):
    """How a program ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """What it printed, however lines are broken."""
        return " ".join(self.out.split())

    @property
    def refusal(self) -> str:
        """The one line that it ended with, instead of what it was asked for."""
        assert self.code == 2, self.err
        assert self.err.count("\n") == 1
        assert ": error: " in self.err
        return self.err


def finish(program: Callable[[], None], name: str, *arguments: object) -> Finished:
    """Run the main function of a program."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            program()
    return Finished(int(stop.value.code or 0), out.getvalue(), err.getvalue())


def drlpp(*arguments: object) -> Finished:
    """Run ``drlpp``."""
    return finish(main, "drlpp", *arguments)


def done(*arguments: object) -> Finished:
    """Run ``drlpp``, which has to end well."""
    finished = drlpp(*arguments)
    assert finished.code == 0, finished.err
    return finished


def as_json(*arguments: object) -> Any:
    """Return what ``drlpp`` prints with ``--json``."""
    return json.loads(done(*arguments, "--json").out)


def both(*arguments: object) -> tuple[Any, str]:
    """Return what ``drlpp`` prints with ``--json``, and the words that a reader gets meanwhile."""
    finished = done(*arguments, "--json")
    return json.loads(finished.out), " ".join(finished.err.split())
