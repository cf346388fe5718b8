"""Evaluation: forward passes only."""

from __future__ import annotations

from collections.abc import Iterator

from drlpp.schedule.actions import Computation, Forward
from drlpp.schedule.kinds.kind import ScheduleKind, Share


def _order(share: Share) -> Iterator[Computation]:
    return (Forward(*part) for part in share.parts())


FORWARD_ONLY = ScheduleKind(
    name="forward",
    summary="forward passes only, for evaluation",
    order=_order,
    flushes=False,
    trains=False,
)
