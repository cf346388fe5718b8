"""The fastest of several calls."""

from __future__ import annotations

import time
from collections.abc import Callable


def fastest_seconds(call: Callable[[], object], least_seconds: float) -> float:
    """Return processor seconds of the fastest call: the others were disturbed.

    Args:
        call: what is timed, twice at least.
        least_seconds: that all calls together take.
    """
    times: list[float] = []
    while sum(times) < least_seconds or len(times) < 2:
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return min(times)
