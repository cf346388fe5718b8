"""A period is what the schedule does for ever: found early, and the same in any longer run."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec
from unittest import mock

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.costs.workload import Workload
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.simulator.playing import events
from drlpp.simulator.playing.endless import endless_program, round_of
from drlpp.simulator.playing.events import Play
from drlpp.simulator.playing.finite_run import FiniteRun
from drlpp.simulator.playing.program import TIED_UPDATE, Program
from drlpp.simulator.playing.shapes import program_of
from drlpp.simulator.simulation import Simulation, simulate
from drlpp.simulator.steady_state import MOST_MINIBATCHES, SteadyState
from tests.simulator.test_simulator_properties import METHODS, clusters, costed
from tests.support.simulated_chains import chain, fast_cluster, one_way, stages_of
from tests.support.strategies.graphs import placements, uneven


@st.composite
def simulations(draw: st.DrawFn) -> tuple[Simulation, SteadyState]:
    profile, cluster = draw(costed()), draw(clusters())
    # Times without a common divisor meet at no port at once.
    operators = [
        operator.model_copy(update={"forward_seconds": operator.forward_seconds * factor})
        for operator, factor in zip(
            profile.operators,
            draw(st.lists(st.floats(0.5, 2), min_size=len(profile.operators), max_size=99)),
            strict=False,
        )
    ]
    profile = profile.model_copy(update={"operators": tuple(operators)})
    placement = draw(placements(profile.graph, 4))
    chosen = draw(st.sampled_from([*METHODS, Method(in_flight_per_link=5)]))
    method = draw(uneven(chosen, len(placement.stages)))
    found = simulate(Workload.of(profile, method), cluster, placement, method, 6)
    assert isinstance(found.steady, SteadyState)
    return found, found.steady


@given(simulations())
@settings(max_examples=40)
def test_a_period_goes_on_for_ever(case: tuple[Simulation, SteadyState]) -> None:
    """Played for three periods more, everything happens as before, as much later."""
    found, steady = case
    if steady.steadiness < 1:
        return
    program, length = steady.endless, steady.end - steady.begin
    longer = Play(program.before, found.pricing.of(program.before), program)
    rounds = steady.end + 3 * length + program.rounds_in_flight + 3
    longer.play(rounds)
    compared = 0
    counts = zip(longer.ends, program.before.steps.counts, program.rounds.counts, strict=True)
    for ends, before, each in counts:
        first, period = before + (steady.begin + 1) * each, length * each
        for early, late in zip(ends[first:], ends[first + period :], strict=False):
            assert late - early == pytest.approx(steady.seconds, rel=1e-7)
            compared += 1
    assert compared >= len(program.rounds.kinds) * length


@given(simulations())
@settings(max_examples=40)
def test_a_run_that_begins_and_ends_has_it_in_its_window(
    case: tuple[Simulation, SteadyState],
) -> None:
    """The schedule of live workers, which drains, gives what the one that never ends gives."""
    found, steady = case
    if steady.steadiness < 1:
        return
    assert found.run.completions(found.window.step) == pytest.approx(found.completions, rel=1e-9)
    assert found.window.length % steady.minibatches == 0
    assert found.window.length >= 6
    assert found.seconds_per_minibatch == pytest.approx(found.window_seconds / found.window.length)


@given(simulations())
@settings(max_examples=15)
def test_compiled_it_plays_the_same_to_the_last_bit(case: tuple[Simulation, SteadyState]) -> None:
    assert find_spec("numba"), "tests need the extra 'fast'"
    found, steady = case
    program, costs = steady.endless, found.pricing.of(steady.program)
    plays = []
    for many in (0, math.inf):
        with mock.patch.object(events, "_MANY_STEPS", many):
            plays.append(Play(program.before, costs, program))
            for rounds in (2, 3, 9):
                plays[-1].play(rounds)
            plays[-1].play(12, to_the_end=True)
    compiled, listed = plays
    assert compiled.steps == listed.steps
    for one, other in zip(compiled.rows(), listed.rows(), strict=True):
        assert one.tobytes() == other.tobytes()


@given(
    replicas=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    sharing=st.sets(st.integers(0, 3)),
    chosen=st.sampled_from(METHODS),
    data=st.data(),
)
@settings(max_examples=40)
def test_what_repeats_is_what_the_schedule_says(
    replicas: list[int], sharing: set[int], chosen: Method, data: st.DataObject
) -> None:
    """Each worker's computations: the program, then rounds, against a schedule of many rounds."""
    pipeline = Pipeline.straight(*replicas)
    method = data.draw(uneven(chosen, len(replicas)))
    holders = tuple(sorted(stage for stage in sharing if stage < len(replicas)))
    if len(holders) > 1:
        pipeline = replace(pipeline, ties=(holders,))
    endless = endless_program(pipeline, method)
    assert endless is not None
    rounds = 3
    played = endless.rounds_before + rounds + endless.rounds_in_flight
    whole = Program.of(method.schedule_for(pipeline, (played + 1) * endless.minibatches))
    compiled = program_of(pipeline, method, (played + 1) * endless.minibatches)
    assert compiled.steps.same(whole.steps)
    assert replace(compiled, steps=whole.steps) == whole
    before, steps, expected = (
        numpy.split(found.kinds, numpy.cumsum(found.counts)[:-1])
        for found in (endless.before.steps, endless.rounds, whole.steps)
    )
    for first, each, all_ in zip(before, steps, expected, strict=True):
        kinds = [*first, *each.tolist() * rounds]
        assert kinds == all_[: len(kinds)].tolist()
    assert endless.before.in_flight == whole.in_flight
    assert endless.before.half_done == whole.half_done
    for tie in method.ties(pipeline):
        for stages, kinds in zip(endless.before.stages_of, steps, strict=True):
            each = endless.minibatches // tie.together
            updates = each if set(stages) <= set(tie.stages) else 0
            assert (kinds == TIED_UPDATE).sum() == updates


@pytest.mark.parametrize("ahead", [0.0, 1e-6])
def test_a_stage_may_be_ahead_by_more_than_is_played(ahead: float) -> None:
    """It takes no time, or next to none, and gets no gradients that hold it up."""
    profile = one_way(seconds=3, bytes_=1)
    first, second = profile.operators
    quick = first.model_copy(update={"forward_seconds": ahead, "backward_seconds": ahead})
    profile = profile.model_copy(update={"operators": (quick, second)})
    found = stages_of(profile, fast_cluster(2), 1, 1)
    assert found.steadiness < 1
    # By the one that got least far.
    assert min(map(len, found.steady.played.ends)) <= 3 * 4 * MOST_MINIBATCHES
    assert found.seconds_per_minibatch == pytest.approx(3)
    assert found.window_seconds == pytest.approx(3 * found.window.length)


def test_a_stage_that_gets_no_gradients_runs_ahead_for_ever() -> None:
    found = stages_of(one_way(seconds=3, bytes_=1), fast_cluster(2).with_speeds([1, 0.5]), 1, 1)
    assert found.seconds_per_minibatch == pytest.approx(6)
    assert found.steadiness == pytest.approx(0.5)


def test_a_round_that_is_too_long_is_measured_over_a_long_window() -> None:
    cluster = fast_cluster(29)
    found = stages_of(chain(5, 7, 8, 9), cluster, 5, 7, 8, 9)
    assert isinstance(found.steady, FiniteRun)
    assert found.window.length >= 512
    assert found.seconds_per_minibatch == pytest.approx(10 / 7, rel=0.01)
    assert 0.98 < found.steadiness <= 1


def test_no_schedule_is_compiled_for_hours_to_find_its_round() -> None:
    """Rounds of 280 minibatches are looked for, but not in 61 parts each."""
    method = Method(schedule="gpipe", policy="sync", microbatches=61)
    assert round_of(Pipeline.straight(5, 7, 8), method) == 280
    assert endless_program(Pipeline.straight(5, 7, 8), method) is None
