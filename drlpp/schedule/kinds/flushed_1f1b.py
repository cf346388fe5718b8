"""1F1B with a flush before every update: PipeDream-Flush, DAPPLE.

As many microbatches are in flight as minibatches are asynchronously, where GPipe has all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from drlpp.schedule.actions import Computation
from drlpp.schedule.kinds.alternation import flushed
from drlpp.schedule.kinds.kind import ScheduleKind, Share


def _order(share: Share) -> Iterator[Computation]:
    return flushed(share, share.in_flight)


FLUSHED_1F1B = ScheduleKind(
    name="1f1b-flush",
    summary="the microbatches of an update in 1F1B order, then the update",
    order=_order,
    flushes=True,
    takes_microbatches=True,
)
