"""From times of actions to seconds per minibatch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.runtime.ipc.protocol import RunResult
from drlpp.runtime.session.windows import measurement_of
from drlpp.schedule.actions import Action, Backward, Forward
from drlpp.schedule.analysis.window import Window, completion_times
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule, build_schedule
from drlpp.timeline.timeline import play


def played(schedule: Schedule, forward: dict[int, float]) -> dict[int, RunResult]:
    """The run of a schedule whose stages take ``forward`` seconds, and twice that backward."""

    def seconds(worker: int, action: Action) -> float:
        one = forward[schedule.pipeline.stage_of(worker)]
        return (
            one if isinstance(action, Forward) else 2 * one if isinstance(action, Backward) else 0
        )

    # play() sorts by start, but a worker's actions keep their order.
    timed = play(schedule, seconds)
    return {
        worker: RunResult(
            times=[(t.start, t.end) for t in timed if t.worker == worker],
            # As of an accelerator that is emulated at half the processor's speed.
            processor_seconds=[(t.end - t.start) / 2 for t in timed if t.worker == worker],
            losses={},
            scores={},
            peak_memory_bytes=0,
            bytes_sent=0,
        )
        for worker in schedule.actions
    }


def measure(pipeline: Pipeline, forward: dict[int, float], method: Method, minibatches: int):  # type: ignore
    window = Window.plan(pipeline, minibatches, method)
    schedule = build_schedule(pipeline, window.minibatches, method.schedule, method.microbatches)
    return measurement_of(schedule, played(schedule, forward), window)


def test_a_straight_pipeline_takes_its_slowest_stage() -> None:
    found = measure(Pipeline.straight(1, 1, 1), {0: 1.0, 1: 2.0, 2: 1.5}, Method(), 10)
    assert found.seconds_per_minibatch == pytest.approx(6.0)
    assert found.median_seconds == pytest.approx(6.0)
    assert found.standard_deviation_seconds == pytest.approx(0.0)
    busy = {usage.stage: usage.busy_seconds for usage in found.workers}
    assert busy == pytest.approx({0: 30.0, 1: 60.0, 2: 45.0})
    computing = {usage.stage: usage.processor_seconds for usage in found.workers}
    assert computing == pytest.approx({0: 15.0, 1: 30.0, 2: 22.5})


def test_replicas_share_the_minibatches() -> None:
    found = measure(Pipeline.straight(3, 1), {0: 3.0, 1: 1.0}, Method(), 10)
    assert found.minibatches == 12, "whole rounds of three"
    assert found.seconds_per_minibatch == pytest.approx(3.0)


def test_a_window_ends_before_the_first_stage_runs_out_of_forwards() -> None:
    # Stage 0 is three forwards ahead, though minibatches complete in pairs.
    found = measure(Pipeline.straight(1, 1, 2), {0: 3.0, 1: 1.0, 2: 1.0}, Method(), 10)
    assert found.seconds_per_minibatch == pytest.approx(9.0)


def test_data_parallelism_divides_by_the_workers() -> None:
    found = measure(Pipeline.straight(4), {0: 1.0}, Method(policy="sync"), 8)
    assert found.seconds_per_minibatch == pytest.approx(3 / 4)


def test_gpipe_pays_for_its_bubble() -> None:
    # M microbatches through P stages: (M + P − 1) times the three units of each.
    method = Method(schedule="gpipe", policy="sync", microbatches=4)
    found = measure(Pipeline.straight(1, 1, 1), dict.fromkeys(range(3), 1.0), method, 5)
    assert found.seconds_per_minibatch == pytest.approx(3 * (4 + 3 - 1))


@pytest.mark.parametrize("microbatches", [1, 2, 3, 8])
@pytest.mark.parametrize("replicas", [1, 2, 4, 7])
def test_before_a_window_every_replica_has_computed(replicas: int, microbatches: int) -> None:
    """A GPU's first passes take many times as long as later ones."""
    method = Method(schedule="gpipe", policy="sync", microbatches=microbatches)
    pipeline = Pipeline.straight(1, replicas)
    window = Window.plan(pipeline, 10, method)
    schedule = build_schedule(pipeline, window.minibatches, method.schedule, microbatches)
    for actions in schedule.actions.values():
        first = next(action for action in actions if isinstance(action, Forward))
        assert first.part[0] < window.warm_up


@given(replicas=st.lists(st.integers(1, 4), min_size=1, max_size=4), minibatches=st.integers(1, 40))
def test_a_window_is_whole_rounds_of_updates(replicas: list[int], minibatches: int) -> None:
    pipeline = Pipeline.straight(*replicas)
    window = Window.plan(pipeline, minibatches, Method())
    assert window.length >= minibatches
    assert window.warm_up % window.step == window.length % window.step == 0
    schedule = build_schedule(pipeline, window.minibatches)
    results = played(schedule, dict.fromkeys(range(4), 1.0))
    ends = {worker: [end for _, end in result.times] for worker, result in results.items()}
    complete = completion_times(schedule, ends)
    assert complete == sorted(complete)
    assert complete[0] > 0


@pytest.mark.parametrize("replicas", [(3,), (4, 1), (5, 4, 3), (1, 7)])
@pytest.mark.parametrize("minibatches", [1, 2, 3])
def test_a_short_window_has_an_update_of_every_stage(
    replicas: tuple[int, ...], minibatches: int
) -> None:
    """Inside of one update nothing would be measured."""
    pipeline = Pipeline.straight(*replicas)
    window = Window.plan(pipeline, minibatches, Method())
    schedule = build_schedule(pipeline, window.minibatches)
    forward = dict.fromkeys(range(len(replicas)), 1.0)
    measured = measurement_of(schedule, played(schedule, forward), window)
    assert measured.seconds_per_minibatch > 0
