"""Progress and remaining time: a line that changes, or lines for a file, a pipe or a batch job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.text import Text


class ProgressLines:
    """A printer of lines that leaves out those that come too soon, except for the last of all.

    Args:
        write: prints a line, and flushes.
        seconds_between: the least time between two lines.
        clock: gives seconds.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        seconds_between: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._seconds_between = seconds_between
        self._clock = clock
        self._written: float | None = None
        self._left_out: str | None = None

    def __call__(self, line: str) -> None:
        """Print ``line``, or leave it out."""
        now = self._clock()
        if self._written is not None and now - self._written < self._seconds_between:
            self._left_out = line
            return
        self._written = now
        self._left_out = None
        self._write(line)

    def close(self) -> None:
        """Print the last line if it was left out."""
        if self._left_out is not None:
            self._write(self._left_out)
            self._left_out = None


@contextmanager
def shown(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Show what the block does and says: a changing line on a terminal, elsewhere a few lines."""
    if console.is_terminal:
        with console.status(Text(what)) as status:
            yield lambda line: status.update(Text(line))
        return
    # Console.print flushes.
    lines = ProgressLines(lambda line: console.print(Text(line), soft_wrap=True))
    lines(what)
    try:
        yield lines
    finally:
        lines.close()


class TimeLeft:
    """The time until something is done, if the rest goes as fast as since the first look."""

    _begin: tuple[float, float] | None = None

    def text(self, done: float, total: float) -> str:
        """Return a time like ``0:02:05`` when this much is done, ``–`` if nothing is known yet."""
        now = time.monotonic()
        if self._begin is None:
            self._begin = now, done
        begin, before = self._begin
        if done <= before:
            return "–"
        return clock_text((now - begin) / (done - before) * max(total - done, 0))


def clock_text(seconds: float) -> str:
    """Return a time as ``0:02:05``."""
    return str(timedelta(seconds=round(seconds)))
