"""What holds for every placement that is played."""

from __future__ import annotations

import itertools
import math

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
from drlpp.schedule.timeline import play
from drlpp.simulator import Simulation, simulate
from drlpp.specs.cluster import Cluster, Host
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

    And for every update of a tie each replica of its root gets what another stage has found, and
    each replica of the others the sum.
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
    sent = sum(usage.bytes_sent for usage in found.workers)
    # Of microbatches, bytes are fractions; those of a worker are rounded.
    minibatches = found.window.minibatches
    expected = crossing * minibatches
    ties = zip(found.method.ties(found.pipeline), found.placement.ties(graph).items(), strict=True)
    for tie, (tied, parameters) in ties:
        assert tie.stages == tied
        replicas = {stage: len(found.pipeline.stages[stage]) for stage in tied}
        copies = sum(replicas[tie.root] + replicas[stage] for stage in tie.others)
        bytes_ = sum(parameter.bytes_ for parameter in parameters)
        expected += math.ceil(minibatches / tie.together) * copies * bytes_
    assert sent == pytest.approx(expected, abs=len(found.workers))
