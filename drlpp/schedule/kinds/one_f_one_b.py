"""Asynchronous 1F1B, with replicated stages 1F1B-RR (pipedream §3.2).

What alternates are the parts of minibatches. A minibatch of M microbatches takes M forwards and M
backwards, and its update follows the last of them; the next minibatch is on its way by then. So
fewer updates come between a forward and its backward. Of four stages the first, with M = 4 and
M = 1::

    F0.0 F0.1 F0.2 F0.3 B0.0 F1.0 B0.1 F1.1 B0.2 F1.2 B0.3 U1 F1.3 B1.0 F2.0 B1.1 F2.1 B1.2 ...
    F0   F1   F2   F3   B0   U1   F4   B1   U2   F5   B2   U3 F6   B3   U4   F7   B4   U5   ...

Replicas take turns by microbatches, not by minibatches: as many minibatches pass between a forward
and its backward, but an update needs fewer of them (docs/methods.md).
"""

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
    takes_microbatches=True,
    takes_in_flight_per_link=True,
)
