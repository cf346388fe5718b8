"""All kinds of schedules, by name."""

from __future__ import annotations

from drlpp.schedule.kinds.alternating import FLUSHED_1F1B, GPIPE, ONE_F_ONE_B
from drlpp.schedule.kinds.forward_only import FORWARD_ONLY
from drlpp.schedule.kinds.kind import ScheduleKind
from drlpp.schedule.kinds.zero_bubble_h1 import ZERO_BUBBLE_H1
from drlpp.schedule.kinds.zero_bubble_v import ZERO_BUBBLE_V

SCHEDULE_KINDS: dict[str, ScheduleKind] = {
    kind.name: kind
    for kind in (ONE_F_ONE_B, FLUSHED_1F1B, GPIPE, ZERO_BUBBLE_H1, ZERO_BUBBLE_V, FORWARD_ONLY)
}


def training_kinds() -> list[str]:
    """Return the names of the kinds that a method may have."""
    return [kind.name for kind in SCHEDULE_KINDS.values() if kind.trains]
