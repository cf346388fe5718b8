"""Clusters that are known by name, and the speeds that their FLOP/s mean for a model."""

from __future__ import annotations

import pytest

from drlpp.capturing.capture import capture
from drlpp.costs.memory import MemoryModel
from drlpp.costs.profile import Profile
from drlpp.costs.ways_of_training import WaysOfTraining
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.models.model_reference import ModelReference
from drlpp.planners.plan import plan, planning_problem
from drlpp.schedule.method import DEFAULT_METHOD
from drlpp.specs.cluster import NAMED_CLUSTERS, Cluster, Host, Link, read_cluster


@pytest.mark.parametrize("path", sorted(NAMED_CLUSTERS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_named_cluster_is_whole(path: object) -> None:
    cluster = read_cluster(str(getattr(path, "stem", path)))
    assert cluster.accelerators in (4, 8)
    assert all(host.flops_per_second and host.memory_bytes for host in cluster.hosts)


def test_a_decoder_has_the_ratio_of_the_formula() -> None:
    """R_w = e·F / (6·T·B), of e bytes a weight and T tokens a minibatch."""
    captured = capture(ModelReference.named("gpt2", layers=2), check=False)
    profile = Profile.estimated(captured.graph).model_copy(update={"batch_size": 16})
    cluster = read_cluster("a100-10gbit")
    problem, costs, _ = planning_problem(
        captured, profile, cluster, DEFAULT_METHOD, None, "seconds", seed=0
    )
    ways = WaysOfTraining(Workload.of(costs), problem.cluster, MemoryModel(), 16)
    tokens = 16 * captured.task.inputs[0].shape[1]
    assert ways.weights_ratio == pytest.approx(4 * 1.4e14 / (6 * tokens * 1.25e9), rel=0.1)


def test_unequal_hosts_have_the_ratio_of_their_flops() -> None:
    cluster = read_cluster("mixed-10gbit").for_model(flops=7.4e12, seconds=10)
    assert cluster.speeds == pytest.approx((100, 100, 32 / 74 * 100, 32 / 74 * 100))
    assert cluster.with_speeds([1, 1, 1, 1]).speeds == (1, 1, 1, 1)


def test_what_is_missing_is_said() -> None:
    with pytest.raises(InvalidInput, match="one of a100-100gbit"):
        read_cluster("a100")
    with pytest.raises(InvalidInput, match="depend on a model"):
        _ = read_cluster("t4-cloud").speeds
    rows = [{"name": "a", "forward_ms": 1, "backward_ms": 1}]
    with pytest.raises(InvalidInput, match="name the model, too"):
        plan(profile=rows, cluster="t4-cloud")
    link = Link(bandwidth_bytes_per_second=1e9)
    hosts = (Host(name="a", accelerators=1, flops_per_second=1e12), Host(name="b", accelerators=1))
    with pytest.raises(ValueError, match="all or none do"):
        Cluster(hosts=hosts, within_host=link, between_hosts=link)
