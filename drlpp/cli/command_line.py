"""What every program shares: its console, what it says while it works, and how it ends."""

from __future__ import annotations

import atexit
import gc
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from drlpp.cli.entry import INTERRUPTED
from drlpp.errors import DRLPPError, HostLost, InvalidInput, ModelNote, RunFailure
from drlpp.io.progress_lines import ProgressLines, said_while_it_lasts

quiet: ContextVar[bool] = ContextVar("quiet", default=False)
"""Whether the command that runs prints errors only."""

_UNITS = "GB/s|MB/s|kB/s|bytes/s|bytes|GB|MB|kB|ms|µs|ns|s|Mbit/s|Gbit/s|minibatches/s|M"
_WITH_UNIT = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![\w]))|(?<=\bM) (?== \d)|(?<=\bM =) (?=\d)")
_GLUE = "\ue000"
"""A character of no alphabet, which stands for a space while lines are broken."""


def wrapped(text: str, width: int) -> str:
    """Return a text with its lines broken where they are longer than ``width``.

    No line ends between a number and its unit. A word that is longer stays whole, as do paths.
    """
    glued = _WITH_UNIT.sub(_GLUE, text)
    lines = [
        textwrap.fill(
            line,
            max(width, 1),
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
            subsequent_indent=" " * (len(line) - len(line.lstrip())),
        )
        for line in glued.split("\n")
    ]
    return "\n".join(lines).replace(_GLUE, " ")


class ProgramConsole(Console):
    """Rich's console, which breaks lines as :func:`wrapped` does."""

    _soft = False

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; with ``soft_wrap`` lines are left to the terminal."""
        self._soft = bool(options.get("soft_wrap"))
        super().print(*objects, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return what a renderable is made of; text in a cell is broken where the cell ends."""
        room = options or self.options
        if isinstance(renderable, str) and not self._soft and not room.no_wrap:
            renderable = wrapped(renderable, room.max_width)
        return super().render(renderable, options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text with its lines broken."""
        whole = text if self._soft else wrapped(text, self.width)
        return super().render_str(whole, **options)


def build_console() -> Console:
    """Make the console of a program.

    It is as wide as the terminal, and wide enough for tables elsewhere. Text is text: what looks
    like rich's markup may stand in a file.
    """
    width = None if sys.stdout.isatty() else 110
    return ProgramConsole(width=width, markup=False, emoji=False)


@contextmanager
def shown(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Show what the block does, and what it says by the function that it is lent.

    On a terminal that is one line that changes; elsewhere lines, no two within a few seconds.
    """
    if console.is_terminal:
        with console.status(what) as status:
            yield status.update
        return
    lines = ProgressLines(lambda line: console.print(line, soft_wrap=True))
    lines(what)
    yield lines
    lines.close()


def said_if_long(what: str) -> AbstractContextManager[None]:
    """Say on standard error what the block does while it lasts, where there is no terminal."""
    if sys.stdout.isatty() or quiet.get():
        return nullcontext()
    return said_while_it_lasts(partial(print, file=sys.stderr, flush=True), what)


def end_with_report(console: Console, folder: Path) -> None:
    """Write the page of a run that has ended, and print its path."""
    from drlpp.report.page import write_report

    try:
        path = write_report(folder)
    except Exception as error:
        # The run itself is done; nothing about a page may turn that into a failure.
        console.print(f"no report could be written: {error}", soft_wrap=True)
    else:
        console.print(f"report: {path}", soft_wrap=True)


@contextmanager
def resume_hint_on_interrupt(how: str) -> Iterator[None]:
    """Print ``how`` after Ctrl-C in the block; it tells how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        print(how, file=sys.stderr)
        raise


@contextmanager
def resumable(what: str) -> Iterator[None]:
    """Say that ``--resume`` continues a run after Ctrl-C, or after the loss of a host."""
    how = f"the same command with --resume continues the {what}"
    with resume_hint_on_interrupt(how):
        try:
            yield
        except HostLost as lost:
            message = f"{lost}; all that was measured is kept: when the host is back, {how}"
            raise type(lost)(message, lost.workers) from lost


def run_program(program: Callable[[], object], name: str) -> NoReturn:
    """Run a command line and end with it; errors that we foresee are one line.

    The exit code says which kind: 2 for what the user gave, 1 for what happened while running, 130
    for Ctrl-C.
    """
    # At its end Python would look for cycles among all that torch has, for up to a second.
    atexit.register(gc.freeze)
    warnings.showwarning = _printing_notes(warnings.showwarning)
    code = 0
    try:
        program()
    except SystemExit as ended:
        # That of typer, which makes one of Ctrl-C too.
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except InvalidInput as error:
        code = _tell(name, error, 2)
    except RunFailure as error:
        code = _tell(name, error, 1)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        print(f"{name}: interrupted", file=sys.stderr)
    sys.exit(code)


def _printing_notes(show: Callable[..., None]) -> Callable[..., None]:
    """Print notes about the model as notes, and other warnings as Python does."""

    def showwarning(
        message: Warning | str, category: type[Warning], *place: Any, **options: Any
    ) -> None:
        if issubclass(category, ModelNote):
            print(f"note: {message}", file=sys.stderr)
        else:
            show(message, category, *place, **options)

    return showwarning


def _tell(name: str, error: DRLPPError, code: int) -> int:
    text = f"{name}: error: {error}"
    if sys.stderr.isatty():
        text = wrapped(text, shutil.get_terminal_size().columns)
    print(text, file=sys.stderr)
    return code
