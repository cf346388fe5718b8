"""What every program shares: its console, what it says while it works, and how it ends."""

from __future__ import annotations

import atexit
import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from rich.console import Console

from drlpp.cli.entry import INTERRUPTED
from drlpp.errors import HostLost, InvalidInput, ModelNote, RunFailure

console = Console(
    width=None if sys.stdout.isatty() else 110, markup=False, emoji=False, soft_wrap=True
)
"""It is as wide as the terminal, and wide enough for tables elsewhere; lines of text are left to
the terminal. Text is text: what looks like rich's markup may stand in a file."""


@contextmanager
def resumable(what: str, *, measures: bool = True) -> Iterator[None]:
    """Say that ``--resume`` continues a run after Ctrl-C, or after a host is lost that measured."""
    how = f"the same command with --resume continues the {what}"
    try:
        yield
    except KeyboardInterrupt:
        print(how, file=sys.stderr)
        raise
    except HostLost as lost:
        if not measures:
            raise
        message = f"{lost}; all that was measured is kept: when the host is back, {how}"
        raise type(lost)(message, lost.workers) from lost


def run_program(program: Callable[[], object], name: str) -> NoReturn:
    """Run a command line and end with it; errors that we foresee are one line.

    The exit code says which kind: 2 for what the user gave, 1 for what happened while running, 130
    for Ctrl-C.
    """
    # At its end Python would look for cycles among all that torch has, for up to a second.
    atexit.register(gc.freeze)
    warnings.formatwarning = _formatted
    code, error = 0, None
    try:
        program()
    except SystemExit as ended:
        # That of typer, which makes one of Ctrl-C too.
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except (InvalidInput, RunFailure) as failed:
        code, error = 2 if isinstance(failed, InvalidInput) else 1, failed
    except KeyboardInterrupt:
        code = INTERRUPTED
    if error is not None:
        print(f"{name}: error: {error}", file=sys.stderr)
    if code == INTERRUPTED:
        print(f"{name}: interrupted", file=sys.stderr)
    sys.exit(code)


def _formatted(message: Warning | str, category: type[Warning], *place: Any, **_: Any) -> str:
    """Return the one line of a warning; a note about the model needs no place in code."""
    if issubclass(category, ModelNote):
        return f"note: {message}\n"
    return f"warning: {message} ({place[0]}, line {place[1]})\n"
