"""Searches that do not need each other's results, on all cores of this machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")

_MOST_PROCESSES = 8
"""Each takes some hundred megabytes; more than about six searches at once do not help."""

_IDLE_SECONDS = 60.0
"""After which a process ends that has nothing to do."""

_LOOKING_SECONDS = 1.0
"""How often a process looks whether the one that asks is still there."""


def side_by_side(
    function: Callable[..., Result], tasks: Sequence[tuple[object, ...]], *, worth_it: bool
) -> list[Result]:
    """Return what a function gives for each of some arguments, in their order.

    Args:
        function: found by its name in a module, and its result depends on its arguments alone:
            they are copied to another process.
        tasks: the arguments.
        worth_it: whether it takes so long that it is done in processes, one for each core; they
            import some modules when they start, and end when nobody asks for long.
    """
    if not worth_it or len(tasks) < 2:
        return [function(*task) for task in tasks]
    # Where no processes are needed, neither is this.
    from loky import BrokenProcessPool, cpu_count, get_reusable_executor

    if (processes := min(cpu_count(), len(tasks), _MOST_PROCESSES)) == 1:
        return [function(*task) for task in tasks]
    pool = get_reusable_executor(
        max_workers=processes,
        timeout=_IDLE_SECONDS,
        initializer=_begin,
        initargs=(os.getpid(),),
    )
    try:
        return list(pool.map(function, *zip(*tasks, strict=True)))
    except BrokenProcessPool:
        # One was ended from outside, as where memory is short: this process can do it, too.
        pool.shutdown(kill_workers=True)
        return [function(*task) for task in tasks]
    except BaseException:
        # Nobody asks for the others any more.
        pool.shutdown(kill_workers=True)
        raise


def _begin(asking: int) -> None:
    """Begin a process: it leaves Ctrl-C to the one that asks, and does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with, args=(asking,), daemon=True).start()


def _end_with(asking: int) -> None:
    while os.getppid() == asking:
        time.sleep(_LOOKING_SECONDS)
    os._exit(1)
