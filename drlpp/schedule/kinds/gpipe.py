"""GPipe (in pipedream §2.2); with one microbatch, naive model parallelism."""

from __future__ import annotations

from drlpp.schedule.kinds.alternation import flushed
from drlpp.schedule.kinds.kind import ScheduleKind

GPIPE = ScheduleKind(
    name="gpipe",
    summary="all forwards of an update's microbatches, then all backwards, then the update",
    order=flushed,
    flushes=True,
    takes_microbatches=True,
)
