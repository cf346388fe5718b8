"""What holds for every trace."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from drlpp.schedule.timeline import KINDS

_LABELS = [kind.label for kind in KINDS]


def checked(trace: dict[str, Any]) -> dict[int, dict[str, float]]:
    """Check a trace, and give for every worker the seconds of each kind inside of the window."""
    events = trace["traceEvents"]
    begin, end = (event["ts"] for event in events if event["ph"] == "i")
    assert begin < end
    rows = defaultdict(list)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["pid"] in processes
            assert event["name"].split()[0] == event["cat"]
            rows[event["pid"], event["tid"]].append(event)
    assert rows.keys() == names.keys()
    seconds: dict[int, dict[str, float]] = {}
    for row, mine in rows.items():
        worker = int(names[row].split()[-1])
        mine.sort(key=lambda event: event["ts"])
        # One thing after the other, and no gap: what is not work is waiting.
        for one, other in pairwise(mine):
            assert one["ts"] + one["dur"] == pytest.approx(other["ts"], abs=2e-3)
        seconds[worker] = dict.fromkeys(_LABELS, 0.0)
        for event in mine:
            inside = min(event["ts"] + event["dur"], end) - max(event["ts"], begin)
            seconds[worker][event["cat"]] += max(0.0, inside) / 1e6
    return seconds
