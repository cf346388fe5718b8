"""ZB-V (Qi et al., Pipeline Parallelism with Controllable Memory, 2024; ScheduleZBVZeroBubble).

Every worker holds two stages of a folded pipeline, the k-th from the beginning and the k-th from
the end, so that a microbatch's backward begins on the worker that its forward began on. Of two
workers, with a stroke for the second stage of each::

    worker 0   F0 F1 F2 F0' I0' W0' F1' I1' W1' F3 I0 W0 F2' I2' W2' F4 I1 W1 F3' I3' W3' I2 W2 ...
    worker 1   .. F0 F0' F1 F1' I0' W0' F2 I0 W0 F2' I1' W1' F3 I1 W1 F3' I2' W2' F4 I2 W2 F4' ...

If forwards and both halves of backwards take equally long and there are 2 P − 1 microbatches or
more, P workers wait in a whole run for P − 1 passes of a stage, and between two updates not at all.
Every worker holds the activations of 2 P microbatches of a stage: those of P, as the first worker
of 1F1B does, of two stages of half the size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from drlpp.schedule.actions import (
    BackwardInput,
    BackwardWeight,
    Computation,
    Forward,
)
from drlpp.schedule.kinds.kind import ScheduleKind, Share


def _order(share: Share) -> Iterator[Computation]:
    workers = share.stages // 2
    for parts, update in share.updates():
        # Drawn for as many parts as fill the pipeline; what is beyond the last is left out.
        for kind, chunk, number in _drawn(share.stage, workers, max(2 * workers - 1, len(parts))):
            if number < len(parts):
                yield kind(*parts[number], chunk=chunk)
        yield update


def _drawn(rank: int, workers: int, parts: int) -> Iterator[tuple[type, int, int]]:
    """Yield kind of pass, chunk, and number of the part."""
    made: Counter[tuple[type, int]] = Counter()

    def turn(kind: type, chunk: int) -> tuple[type, int, int]:
        made[kind, chunk] += 1
        return kind, chunk, made[kind, chunk] - 1

    for _ in range(2 * (workers - rank) - 1):
        yield turn(Forward, 0)
    for _ in range(rank):
        yield turn(Forward, 1)
        yield turn(Forward, 0)
    for _ in range(workers - rank):
        yield turn(Forward, 1)
        yield turn(BackwardInput, 1)
        yield turn(BackwardWeight, 1)
    while made[Forward, 1] < parts:
        yield turn(Forward, 0)
        for chunk in (0, 1):
            if chunk:
                yield turn(Forward, 1)
            yield turn(BackwardInput, chunk)
            yield turn(BackwardWeight, chunk)
    for _ in range(rank):
        yield turn(BackwardInput, 0)
        yield turn(BackwardInput, 1)
    for _ in range(workers - rank):
        yield turn(BackwardInput, 0)
        yield turn(BackwardWeight, 0)
    for chunk in (1, 0):
        while made[BackwardWeight, chunk] < parts:
            yield turn(BackwardWeight, chunk)


ZERO_BUBBLE_V = ScheduleKind(
    name="zb-v",
    order=_order,
    flushes=True,
    splits_backward=True,
    stages_held=2,
)
