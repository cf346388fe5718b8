"""One backward after the other, and as many forwards before each as may be in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drlpp.schedule.actions import Backward, Computation, Forward, MicrobatchId
from drlpp.schedule.kinds.kind import Share


def alternate(parts: Sequence[MicrobatchId], most_in_flight: int) -> Iterator[list[Computation]]:
    """Yield steps that end with one backward each.

    At most ``most_in_flight`` parts are in flight.
    """
    forwarded = 0
    for turn, part in enumerate(parts):
        step: list[Computation] = []
        while forwarded < min(turn + most_in_flight, len(parts)):
            step.append(Forward(*parts[forwarded]))
            forwarded += 1
        step.append(Backward(*part))
        yield step


def flushed(share: Share, most_in_flight: int | None = None) -> Iterator[Computation]:
    """Yield the parts of every update in alternation, then the update.

    Without a limit all parts are in flight.
    """
    for parts, update in share.updates():
        for step in alternate(parts, most_in_flight or len(parts)):
            yield from step
        yield update
