"""The formula for a placement's steady state, against examples worked out by hand."""

from __future__ import annotations

import pytest

from drlpp.costs.placement_rule import Prediction, predict
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.strategies.graphs import chain_of, cluster_of, graph_of, profile_of

_, PROFILE = chain_of(seconds=[6, 3, 3], parameter_bytes=[4, 10, 20], output_bytes=[5, 7, 1])


def predicted(
    stage_of_operator: list[int],
    stage_of_accelerator: list[int],
    cluster: Cluster,
    profile: Profile = PROFILE,
) -> Prediction:
    placement = Placement.from_assignment(stage_of_operator, stage_of_accelerator)
    return predict(Workload.of(profile), cluster, placement)


def test_compute_of_the_slowest_stage_rules() -> None:
    found = predicted([0, 1, 1], [0, 0, 1], cluster_of(3, bandwidth=1e9))
    assert [stage.compute_seconds for stage in found.stages] == pytest.approx([3, 6])
    assert found.seconds_per_minibatch == pytest.approx(6)
    assert found.bottleneck == "compute of stage 1"


def test_ring_all_reduce_overlaps_with_a_backward() -> None:
    """2(m − 1)/m · W / B for a round of m minibatches, against 8 s of the backward of one."""
    slow = predicted([0, 0, 0], [0, 0, 0], cluster_of(3, bandwidth=2))
    ring = 2 * 2 / 3 * 34 / 2
    assert slow.stages[0].all_reduce_seconds == pytest.approx(ring / 3)
    assert slow.stages[0].all_reduce_left_seconds == pytest.approx((ring - 8) / 3)
    assert slow.bottleneck == "compute and all-reduce of stage 0 (3 replicas)"
    assert slow.seconds_per_minibatch == pytest.approx((12 + ring - 8) / 3)
    fast = predicted([0, 0, 0], [0, 0, 0], cluster_of(3, bandwidth=100))
    assert fast.seconds_per_minibatch == pytest.approx(12 / 3)
    assert fast.bottleneck == "compute of stage 0 (3 replicas)"


def test_messages_in_both_directions_share_no_time() -> None:
    found = predicted([0, 1, 1], [0, 1], cluster_of(2, bandwidth=0.5))
    assert [stage.message_seconds for stage in found.stages] == pytest.approx([10, 10])
    assert found.seconds_per_minibatch == pytest.approx(10)
    assert found.bottleneck == "messages of stage 0"


def test_the_slowest_replica_sets_the_pace() -> None:
    cluster = cluster_of(2, bandwidth=1e9).with_speeds([1.0, 0.25])
    found = predicted([0, 0, 0], [0, 0], cluster)
    assert found.seconds_per_minibatch == pytest.approx(12 / 2 / 0.25)


def test_a_tensor_that_two_stages_read_is_sent_to_each() -> None:
    """9 bytes to each, and of the second stage's output one; gradients the other way."""
    graph = graph_of([(0, 1), (0, 2), (1, 2)], parameter_bytes=[0] * 3, output_bytes=[9, 1, 1])
    found = predicted([0, 1, 2], [0, 1, 2], cluster_of(3), profile_of(graph, [1, 1, 1]))
    assert [stage.message_seconds for stage in found.stages] == [18, 10, 10]


def test_messages_of_several_hosts_meet_at_their_network() -> None:
    """Two replicas in one host, their reader in another: 4 bytes of each minibatch."""
    _, profile = chain_of(seconds=[1, 1], parameter_bytes=[0, 0], output_bytes=[4, 1])
    slow = Link(bandwidth_bytes_per_second=0.5)
    fast = Link(bandwidth_bytes_per_second=1e9)

    def hosts(first: int, second: int) -> Cluster:
        both = (Host(name="a", accelerators=first), Host(name="b", accelerators=second))
        return Cluster(hosts=both, within_host=fast, between_hosts=slow)

    cluster = hosts(2, 1)
    found = predicted([0, 1], [0, 0, 1], cluster, profile)
    assert [stage.message_seconds for stage in found.stages] == [4, 8]
    # In one host messages between its own accelerators pass no network.
    inside = predicted([0, 1], [0, 1, 1], cluster, profile)
    assert [stage.message_seconds for stage in inside.stages] == pytest.approx([4, 4])
    assert inside.seconds_per_minibatch == pytest.approx(4)
    two = predicted([0, 1], [0, 0, 1, 1], hosts(2, 2), profile)
    assert [stage.message_seconds for stage in two.stages] == pytest.approx([4, 4])
    assert two.bottleneck == "messages out of a"
    assert two.seconds_per_minibatch == pytest.approx(8)


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_every_microbatch_is_a_pass_and_replicas_update_as_soon_as_all_have_one(
    microbatches: int,
) -> None:
    """T = 6 s and 2 s besides for each pass; S = 1.2 s, U = 0.4 s; a ring of 2 s."""
    _, profile = chain_of(seconds=[6, 6], parameter_bytes=[4, 4], output_bytes=[0, 0])
    profile = profile.model_copy(
        update={
            "forward_overhead_seconds": 0.5,
            "backward_overhead_seconds": 1.5,
            "update_seconds_per_byte": 0.1,
            "sharing_seconds_per_byte": 0.3,
        }
    )
    method = Method(policy="vanilla", microbatches=microbatches)
    workload = Workload.of(profile, method)
    placement = Placement.from_assignment([0, 1], [0, 0, 0, 1])
    found = predict(workload, cluster_of(4, bandwidth=4 / 3), placement)
    replicated, alone = found.stages
    passes, minibatches_of_update = 2 * microbatches, -(-3 // microbatches)
    assert method.minibatches_of_update(3) == minibatches_of_update
    collecting = 1.2 * microbatches
    assert replicated.compute_seconds == pytest.approx(
        (6 + passes + collecting) / 3 + 0.4 / minibatches_of_update
    )
    assert replicated.all_reduce_seconds == pytest.approx(
        2 * 2 / 3 * 4 / (4 / 3) / minibatches_of_update
    )
    assert alone.compute_seconds == pytest.approx(
        6 + passes + collecting * (microbatches > 1) + 0.4
    )
    simulated = simulate(workload, cluster_of(4, bandwidth=1e9), placement, method, 60)
    assert simulated.seconds_per_minibatch == pytest.approx(alone.compute_seconds, rel=0.01)
