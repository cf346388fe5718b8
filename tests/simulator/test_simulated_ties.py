"""Sums of weights that stages share, each against an example worked out by hand."""

import numpy
import pytest

from drlpp.costs.buckets import buckets_of
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from drlpp.simulator import simulate
from drlpp.simulator.playing.costs import Costs
from tests.support.strategies.graphs import cluster_of, tied_chain


def test_a_sum_leaves_when_all_have_contributed() -> None:
    """A round trip of 8 bytes at a byte per second, between the backwards and the updates.

    Stage 1 takes 2 + 4 s; its gradient, a byte, goes before the 8 bytes of what it contributes. The
    sum comes back, and the update takes half a second for each byte.
    """
    workload = Workload.of(tied_chain([6, 6], 8))
    method = Method(schedule="gpipe", policy="sync")
    apart = Placement.from_assignment([0, 1], (0, 1))
    played = simulate(workload, cluster_of(2), apart, method)
    assert played.seconds_per_minibatch == pytest.approx(2 + 4 + 1 + 8 + 8 + 4)
    together = Placement.from_assignment([0, 0], (0, 0))
    played = simulate(workload, cluster_of(1), Placement.from_assignment([0, 0], (0,)), method)
    assert played.seconds_per_minibatch == pytest.approx(12 + 4)
    costs = simulate(workload, cluster_of(2), together, method).run.costs
    assert _longest(costs) == [[0.0]]
    assert costs.ring_latency == [8.0]


def test_a_norm_waits_for_what_others_contribute() -> None:
    """Copies on two replicas and one, 8 bytes each, and a ring of three for the norm."""
    method = Method(schedule="gpipe", policy="sync", microbatches=2, clip_norm=1.0)
    workload = Workload.of(tied_chain([6, 6], 8), method)
    placement = Placement.from_assignment([0, 1], (0, 0, 1))
    played = simulate(workload, cluster_of(3), placement, method)
    assert played.steadiness == 1.0
    assert played.seconds_per_minibatch == pytest.approx(36 + 2 * 2 * 8 / 3)


def _longest(costs: Costs) -> list[list[float]]:
    """The longest hop of the buckets of each kind of sum."""
    rings = numpy.split(costs.ring_seconds, costs.ring_begins[1:-1])
    longest = numpy.array([ring.max(initial=0.0) for ring in rings])
    return [found.tolist() for found in numpy.split(longest, costs.bucket_begins[1:-1])]


def test_replicas_sum_copies_of_others_weights_apart() -> None:
    workload = Workload.of(tied_chain([6, 6, 6], 8))
    assert [bucket.bytes_ for bucket in buckets_of(workload, (0, 1))] == [2]
    assert [bucket.bytes_ for bucket in buckets_of(workload, (0, 1, 2))] == [10]
    placement = Placement.from_assignment([0, 0, 1], (0, 0, 1))
    run = simulate(workload, cluster_of(3), placement, Method(policy="stash")).run
    # Of two replicas, two messages of half the bytes.
    # Its own weights and the copy go one after the other, over the ports of the messages.
    sums = [(one.stage, one.tie) for one in run.program.sums]
    assert dict(zip(sums, _longest(run.costs), strict=True)) == {(0, -1): [2.0], (0, 0): [8.0]}
