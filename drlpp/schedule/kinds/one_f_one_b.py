"""Asynchronous 1F1B, with replicated stages 1F1B-RR (pipedream §3.2)."""

from __future__ import annotations

from collections.abc import Iterator

from drlpp.schedule.actions import Computation
from drlpp.schedule.kinds.alternation import alternate
from drlpp.schedule.kinds.kind import ScheduleKind, Share


def _order(share: Share) -> Iterator[Computation]:
    steps = alternate(share.parts(), share.in_flight)
    for parts, update in share.updates():
        for _ in parts:
            yield from next(steps)
        yield update


ONE_F_ONE_B = ScheduleKind(
    name="1f1b",
    summary="asynchronous: forwards and backwards alternate, and no stage waits for an update of "
    "another",
    order=_order,
    flushes=False,
    takes_in_flight_per_link=True,
)
