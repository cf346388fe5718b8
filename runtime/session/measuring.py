"""Measuring a placement on a session's workers, whatever becomes of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from drlpp.errors import CannotStart, HostLost, RunFailure, StorageFailure, WorkerLost
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import (
    LOST_TWICE,
    FailedMeasurement,
    Measurement,
    Outcome,
    is_steady,
)
from drlpp.runtime.deploying.run_commands import RunOptions
from drlpp.runtime.session.cluster_discovery import time_ways
from drlpp.runtime.session.measured_runs import measurement_of, timeline_of

if TYPE_CHECKING:
    from drlpp.runtime.session.session import ClusterSession

_MOST_RUNS = 3
"""Of a pipeline that does not get steady."""


def measured(session: ClusterSession, plan: ExecutionPlan, minibatches: int) -> Outcome:
    """Return what :meth:`ClusterSession.measure` says."""
    try:
        try:
            return _measure_once(session, plan, minibatches)
        except WorkerLost as failure:
            lost = str(failure)
            configuration = plan.placement.configuration
            session.note(f"{lost}; its placement, {configuration}, is measured again")
        return _measure_once(session, plan, minibatches)
    except (HostLost, StorageFailure):
        # No placement is to blame, and none will run.
        raise
    except WorkerLost as failure:
        reason = f"lost a worker twice: {lost}; when measured again, {failure}"
        return FailedMeasurement(failure=LOST_TWICE, reason=reason)
    except RunFailure as failure:
        return FailedMeasurement(failure=failure.kind, reason=str(failure))


def _measure_once(session: ClusterSession, plan: ExecutionPlan, minibatches: int) -> Measurement:
    _start_workers(session)
    workers = session.worker_group
    deployment = session.deploy(plan)
    window = plan.window(minibatches)
    options = RunOptions(order=workers.example_order)
    for runs_left in reversed(range(_MOST_RUNS)):
        stops = workers.present.stops
        schedule, results = session.run(deployment, window.minibatches, options)
        if stops != workers.present.stops:
            # The program was stopped (Ctrl-Z), which was measured too.
            schedule, results = session.run(deployment, window.minibatches, options)
        found = measurement_of(schedule, results, window)
        if not runs_left or is_steady(found.steadiness, found.minibatches):
            break
        window = window.later()
    links = time_ways(workers, plan.pipeline, results)
    session.timeline, session.window = timeline_of(schedule, results), window
    return found.model_copy(update={"links": links})


def _start_workers(session: ClusterSession) -> None:
    """Start workers where that is necessary, again if one ends at once, until one ends twice.

    Raises:
        CannotStart: that one, for which no placement is to blame.
    """
    ended: Counter[int] = Counter()
    while True:
        try:
            return session.worker_group.prepare()
        except WorkerLost as failure:
            # Of several that end at once only the first to be noticed is named.
            ended.update(failure.workers)
            twice = [worker for worker in failure.workers if ended[worker] > 1]
            if twice:
                raise CannotStart(f"{failure} whenever it is started", twice) from None
            if not failure.workers:
                raise
            session.note(f"{failure} when it was started; it is started again")
