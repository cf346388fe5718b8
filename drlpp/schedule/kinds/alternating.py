"""Forwards and backwards that alternate: asynchronous 1F1B, the same with a flush, and GPipe.

What alternates are the parts of minibatches. In asynchronous 1F1B (pipedream §3.2), with replicated
stages 1F1B-RR, a minibatch of M microbatches takes M forwards and M backwards, and its update
follows the last of them; the next minibatch is on its way by then. So fewer updates come between a
forward and its backward. Of four stages the first, with M = 4 and M = 1::

    F0.0 F0.1 F0.2 F0.3 B0.0 F1.0 B0.1 F1.1 B0.2 F1.2 B0.3 U1 F1.3 B1.0 F2.0 B1.1 F2.1 B1.2 ...
    F0   F1   F2   F3   B0   U1   F4   B1   U2   F5   B2   U3 F6   B3   U4   F7   B4   U5   ...

Replicas take turns by microbatches, not by minibatches: as many minibatches pass between a forward
and its backward, but an update needs fewer of them (docs/methods.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drlpp.schedule.actions import Backward, Computation, Forward, MicrobatchId
from drlpp.schedule.kinds.kind import ScheduleKind, Share


def alternate(parts: Sequence[MicrobatchId], most_in_flight: int) -> Iterator[list[Computation]]:
    """Yield steps that end with one backward each, with at most so many parts in flight."""
    forwarded = 0
    for turn, part in enumerate(parts):
        step: list[Computation] = []
        while forwarded < min(turn + most_in_flight, len(parts)):
            step.append(Forward(*parts[forwarded]))
            forwarded += 1
        step.append(Backward(*part))
        yield step


def _asynchronous(share: Share) -> Iterator[Computation]:
    steps = alternate(share.parts(), share.in_flight)
    for parts, update in share.updates():
        for _ in parts:
            yield from next(steps)
        yield update


def flushed(share: Share, most_in_flight: int | None = None) -> Iterator[Computation]:
    """Yield the parts of every update in alternation, all in flight if no limit is given."""
    for parts, update in share.updates():
        for step in alternate(parts, most_in_flight or len(parts)):
            yield from step
        yield update


ONE_F_ONE_B = ScheduleKind(
    name="1f1b",
    order=_asynchronous,
    flushes=False,
)

# PipeDream-Flush, DAPPLE: as many microbatches are in flight as minibatches are asynchronously.
FLUSHED_1F1B = ScheduleKind(
    name="1f1b-flush",
    order=lambda share: flushed(share, share.in_flight),
    flushes=True,
)

# In pipedream §2.2; with one microbatch, naive model parallelism.
GPIPE = ScheduleKind(
    name="gpipe",
    order=flushed,
    flushes=True,
)
