"""Measuring a placement on a session's workers, whatever becomes of them."""

from __future__ import annotations

import pickle
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle
import torch

from drlpp.errors import CannotStart, HostLost, ModelError, RunFailure, StorageFailure, WorkerLost
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import (
    LOST_TWICE,
    FailedMeasurement,
    LinkUsage,
    Measurement,
    Outcome,
    WorkerUsage,
    is_steady,
)
from drlpp.runtime.deploying.deployment import RunOptions
from drlpp.runtime.ipc.protocol import (
    Command,
    ParallelTraining,
    ParallelWork,
    Release,
    Route,
    RunResult,
    TimeLink,
    TrainParallel,
)
from drlpp.schedule.analysis.window import Window, completion_times, update_times
from drlpp.schedule.kinds.alternating import ONE_F_ONE_B
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import TimedAction
from drlpp.schedule.weight_policies import SYNC

if TYPE_CHECKING:
    from drlpp.runtime.session.session import ClusterSession
    from drlpp.runtime.session.worker_group import WorkerGroup

_MOST_RUNS = 3
"""Of a pipeline that does not get steady."""

_LINK_REPEATS = 3

_FEWEST_MINIBATCHES, _LEAST_SECONDS = 20, 1.0
"""Of a part of a training that tells how long workers take: in less, chance has too large a say."""


def measured_parallel(
    session: ClusterSession, training: ParallelTraining, ranks: Sequence[int], minibatches: int
) -> Outcome:
    """Return what :meth:`ClusterSession.measure_parallel` says."""
    window = window_of_whole(minibatches, training.method, training.every)
    task = session.captured.task_with_loss

    def once() -> Measurement:
        again = [(task.inputs, task.targets)] * window.minibatches
        found = train_in_parallel(session, training, ranks, ParallelWork(task, again))
        ends = zip(*([end for _, end in found[rank].times] for rank in ranks), strict=True)
        marks = window.marks([max(together) for together in ends])
        return measurement_of_whole(
            marks, window, {rank: found[rank].peak_memory_bytes for rank in ranks}
        )

    return tried(session, f"{training.way} on {len(ranks)} workers", once)


def train_in_parallel(
    session: ClusterSession, training: ParallelTraining, ranks: Sequence[int], work: ParallelWork
) -> dict[int, RunResult]:
    """Have torch's own data parallelism do its work on some workers; the others are idle."""
    _start_workers(session)

    def write(path: Path) -> None:
        try:
            # With what cannot be imported.
            torch.save(work, path, cloudpickle)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ModelError(f"the model cannot be sent to other processes: {error}") from None

    file = session.publish(session.new_name("work"), write)
    command = TrainParallel(training, file, session.new_group(training.way, ranks))
    idle = session.stages.keys() - set(ranks)
    session.stages = {}
    commands: dict[int, Command] = dict.fromkeys(idle, Release())
    commands |= dict.fromkeys(ranks, command)
    try:
        answers = session.execute(commands)
    finally:
        session.remove_file(file)
    return {rank: answers[rank] for rank in ranks}


def window_of_whole(minibatches: int, method: Method, together: int = 1) -> Window:
    """Return the window of a training that is no pipeline, in rounds of so many updates."""
    options = {"schedule": ONE_F_ONE_B.name, "accumulate": method.accumulate * together}
    return Window.plan(Pipeline.straight(1), minibatches, choose_method(SYNC.name, options, method))


def measurement_of_whole(
    marks: Sequence[float], window: Window, peak_memory_bytes: Mapping[int, int]
) -> Measurement:
    """Return the measurement of such a training by the begin of its window and its steps' ends.

    Memory is that of every worker.
    """
    seconds = marks[-1] - marks[0]
    steps = [(end - begin) / window.step for begin, end in pairwise(marks)]
    return Measurement(
        seconds_per_minibatch=seconds / window.length,
        median_seconds=statistics.median(steps),
        standard_deviation_seconds=statistics.stdev(steps) if len(steps) > 1 else 0.0,
        minibatches=window.length,
        steadiness=1.0,
        workers=tuple(
            WorkerUsage(
                worker=worker,
                stage=0,
                busy_seconds=seconds,
                waiting_seconds=0.0,
                peak_memory_bytes=bytes_,
            )
            for worker, bytes_ in peak_memory_bytes.items()
        ),
    )


def tried(session: ClusterSession, what: str, once: Callable[[], Measurement]) -> Outcome:
    """Measure once, and once more if a worker is lost; return why it failed."""

    def unstopped() -> Measurement:
        stops = session.stops
        found = once()
        # Else the program was stopped (Ctrl-Z), which was measured too.
        return found if stops == session.stops else once()

    try:
        try:
            return unstopped()
        except WorkerLost as failure:
            lost = str(failure)
            session.note(f"{lost}; {what} is measured again")
        return unstopped()
    except (HostLost, StorageFailure):
        # No placement is to blame, and none will run.
        raise
    except WorkerLost as failure:
        reason = f"lost a worker twice: {lost}; when measured again, {failure}"
        return FailedMeasurement(failure=LOST_TWICE, reason=reason)
    except RunFailure as failure:
        return FailedMeasurement(failure=failure.kind, reason=str(failure))


def measure_once(session: ClusterSession, plan: ExecutionPlan, minibatches: int) -> Measurement:
    """Deploy a placement and run it until it is steady, then time its messages."""
    _start_workers(session)
    deployment = session.deploy(plan)
    window = plan.window(minibatches)
    if any(session.memory_bytes):
        # Counting memory takes time, and two updates.
        two = 2 * plan.method.minibatches_together(plan.pipeline)
        window = replace(window, warm_up=max(window.warm_up, two))
    options = RunOptions(order=session.example_order)
    for runs_left in reversed(range(_MOST_RUNS)):
        schedule, results = session.run(deployment, window.minibatches, options)
        found = measurement_of(schedule, results, window)
        if not runs_left or is_steady(found.steadiness, found.minibatches):
            break
        window = window.later()
    links = time_ways(session, plan.pipeline, results)
    session.timeline, session.window = timeline_of(schedule, results), window
    return found.model_copy(update={"links": links})


def _start_workers(session: ClusterSession) -> None:
    """Start workers where that is necessary, again if one ends at once, until one ends twice.

    Raises:
        CannotStart: that one, for which no placement is to blame.
    """
    ended: frozenset[int] = frozenset()
    while True:
        try:
            return session.prepare()
        except WorkerLost as failure:
            # Of several that end at once only the first to be noticed is named.
            if twice := ended & failure.workers:
                raise CannotStart(f"{failure} whenever it is started", twice) from None
            if not failure.workers:
                raise
            ended |= failure.workers
            session.note(f"{failure} when it was started; it is started again")


def measurement_of(
    schedule: Schedule, results: Mapping[int, RunResult], window: Window
) -> Measurement:
    """Return the measurement that the window of a run gives."""
    ends = {worker: [end for _, end in result.times] for worker, result in results.items()}
    marks = window.marks(completion_times(schedule, ends))
    paces = []
    for times in update_times(schedule, ends).values():
        own = window.marks(times)
        paces.append(own[-1] - own[0])
    # From one completion to another it may be less: who is last at the end may have been ahead of
    # the others at the begin, and took longer than that.
    slowest = max(paces)
    steadiness = max(min(paces) / slowest, 0.0)
    workers = tuple(
        _usage(worker, schedule, result, marks[0], marks[-1])
        for worker, result in sorted(results.items())
    )
    return measurement_of_whole(marks, window, {}).model_copy(
        update={
            "seconds_per_minibatch": slowest / window.length,
            "steadiness": steadiness,
            "workers": workers,
        }
    )


def _usage(
    worker: int, schedule: Schedule, result: RunResult, begin: float, end: float
) -> WorkerUsage:
    seconds = {True: 0.0, False: 0.0}
    for action, times in zip(schedule.actions[worker], result.times, strict=True):
        # Of an action that the window's edge cuts, the part inside.
        seconds[action.span.computes] += max(0.0, min(times[1], end) - max(times[0], begin))
    return WorkerUsage(
        worker=worker,
        stage=schedule.pipeline.stage_of(worker),
        busy_seconds=seconds[True],
        waiting_seconds=seconds[False],
        peak_memory_bytes=result.peak_memory_bytes,
    )


@dataclass
class Stretch:
    """What workers did in runs, one behind another, of ``minibatches`` in ``seconds``."""

    minibatches: int = 0
    seconds: float = 0.0
    workers: dict[int, WorkerUsage] = field(default_factory=dict)

    def add(self, schedule: Schedule, results: Mapping[int, RunResult]) -> None:
        """Take in a run."""
        moments = [*chain(*chain(*(result.times for result in results.values())))]
        begin, end = min(moments), max(moments)
        self.minibatches += schedule.minibatches
        self.seconds += end - begin
        for worker, result in results.items():
            now = _usage(worker, schedule, result, begin, end)
            if before := self.workers.get(worker):
                summed = ("busy_seconds", "waiting_seconds")
                both = {name: getattr(before, name) + getattr(now, name) for name in summed}
                both["peak_memory_bytes"] = max(before.peak_memory_bytes, now.peak_memory_bytes)
                now = now.model_copy(update=both)
            self.workers[worker] = now


class RunMeter:
    """Measures an epoch part by part, while it is trained run by run.

    Attributes:
        whole: all runs so far.
        results: of the last one.
        skipped: updates of every worker.
        latest: the last part; None where it is too short yet, and the next one begins with it.
    """

    def __init__(self) -> None:
        self.whole, self._part = Stretch(), Stretch()
        self.results: Mapping[int, RunResult] = {}
        self.skipped = Counter[int]()
        self.latest: Measurement | None = None

    def add(self, schedule: Schedule, results: Mapping[int, RunResult]) -> None:
        """Take in what workers have done in a run."""
        self.whole.add(schedule, results)
        self._part.add(schedule, results)
        self.results = results
        self.skipped.update({worker: one.skipped_updates for worker, one in results.items()})

    def measure(self) -> None:
        """Measure what was added since the last measurement."""
        part, self.latest = self._part, None
        if (count := part.minibatches) >= _FEWEST_MINIBATCHES and part.seconds >= _LEAST_SECONDS:
            whole = measurement_of_whole([0.0, part.seconds], Window(0, count, 0, count), {})
            workers = tuple(part.workers.values())
            self.latest, self._part = whole.model_copy(update={"workers": workers}), Stretch()


def timeline_of(schedule: Schedule, results: Mapping[int, RunResult]) -> tuple[TimedAction, ...]:
    """Return all actions of a run as it was performed, in seconds since its first began."""
    start = min((begin for result in results.values() for begin, _ in result.times[:1]), default=0)
    timeline = []
    for worker, actions in schedule.actions.items():
        for action, (begin, end) in zip(actions, results[worker].times, strict=True):
            timeline.append(TimedAction(worker, action, begin - start, end - start))
    return tuple(timeline)


def time_ways(
    workers: WorkerGroup, pipeline: Pipeline, results: Mapping[int, RunResult]
) -> tuple[LinkUsage, ...]:
    """Time the largest message of a run on every way that one took, one way at a time."""
    found = []
    directed, routes = workers.transport(pipeline.workers).directed, set(pipeline.routes)
    for (sender, receiver), bytes_ in largest_messages(pipeline, results):
        size = max(bytes_, 1)
        # Replicas have no links of their own where every way has its group.
        linked = not directed or {(sender, receiver), (receiver, sender)} <= routes
        group = None if linked else workers.new_link(sender, receiver)
        command = TimeLink(sender, receiver, (size,), _LINK_REPEATS, group)
        times = workers.execute({sender: command, receiver: command})[sender]
        found.append(
            LinkUsage(sender=sender, receiver=receiver, bytes_=bytes_, seconds=times[size])
        )
    return tuple(found)


def largest_messages(
    pipeline: Pipeline, results: Mapping[int, RunResult]
) -> list[tuple[Route, int]]:
    """Return the ways that messages took in a run, with the bytes of the largest on each.

    In a ring of m replicas a message is the m-th part of a bucket of gradients, from every replica
    to the next.
    """
    found: list[tuple[Route, int]] = []
    for sender, result in sorted(results.items()):
        found += (((sender, to), bytes_) for to, bytes_ in sorted(result.message_bytes.items()))
    for ring in pipeline.stages:
        bytes_ = max(results[worker].bucket_bytes for worker in ring)
        if len(ring) > 1 and bytes_:
            found += ((way, -(-bytes_ // len(ring))) for way in pairwise((*ring, ring[0])))
    return found
