"""A measurement is of every stage, of whole rounds, after the pipeline filled and before it drains.

Held against the definition, written down here once more: a minibatch is complete when every worker
has made the update that contains it.
"""

import itertools
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drlpp.placement.measurement import Measurement, is_steady
from drlpp.runtime.ipc.protocol import RunResult
from drlpp.runtime.session.measuring import measurement_of
from drlpp.schedule.actions import Action, Backward, Forward, Update
from drlpp.schedule.analysis.window import Window
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import TimedAction, play

unhurried = settings(max_examples=40)
SYNC = [
    Method(schedule=kind, policy="sync", microbatches=2, accumulate=accumulate)
    for kind, accumulate in [("gpipe", 1), ("gpipe", 3), ("1f1b-flush", 1), ("1f1b-flush", 2)]
]
ASYNC = [
    Method(accumulate=accumulate, in_flight_per_link=depth)
    for accumulate, depth in [(1, 0), (1, 2), (2, 0), (3, 1)]
] + [Method(microbatches=4), Method(microbatches=3, accumulate=2, in_flight_per_link=1)]


@dataclass(frozen=True)
class Run:
    """A run with a window in it, and how long its actions took."""

    window: Window
    schedule: Schedule
    results: dict[int, RunResult]

    @property
    def measured(self) -> Measurement:
        return measurement_of(self.schedule, self.results, self.window)

    def update_of(self, worker: int, minibatch: int) -> int:
        """Where in its actions a worker makes the update that contains a minibatch."""
        return next(
            place
            for place, action in enumerate(self.schedule.actions[worker])
            if isinstance(action, Update) and action.through > minibatch
        )

    def updated(self, worker: int, minibatch: int) -> float:
        """When a worker had made the update that contains it."""
        return self.results[worker].times[self.update_of(worker, minibatch)][1]

    def complete(self, minibatch: int) -> float:
        """When all updates had been made that contain it."""
        return max(self.updated(worker, minibatch) for worker in self.results)

    @property
    def last_of_warm_up(self) -> int:
        return self.window.warm_up - 1

    @property
    def last(self) -> int:
        return self.window.warm_up + self.window.length - 1


def run_of(
    pipeline: Pipeline, method: Method, minibatches: int, seconds: Callable[[int, Action], float]
) -> Run:
    """A run whose actions take ``seconds`` on their workers."""
    window = Window.plan(pipeline, minibatches, method)
    schedule = method.schedule_for(pipeline, window.minibatches)
    return Run(window, schedule, results_of(play(schedule, seconds), schedule))


def results_of(timeline: Sequence[TimedAction], schedule: Schedule) -> dict[int, RunResult]:
    """What workers say."""
    found = {}
    for worker in schedule.actions:
        own = [timed for timed in timeline if timed.worker == worker]
        times = [(timed.start, timed.end) for timed in own]
        found[worker] = RunResult(times, {}, {}, 0, 0)
    return found


def pipelines() -> st.SearchStrategy[Pipeline]:
    replicas = st.lists(st.integers(1, 3), min_size=1, max_size=4)
    return replicas.map(lambda replicas: Pipeline.straight(*replicas))


@st.composite
def runs(draw: st.DrawFn, methods: Sequence[Method] = (*ASYNC, *SYNC)) -> Run:
    """Whose every action takes another time."""
    method = draw(st.sampled_from(methods))
    pipeline = draw(pipelines())
    if method.schedule != "1f1b":
        pipeline = Pipeline.straight(*(1 for _ in pipeline.stages))
    chance = random.Random(draw(st.integers(0, 2**32)))
    minibatches = draw(st.integers(1, 12))
    return run_of(pipeline, method, minibatches, lambda worker, action: chance.uniform(0.1, 3))


@unhurried
@given(runs())
def test_a_measurement_is_what_its_definition_says(run: Run) -> None:
    found, window = run.measured, run.window
    begin, end = run.complete(run.last_of_warm_up), run.complete(run.last)
    assert found.minibatches == window.length
    paces = [
        run.updated(worker, run.last) - run.updated(worker, run.last_of_warm_up)
        for worker in run.results
    ]
    assert found.steadiness == pytest.approx(min(paces) / max(paces))
    # What counts is the slowest worker.
    assert found.seconds_per_minibatch == pytest.approx(max(paces) / window.length)
    assert max(paces) >= (end - begin) * (1 - 1e-9)
    marks = [run.complete(m) for m in range(run.last_of_warm_up, run.last + 1, window.step)]
    steps = [(later - earlier) / window.step for earlier, later in itertools.pairwise(marks)]
    assert found.median_seconds == pytest.approx(statistics.median(steps))
    if len(steps) > 1:
        assert found.standard_deviation_seconds == pytest.approx(statistics.stdev(steps))
    # Also of actions that the window's edge cuts.
    for usage in found.workers:
        times = run.results[usage.worker].times
        inside = sum(max(0.0, min(times[1], end) - max(times[0], begin)) for times in times)
        assert usage.busy_seconds + usage.waiting_seconds == pytest.approx(inside)


@unhurried
@given(pipelines(), st.sampled_from([*ASYNC, *SYNC]), st.integers(1, 40))
def test_a_window_is_the_fewest_whole_rounds_and_a_later_one_begins_at_its_end(
    pipeline: Pipeline, method: Method, minibatches: int
) -> None:
    window = Window.plan(pipeline, minibatches, method)
    assert window.later().warm_up == window.warm_up + window.length
    assert window.length - window.step < minibatches <= window.length, "and no more than that"
    assert all(part % window.step == 0 for part in (window.warm_up, window.length))
    assert window.step == method.minibatches_together(pipeline)


@unhurried
@given(runs(ASYNC))
def test_a_window_begins_when_the_pipeline_is_full(run: Run) -> None:
    """From then on every round of a worker is the one before, some minibatches later."""
    # Minibatches go round the replicas in turns, which may take several updates of them.
    assume(all(run.window.step % len(workers) == 0 for workers in run.schedule.pipeline.stages))
    for worker, actions in run.schedule.actions.items():
        ends = [
            run.update_of(worker, m)
            for m in range(run.last_of_warm_up, run.last + 1, run.window.step)
        ]
        passes = [
            [
                (type(action), action.minibatch - number * run.window.step, action.microbatch)
                for action in actions[begin + 1 : end + 1]
                if isinstance(action, Forward | Backward)
            ]
            for number, (begin, end) in enumerate(itertools.pairwise(ends))
        ]
        assert all(one == passes[0] for one in passes)


@unhurried
@given(st.sampled_from(ASYNC), pipelines(), st.integers(1, 12))
def test_a_window_ends_before_the_pipeline_drains(
    method: Method, pipeline: Pipeline, minibatches: int
) -> None:
    """Up to its end a worker does what it does in a run that is longer."""
    run = run_of(pipeline, method, minibatches, lambda worker, action: 1)
    longer = method.schedule_for(pipeline, run.window.minibatches + 5 * run.window.step)
    for worker, actions in run.schedule.actions.items():
        until = run.update_of(worker, run.last) + 1
        assert tuple(actions[:until]) == tuple(longer.actions[worker][:until])


def test_a_worker_that_gets_ahead_is_not_steady() -> None:
    """Without gradients that come back, the first stage makes two minibatches for one."""
    pipeline = Pipeline.connecting([(0,), (1,)], [(0, 1, False)])
    found = run_of(pipeline, Method(), 30, lambda worker, action: 1.0 + worker).measured
    assert found.steadiness == pytest.approx(0.5)
    assert found.seconds_per_minibatch == pytest.approx(2 * 3.0)
    steady = [is_steady(*given) for given in [(None, 30), (0.96, 30), (0.94, 30), (0.98, 240)]]
    assert steady == [True, True, False, False]
    assert not is_steady(found.steadiness, found.minibatches)


@pytest.mark.parametrize(
    ("replicas", "forward", "method", "minibatches", "seconds"),
    [
        ((1, 1, 1), (1.0, 2.0, 1.5), Method(), 10, 6.0),
        ((3, 1), (3.0, 1.0), Method(), 10, 3.0),
        # Stage 0 is three forwards ahead, though minibatches complete in pairs.
        ((1, 1, 2), (3.0, 1.0, 1.0), Method(), 10, 9.0),
        ((4,), (1.0,), Method(policy="sync"), 8, 3 / 4),
        # M microbatches through P stages: (M + P − 1) times the three units of each.
        ((1, 1, 1), (1.0,) * 3, SYNC[0].model_copy(update={"microbatches": 4}), 5, 18.0),
        # Inside of one update nothing would be measured.
        ((5, 4, 3), (1.0,) * 3, Method(), 1, 3 / 5),
    ],
)
def test_seconds_of_pipelines(
    replicas: tuple[int, ...],
    forward: tuple[float, ...],
    method: Method,
    minibatches: int,
    seconds: float,
) -> None:
    """Backwards take twice as long as forwards."""
    pipeline = Pipeline.straight(*replicas)

    def of_action(worker: int, action: Action) -> float:
        one = forward[pipeline.stage_of(worker)]
        return {Forward: one, Backward: 2 * one}.get(type(action), 0.0)

    found = run_of(pipeline, method, minibatches, of_action).measured
    least, most = (seconds, seconds) if minibatches > 1 else (seconds, 3.0)
    assert least * (1 - 1e-9) <= found.seconds_per_minibatch <= most * (1 + 1e-9)
    if replicas == (1, 1, 1) and method.schedule == "1f1b":
        busy = [usage.busy_seconds for usage in found.workers]
        assert busy == pytest.approx([30.0, 60.0, 45.0])
