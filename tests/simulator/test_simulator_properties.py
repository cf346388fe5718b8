"""What holds for every placement that is played, and for the period that it repeats for ever."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from importlib.util import find_spec
from unittest import mock

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.costs.placement_rule import predict
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.schedule.actions import (
    Action,
    AllReduce,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Receive,
    Recompute,
    Send,
)
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.timeline import play
from drlpp.simulator import Simulation, simulate
from drlpp.simulator.playing import events
from drlpp.simulator.playing.endless import EndlessProgram, endless_program, round_of
from drlpp.simulator.playing.events import Play
from drlpp.simulator.playing.program import TIED_UPDATE, Program
from drlpp.simulator.steady_state import MOST_MINIBATCHES
from drlpp.specs.cluster import Cluster, Host
from tests.support.simulated_chains import chain, fast_cluster, one_way, stages_of
from tests.support.strategies.graphs import placements, uneven
from tests.support.strategies.simulations import (
    FAST,
    METHODS,
    POLICIES,
    clusters,
    costed,
    simulations,
)


@given(st.data())
@settings(max_examples=40)
def test_never_faster_than_the_rule(data: st.DataObject) -> None:
    """On links of several levels, for all kinds of schedules and policies."""
    rates = st.sampled_from([0.0, 0.25, 2.0])
    profile = data.draw(costed()).model_copy(
        update={
            name: data.draw(rates)
            for name in (
                *("forward_overhead_seconds", "backward_overhead_seconds"),
                *("update_overhead_seconds", "update_seconds_per_byte"),
                *("prediction_seconds_per_byte", "sharing_seconds_per_byte", "split_seconds"),
            )
        }
    )
    placement, cluster = data.draw(placements(profile.graph, 4)), data.draw(clusters())
    chosen = data.draw(st.sampled_from([*METHODS, *POLICIES]))
    method = data.draw(uneven(chosen, len(placement.stages)))
    workload = Workload.of(profile, method)
    found = simulate(workload, cluster, placement, method)
    predicted = predict(workload, cluster, placement).seconds_per_minibatch
    assert found.seconds_per_minibatch >= predicted * (1 - 1e-9)


@given(st.data())
@settings(max_examples=30)
def test_on_links_that_take_no_time_it_agrees_with_a_simpler_player(data: st.DataObject) -> None:
    profile = data.draw(costed())
    placement = data.draw(placements(profile.graph, 4))
    speeds = data.draw(st.lists(st.sampled_from([0.5, 1.0]), min_size=4, max_size=4))
    cluster = Cluster(hosts=(Host(name="a", accelerators=4),), within_host=FAST)
    cluster = cluster.with_speeds(speeds)
    method = data.draw(uneven(data.draw(st.sampled_from(METHODS)), len(placement.stages)))
    found = simulate(Workload.of(profile), cluster, placement, method, 6)
    stage_of = {a: k for k, s in enumerate(placement.stages) for a in s.accelerators}

    def seconds(worker: int, action: Action) -> float:
        chosen = placement.stages[stage_of[worker]].operators
        forward = sum(profile.operators[i].forward_seconds for i in chosen)
        # A backward takes two forwards, and one of the two is for weights where there are any.
        of_weights = sum(
            profile.operators[i].forward_seconds
            for i in chosen
            if profile.graph.operators[i].parameter_bytes
        )
        match action:
            case Forward() | Recompute():
                return forward / method.microbatches / speeds[worker]
            case Backward():
                return 2 * forward / method.microbatches / speeds[worker]
            case BackwardInput():
                return (2 * forward - of_weights) / method.microbatches / speeds[worker]
            case BackwardWeight():
                return of_weights / method.microbatches / speeds[worker]
            case _:
                return 0.0

    expected = play(found.schedule, seconds)
    for worker in placement.accelerators:
        mine = [t for t in found.timeline if t.worker == worker]
        theirs = [t for t in expected if t.worker == worker]
        assert [t.action for t in mine] == [t.action for t in theirs]
        assert [t.end for t in mine] == [t.end for t in theirs]
        # A worker that waits for an all-reduce is in it here, and idle there.
        assert [t.start for t in mine if not isinstance(t.action, AllReduce)] == [
            t.start for t in theirs if not isinstance(t.action, AllReduce)
        ]


@given(simulations())
@settings(max_examples=25)
def test_the_timeline_is_possible(case: tuple[Profile, Cluster, Simulation]) -> None:
    """Workers do one thing at a time, messages take their time, and sums wait for everyone."""
    _, cluster, found = case
    sent = {
        (t.action.message, t.action.to): (t.end, t.worker)
        for t in found.timeline
        if isinstance(t.action, Send)
    }
    for worker in found.placement.accelerators:
        mine = [t for t in found.timeline if t.worker == worker]
        assert all(a.end <= b.start for a, b in itertools.pairwise(mine))
        for timed in mine:
            if isinstance(timed.action, Receive):
                left, sender = sent.pop((timed.action.message, worker))
                link = cluster.link(sender, worker)
                assert timed.start >= left + link.latency_seconds
    assert not sent
    sums: dict[AllReduce, list[float]] = {}
    for timed in found.timeline:
        if isinstance(timed.action, AllReduce):
            sums.setdefault(timed.action, []).append(timed.end)
    for action, ends in sums.items():
        assert len(ends) == len(action.workers)


@given(simulations())
@settings(max_examples=25)
def test_bytes_are_those_of_the_tensors(case: tuple[Profile, Cluster, Simulation]) -> None:
    """What crosses a border of stages goes forward once for each reader, and comes back.

    A message of a tie has all its parameters.
    """
    profile, _, found = case
    graph, stages = profile.graph, found.placement.stage_of_operator(len(profile.graph))
    readers = {(e.source, stages[e.target]) for e in graph.edges}
    readers |= {(operator, max(stages)) for operator, _ in graph.outputs}
    crossing = sum(
        2 * graph.operators[operator].outputs[0].bytes_
        for operator, stage in readers
        if stages[operator] != stage
    )
    assert found.pricing.placed.exchange.bytes_.sum() == pytest.approx(crossing)
    tied = found.placement.ties(graph)
    assert [tie.stages for tie in found.method.ties(found.pipeline)] == list(tied)
    assert list(found.pricing.tied_bytes) == [sum(p.bytes_ for p in ps) for ps in tied.values()]


@st.composite
def steady_simulations(draw: st.DrawFn) -> tuple[Simulation, EndlessProgram]:
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
    endless = endless_program(found.pipeline.numbered, method)
    assert endless is not None
    return found, endless


@given(steady_simulations())
@settings(max_examples=40)
def test_a_period_goes_on_for_ever(case: tuple[Simulation, EndlessProgram]) -> None:
    """Played for three periods more, everything happens as before, as much later."""
    found, program = case
    steady = found.steady
    if steady.steadiness < 1:
        return
    begin = steady.warm_up // program.minibatches - program.rounds_before
    length = steady.minibatches // program.minibatches
    longer = Play(program.before, found.pricing.of(program.before), program)
    rounds = begin + 4 * length + program.rounds_in_flight + 3
    longer.play(rounds)
    compared = 0
    counts = zip(program.before.steps.counts, program.rounds.counts, strict=True)
    for worker, (before, each) in enumerate(counts):
        ends = [step.end for step in longer.steps_of(worker)]
        first, period = before + begin * each, length * each
        for early, late in zip(ends[first:], ends[first + period :], strict=False):
            assert late - early == pytest.approx(steady.seconds, rel=1e-7)
            compared += 1
    assert compared >= len(program.rounds.kinds) * length


@given(steady_simulations())
@settings(max_examples=40)
def test_a_run_that_begins_and_ends_has_it_in_its_window(
    case: tuple[Simulation, EndlessProgram],
) -> None:
    """The schedule of live workers, which drains, gives what the one that never ends gives."""
    found, _ = case
    steady = found.steady
    if steady.steadiness < 1:
        return
    assert found.run.completions(found.window.step) == pytest.approx(found.completions, rel=1e-9)
    assert found.window.length % steady.minibatches == 0
    assert found.window.length >= 6
    assert found.seconds_per_minibatch == pytest.approx(found.window_seconds / found.window.length)


@given(steady_simulations())
@settings(max_examples=15)
def test_compiled_it_plays_the_same_to_the_last_bit(
    case: tuple[Simulation, EndlessProgram],
) -> None:
    assert find_spec("numba"), "tests need the extra 'fast'"
    found, program = case
    costs = found.pricing.of(program.before)
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
    played = found.steady.played
    assert min(len(list(played.steps_of(one))) for one in (0, 1)) <= 3 * 4 * MOST_MINIBATCHES
    assert found.seconds_per_minibatch == pytest.approx(3)
    assert found.window_seconds == pytest.approx(3 * found.window.length)


def test_a_stage_that_gets_no_gradients_runs_ahead_for_ever() -> None:
    found = stages_of(one_way(seconds=3, bytes_=1), fast_cluster(2).with_speeds([1, 0.5]), 1, 1)
    assert found.seconds_per_minibatch == pytest.approx(6)
    assert found.steadiness == pytest.approx(0.5)


def test_a_round_that_is_too_long_is_measured_over_a_long_window() -> None:
    cluster = fast_cluster(29)
    found = stages_of(chain(5, 7, 8, 9), cluster, 5, 7, 8, 9)
    assert endless_program(found.pipeline.numbered, found.method) is None
    assert found.window.length >= 512
    assert found.seconds_per_minibatch == pytest.approx(10 / 7, rel=0.01)
    assert 0.98 < found.steadiness <= 1


def test_no_schedule_is_compiled_for_hours_to_find_its_round() -> None:
    """Rounds of 280 minibatches are looked for, but not in 61 parts each."""
    method = Method(schedule="gpipe", policy="sync", microbatches=61)
    assert round_of(Pipeline.straight(5, 7, 8), method) == 280
    assert endless_program(Pipeline.straight(5, 7, 8), method) is None
