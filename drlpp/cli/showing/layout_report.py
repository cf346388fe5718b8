"""What is said of a user's own layout: how much slower it is, and which stage waits."""

from __future__ import annotations

from collections.abc import Sequence

from drlpp.io.formatting import predicted_text
from drlpp.placement.measurement import WorkerUsage
from drlpp.racing.contenders import YOURS

_EQUAL = 0.005


def layout_line(
    name: str,
    seconds: float,
    best: float,
    workers: Sequence[WorkerUsage],
    error_bar: float = 0.0,
) -> str:
    """Return a sentence such as ``your layout …: 14% slower: stage 3 waits 31% of the time``.

    Args:
        name: the layout as it was given.
        seconds: that a minibatch takes with it.
        best: that one takes with what it is compared with.
        workers: of the layout; replicas of a stage count by their mean.
        error_bar: of seconds that are simulated, as a share of them.
    """
    difference = seconds / best - 1 if best else 0.0
    if abs(difference) < _EQUAL:
        verdict = "as fast"
    else:
        verdict = f"{abs(difference):.0%} {'slower' if difference > 0 else 'faster'}"
    shares: dict[int, list[float]] = {}
    for usage in workers:
        whole = usage.busy_seconds + usage.waiting_seconds
        shares.setdefault(usage.stage, []).append(usage.waiting_seconds / whole if whole else 0.0)
    waiting = {stage: sum(found) / len(found) for stage, found in shares.items()}
    idle = max(waiting, key=lambda stage: waiting[stage])
    busiest = min(waiting, key=lambda stage: waiting[stage])
    why = f"stage {idle} waits {waiting[idle]:.0%} of the time"
    if len(waiting) > 1:
        why += f", stage {busiest} {waiting[busiest]:.0%}"
    return f"{YOURS} {name}: {predicted_text(seconds, error_bar)} per minibatch, {verdict}: {why}"
