"""ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2023, figure 3).

1F1B with a flush, whose backwards come in two halves: gradients of inputs at once, since an earlier
stage waits for them, and gradients of weights later, where a worker would wait otherwise. A stage
owes as many of the latter as the first stage has more microbatches in flight than it, so that every
stage holds the activations of as many microbatches as the first one of 1F1B. Of four stages::

    stage 0   F0 F1 F2 F3 .. .. .. I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 ...
    stage 1      F0 F1 F2 .. .. I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 ...
    stage 2         F0 F1 .. I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 ...
    stage 3            F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 ...

With passes of F, I and W seconds, P stages wait (P − 1)(F + I − W) for an update, where 1F1B waits
(P − 1)(F + I + W): a third of it if all three are equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from drlpp.schedule.actions import BackwardInput, BackwardWeight, Computation, MicrobatchId
from drlpp.schedule.kinds.alternating import alternate
from drlpp.schedule.kinds.kind import ScheduleKind, Share


def _order(share: Share) -> Iterator[Computation]:
    for parts, update in share.updates():
        owed: deque[MicrobatchId] = deque()
        for part, step in zip(parts, alternate(parts, share.in_flight), strict=True):
            yield from step[:-1]
            yield BackwardInput(*part)
            owed.append(part)
            if len(owed) > share.most_in_flight - share.in_flight:
                yield BackwardWeight(*owed.popleft())
        for part in owed:
            yield BackwardWeight(*part)
        yield update


ZERO_BUBBLE_H1 = ScheduleKind(
    name="zb-h1",
    order=_order,
    flushes=True,
    splits_backward=True,
)
