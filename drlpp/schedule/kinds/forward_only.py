"""Evaluation: forward passes only."""

from __future__ import annotations

from collections.abc import Iterator

from drlpp.schedule.actions import Computation, Forward
from drlpp.schedule.kinds.kind import ScheduleKind, Share


def _order(share: Share) -> Iterator[Computation]:
    parts = share.parts()
    # On the way back a part comes to a worker as many passes later as there are stages in between.
    between = share.stages - 2 * share.stage - 2
    for turn in range(len(parts) + between * (share.stages_held > 1)):
        if turn < len(parts):
            yield Forward(*parts[turn])
        if share.stages_held > 1 and turn >= between:
            yield Forward(*parts[turn - between], chunk=1)


FORWARD_ONLY = ScheduleKind(
    name="forward",
    order=_order,
    flushes=False,
    trains=False,
)
