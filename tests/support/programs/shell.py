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


def finish(program: Callable[[], None], name: str, *arguments: object) -> Finished:
    """Run the main function of a program."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            program()
    return Finished(int(stop.value.code or 0), out.getvalue(), err.getvalue())


class Shell:
    """Runs a command line, and remembers what it printed."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._capture = capture

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        self._patch.setattr(sys, "argv", ["drlpp", *map(str, arguments)])
        self._capture.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        printed = self._capture.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    def json(self, *arguments: object) -> Any:
        """What a command printed with ``--json``."""
        code, out, err = self(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)
