"""Simulated measurements say what single messages take, for every way that the schedule uses."""

import pytest

from drlpp.costs.profile import Profile
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.schedule.actions import BUCKET_BYTES, Send
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.simulated_chains import chain
from tests.support.strategies.graphs import cluster_of

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
