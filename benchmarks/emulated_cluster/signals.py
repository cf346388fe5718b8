"""Signals that end a program, which then cleans up behind itself."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the block like Ctrl-C, so that it cleans up."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGINT, *ending):
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    ending = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, *ending)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
