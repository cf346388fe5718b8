"""Messages, sums of gradients and ties on links, each against an example worked out by hand."""

from __future__ import annotations

import numpy
import pytest

from drlpp.costs.buckets import buckets_of
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.schedule.actions import BUCKET_BYTES, AllReduce, Forward, Send
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster, Simulation, simulate
from drlpp.simulator.playing.costs import Costs
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.simulated_chains import FAST, MIB, chain, one_way, stages_of
from tests.support.strategies.graphs import chain_of, cluster_of, graph_of, profile_of, tied_chain


def test_a_slow_link_carries_both_directions_at_once() -> None:
    # Five minibatches in flight hide the 26 s that one takes from its forward to its update.
    found = stages_of(chain(3, 3, output_bytes=10), cluster_of(5, bandwidth=1), 1, 4)
    assert found.seconds_per_minibatch == pytest.approx(10)


def test_senders_share_the_port_of_a_receiver() -> None:
    profile = one_way(seconds=3, bytes_=10)
    assert stages_of(profile, cluster_of(3), 2, 1).seconds_per_minibatch == pytest.approx(10)
    # Where the receiver has a replica too, each port has half of it.
    assert stages_of(profile, cluster_of(4), 2, 2).seconds_per_minibatch == pytest.approx(5)


def test_accelerators_share_the_network_of_their_host() -> None:
    cluster = Cluster(
        hosts=(Host(name="a", accelerators=2), Host(name="b", accelerators=2)),
        within_host=Link(bandwidth_bytes_per_second=FAST),
        between_hosts=Link(bandwidth_bytes_per_second=1),
    )
    found = stages_of(one_way(seconds=3, bytes_=10), cluster, 2, 2)
    assert found.seconds_per_minibatch == pytest.approx(10)


def test_a_message_that_queues_at_its_sender_holds_up_nobody_at_its_receiver() -> None:
    # Worker 0 sends to 1 and, from 11 s on, to 3. Until 15 s there the message of worker 2 is
    # before it, which left at 5 s; so both are there at 25 s.
    graph = graph_of(
        [(0, 1), (0, 3), (2, 3)],
        parameter_bytes=[0] * 4,
        output_bytes=[10, 0, 10, 1],
        dtypes=["int64", "int64", "int64", "float32"],
    )
    found = stages_of(profile_of(graph, [3, 3, 15, 3]), cluster_of(4), 1, 1, 1, 1)
    forwards = [t.start for t in found.timeline if t.worker == 3 and isinstance(t.action, Forward)]
    assert forwards[0] == pytest.approx(25)


def data_parallel(profile: Profile, replicas: int, bandwidth: float) -> Simulation:
    operators = len(profile.graph)
    placement = Placement.from_assignment([0] * operators, [0] * replicas)
    return simulate(Workload.of(profile), cluster_of(replicas, bandwidth), placement)


@pytest.mark.parametrize(
    ("bandwidth", "round_seconds"),
    [
        # Two messages of 6 bytes, from 2 s into the backward pass of 6 s: hidden at 2 s each,
        (3, 3 + 6),
        # and 8 s too long at 6 s each.
        (1, 3 + 2 + 12),
    ],
)
def test_gradients_are_summed_during_the_backward(bandwidth: float, round_seconds: float) -> None:
    _graph, profile = chain_of(
        seconds=[3, 3, 3], parameter_bytes=[0, 0, 12], output_bytes=[1, 1, 1]
    )
    found = data_parallel(profile, 2, bandwidth)
    assert found.seconds_per_minibatch == pytest.approx(round_seconds / 2)
    exposed = [t.end - t.start for t in found.timeline if isinstance(t.action, AllReduce)]
    assert exposed == pytest.approx([round_seconds - 9] * len(exposed))


def test_sums_and_messages_wait_for_each_other() -> None:
    # Each replica: F until 1 s, its message until 11 s, B until 3 s; only then the sum's 8 bytes
    # leave, until 19 s, and the update lets the next F begin. Nothing comes back.
    graph = graph_of(
        [(0, 1)], parameter_bytes=[8, 0], output_bytes=[10, 1], dtypes=["int64", "float32"]
    )
    profile = profile_of(graph, [3, 3])
    found = stages_of(profile, cluster_of(4, bandwidth=1), 2, 2)
    assert found.seconds_per_minibatch == pytest.approx((1 + 10 + 8) / 2)


def test_sums_of_hosts_share_their_network() -> None:
    # Two stages on the same two hosts: the sums of both cross the same networks.
    slow = Link(bandwidth_bytes_per_second=1)
    cluster = Cluster(
        hosts=(Host(name="a", accelerators=2), Host(name="b", accelerators=2)),
        within_host=Link(bandwidth_bytes_per_second=FAST),
        between_hosts=slow,
    )
    graph = graph_of([(0, 1)], parameter_bytes=[20, 20], output_bytes=[0, 0])
    placement = Placement.from_assignment([0, 1], (0, 1, 0, 1))
    found = simulate(Workload.of(profile_of(graph, [3, 3])), cluster, placement)
    assert found.seconds_per_minibatch >= 20 - 1e-6
    # Where each has a host of its own they do not.
    apart = Placement.from_assignment([0, 1], (0, 0, 1, 1))
    assert (
        simulate(Workload.of(profile_of(graph, [3, 3])), cluster, apart).seconds_per_minibatch < 4
    )


def test_buckets_are_summed_one_after_the_other() -> None:
    # F 2 s, B 4 s. The last operator's bucket takes 6 s from 2 s on, the first one's then 6 s.
    profile = chain_of(seconds=[3, 3], parameter_bytes=[8 * MIB] * 2, output_bytes=[1, 1])[1]
    found = data_parallel(profile, 2, bandwidth=8 * MIB / 6)
    assert found.seconds_per_minibatch == pytest.approx((2 + 2 + 6 + 6) / 2)
    # Together in one bucket they would leave at the end of the backward.
    small = chain_of(seconds=[3, 3], parameter_bytes=[8, 8], output_bytes=[1, 1])[1]
    found = data_parallel(small, 2, bandwidth=8 / 6)
    assert found.seconds_per_minibatch == pytest.approx((2 + 4 + 12) / 2)


@pytest.mark.parametrize(
    ("seconds", "replicas", "output_bytes", "parameter_bytes", "per_link"),
    [((12, 6), (2, 1), 6, 2, 0), ((12, 12, 6), (1, 2, 2), 4, 2, 0)],
)
def test_a_sum_leaves_before_what_its_backward_sends(
    seconds: tuple[float, ...],
    replicas: tuple[int, ...],
    output_bytes: int,
    parameter_bytes: int,
    per_link: int,
) -> None:
    """Where nothing but operators takes time both are ready at once, else the sum is earlier."""
    profile = chain(*seconds, parameter_bytes=parameter_bytes, output_bytes=output_bytes)
    cluster, method = cluster_of(sum(replicas), bandwidth=1), Method(in_flight_per_link=per_link)

    def simulated(overhead: float) -> float:
        overheads = {
            "forward_overhead_seconds": overhead,
            "backward_overhead_seconds": 2 * overhead,
        }
        slower = profile.model_copy(update=overheads)
        return stages_of(slower, cluster, *replicas, method=method).seconds_per_minibatch

    assert simulated(0.0) == pytest.approx(simulated(1e-7), rel=1e-6)


HOSTS = Cluster(
    hosts=(
        Host(name="here", accelerators=2),
        Host(
            name="slow",
            accelerators=1,
            network=Link(bandwidth_bytes_per_second=7.0, latency_seconds=0.5),
        ),
        Host(name="there", accelerators=1),
    ),
    within_host=Link(bandwidth_bytes_per_second=1e3, latency_seconds=1e-3),
    between_hosts=Link(bandwidth_bytes_per_second=100.0, latency_seconds=1e-2),
)


def measured(
    profile: Profile, cluster: Cluster, placement: Placement, method: Method
) -> Measurement:
    outcome = SimulatedCluster(profile, cluster, method=method).measure(placement)
    assert isinstance(outcome, Measurement)
    return outcome


@pytest.mark.parametrize(
    ("stages", "method"),
    [
        ([0, 1, 2, 3], Method()),
        ([1, 0, 0, 0], Method()),
        ([0, 1, 1, 2], Method(schedule="gpipe", policy="sync", microbatches=5)),
    ],
)
def test_messages_take_what_the_link_says(stages: list[int], method: Method) -> None:
    """On every level, and a host that is slower to reach; the ways are those of the schedule."""
    operators = max(stages) + 1
    profile = chain(*[3] * operators, output_bytes=40, parameter_bytes=60)
    placement = Placement.from_assignment(range(operators), stages)
    outcome = measured(profile, HOSTS, placement, method)
    for link in outcome.links:
        there = HOSTS.link(link.sender, link.receiver)
        assert link.seconds == there.seconds(link.bytes_)
        same_stage = stages[link.sender] == stages[link.receiver]
        replicas = stages.count(stages[link.sender])
        assert link.bytes_ == (60 / replicas if same_stage else 40 / method.microbatches)
    pipeline = placement.pipeline(profile.graph)
    schedule = method.schedule_for(pipeline, 30)
    used = {
        (worker, action.to)
        for worker, actions in schedule.actions.items()
        for action in actions
        if isinstance(action, Send)
    }
    for ring in pipeline.stages:
        if len(ring) > 1:
            used |= {(worker, ring[i - len(ring) + 1]) for i, worker in enumerate(ring)}
    ways = [(link.sender, link.receiver) for link in outcome.links]
    assert set(ways) == used
    assert len(ways) == len(used)


def test_a_ring_carries_the_largest_bucket_in_parts() -> None:
    profile = chain(3, 3, 3, parameter_bytes=4 * (BUCKET_BYTES // 10))
    placement = Placement.from_assignment([0, 0, 0], [0, 0])
    links = measured(profile, cluster_of(2), placement, Method()).links
    assert [link.bytes_ for link in links] == [4 * (BUCKET_BYTES // 10)] * 2


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
    played = simulate(workload, cluster_of(2), together, method)
    costs = played.pricing.of(played.program)
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
    played = simulate(workload, cluster_of(3), placement, Method(policy="stash"))
    costs = played.pricing.of(played.program)
    # Of two replicas, two messages of half the bytes.
    # Its own weights and the copy go one after the other, over the ports of the messages.
    sums = [(one.stage, one.tie) for one in played.program.sums]
    assert dict(zip(sums, _longest(costs), strict=True)) == {(0, -1): [2.0], (0, 0): [8.0]}
