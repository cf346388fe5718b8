"""The learning rate of every update of a stage, with PipeMare's rescheduling (T1)."""

from __future__ import annotations

from collections.abc import Sequence

from drlpp.schedule.actions import TiedUpdate, Update
from drlpp.schedule.analysis.weight_versions import steady_delay, tied_delay
from drlpp.schedule.method import Method
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.ties import Tie, update_of


def update_rates(
    schedule: Schedule,
    worker: int,
    method: Method,
    rates: Sequence[float],
    *,
    asynchronous_before: int = 0,
    tie: Tie | None = None,
) -> list[float]:
    """Return the learning rate of every update that ``worker`` makes in a run, in order.

    An update of several minibatches takes the rate of the last. T1 (pipemare eq. 4) divides the
    rate of stage i in step k by τ_i^(1 − min(k/K, 1)): while the model is young, by the stage's
    delay. Steps are counted in minibatches, so that stages with and without replicas anneal over
    the same data.

    Args:
        schedule: of the run.
        worker: whose updates.
        method: says whether there is T1, and its K.
        rates: the base learning rate for every minibatch of the run; what comes after the last
            has its rate.
        asynchronous_before: minibatches that were trained asynchronously before this run, k of
            its first.
        tie: whose weights are updated; None for those that only one stage holds.
    """
    found: list[float] = []
    anneals = method.annealing_minibatches > 0 and not schedule.flushes
    if anneals:
        pipeline = schedule.pipeline
        if tie is None:
            delay = 1 + steady_delay(pipeline, pipeline.stage_of(worker), method)
        else:
            delay = 1 + tied_delay(pipeline, tie, method)
    first = 0
    is_update = update_of(tie)
    for action in schedule.actions[worker]:
        if not isinstance(action, Update | TiedUpdate) or not is_update(action):
            continue
        rate = rates[min(action.through, len(rates)) - 1]
        if anneals:
            step = asynchronous_before + first
            rate /= delay ** (1 - min(step / method.annealing_minibatches, 1.0))
        found.append(rate)
        first = action.through
    return found
