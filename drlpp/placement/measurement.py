"""The result of running a placement: a measurement, or a failed one with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import ConfigDict, Field

from drlpp.errors import WorkerLost
from drlpp.io.documents import Record
from drlpp.io.quantities import Count, MeasuredSeconds, Seconds


class WorkerUsage(Record):
    """How one worker spent the measured window, and what it needed.

    ``busy_seconds`` is computing (forward, backward, prediction, update), ``waiting_seconds``
    waiting for messages and all-reduces; both are sums over the window.
    ``peak_memory_bytes`` is the largest resident size of the process, or on a GPU, and where memory
    is limited, the most that its tensors took.
    """

    # Earlier ones say what computing took of the processor, and what was sent, too.
    model_config = ConfigDict(extra="ignore")

    worker: Count
    stage: Count
    busy_seconds: MeasuredSeconds
    waiting_seconds: MeasuredSeconds
    peak_memory_bytes: Count


class LinkUsage(Record):
    """What a message took from one worker to another that it exchanges tensors or gradients with.

    ``seconds`` is the way there alone, for ``bytes_``, with nothing else on the link. ``bytes_`` is
    the largest message between the two; in a ring of m replicas, where every replica sends to the
    next, the m-th part of the largest bucket of gradients.
    """

    sender: Count
    receiver: Count
    bytes_: Count
    seconds: MeasuredSeconds


class Measurement(Record):
    """Seconds per minibatch of a placement in steady state, over ``minibatches`` minibatches.

    A minibatch is complete when every stage has performed the update that contains it.
    ``seconds_per_minibatch`` is what the measured window's minibatches took the slowest worker,
    divided by their number; the median and the standard deviation are over the updates in it
    (divided by the minibatches of an update). ``steadiness`` is what they took the fastest worker
    over what they took the slowest: 1 in steady state, less while work piles up between them; None
    in files from before it was measured. ``cut_short``: it was so slow that it
    was not run as often as others are.
    """

    outcome: Literal["measured"] = "measured"
    seconds_per_minibatch: float = Field(gt=0, le=1e9)
    median_seconds: Seconds
    standard_deviation_seconds: Seconds
    minibatches: Count
    steadiness: float | None = Field(default=None, ge=0, le=1)
    workers: tuple[WorkerUsage, ...] = ()
    links: tuple[LinkUsage, ...] = ()
    cut_short: bool = False


def is_steady(steadiness: float | None, minibatches: int) -> bool:
    """Return whether work did not pile up in a window of so many minibatches.

    Workers may be ahead by a minibatch and a half more at its end than at its begin, or by 1% of
    the window: so much comes and goes where their times vary.
    """
    return steadiness is None or (1 - steadiness) * minibatches <= max(1.5, 0.01 * minibatches)


LOST_TWICE = f"{WorkerLost.kind} twice"
"""The failure of a placement that lost a worker, and another one when it was measured again."""


class FailedMeasurement(Record):
    """A placement that could not be measured: ``failure`` is the kind, ``reason`` a sentence."""

    outcome: Literal["failed"] = "failed"
    failure: str
    reason: str


Outcome = Measurement | FailedMeasurement


def median_measurement(runs: Sequence[Measurement]) -> Measurement:
    """Return the run in the middle of some by seconds per minibatch, the slower of two."""
    ordered = sorted(runs, key=lambda run: run.seconds_per_minibatch)
    return ordered[len(ordered) // 2]
