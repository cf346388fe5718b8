"""Windows of runs with simulated times: what live workers would measure, against the rule."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drlpp.costs.analytic_model import predict
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.placement.measurement import Measurement
from drlpp.runtime.ipc.protocol import RunResult
from drlpp.runtime.session.windows import measurement_of
from drlpp.schedule.analysis.window import Window
from drlpp.schedule.schedule import Schedule
from drlpp.simulator import Simulation
from drlpp.simulator.playing.events import play
from drlpp.simulator.playing.finite_run import plan_for, timeline_of
from drlpp.specs.cluster import Cluster
from drlpp.timeline.timeline import TimedAction
from tests.support.strategies.simulations import simulations


def measured(timeline: tuple[TimedAction, ...], schedule: Schedule, window: Window) -> Measurement:
    results = {
        worker: RunResult(
            times=[(timed.start, timed.end) for timed in timeline if timed.worker == worker],
            processor_seconds=[0.0] * len(actions),
            losses={},
            scores={},
            peak_memory_bytes=0,
            bytes_sent=0,
        )
        for worker, actions in schedule.actions.items()
    }
    return measurement_of(schedule, results, window)


@given(simulations(), st.integers(1, 12))
@settings(max_examples=60)
def test_no_window_of_a_run_is_faster_than_the_rule(
    case: tuple[Profile, Cluster, Simulation], minibatches: int
) -> None:
    """Nor a short one, in which fast stages may run ahead."""
    profile, cluster, found = case
    window = Window.plan(found.pipeline, minibatches, found.method)
    # Otherwise some replicas have a minibatch less in it than others.
    assume(all(window.length % len(stage) == 0 for stage in found.pipeline.stages))
    program = plan_for(found.pipeline, found.method, window).program
    schedule = found.method.schedule_for(found.pipeline, window.minibatches)
    costs = found.costs_of(program)
    timeline = timeline_of(schedule, program, play(program, costs), costs)
    least = predict(Workload.of(profile, found.method), cluster, found.placement)
    seconds = measured(timeline, schedule, window).seconds_per_minibatch
    assert seconds >= least.seconds_per_minibatch * (1 - 1e-9)


@given(simulations())
@settings(max_examples=40)
def test_the_simulator_says_what_its_own_run_would_measure(
    case: tuple[Profile, Cluster, Simulation],
) -> None:
    _, _, found = case
    run = measured(found.timeline, found.schedule, found.window)
    assert run.seconds_per_minibatch == pytest.approx(found.seconds_per_minibatch)
