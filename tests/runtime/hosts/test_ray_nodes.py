"""Which nodes of a Ray cluster become which hosts of a session; no Ray is needed for that."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from drlpp.errors import InvalidCluster
from drlpp.runtime.hosts.on_ray.nodes import (
    HOST_LABEL,
    NOWHERE,
    HostPlan,
    RayNode,
    check_enough,
    found_again,
    in_order,
    in_turn,
    kind_of_accelerators,
    matched,
    matched_with_others,
    started_where_free,
)
from drlpp.specs.cluster import Cluster, Host, Link

LINK = Link(bandwidth_bytes_per_second=1e9)


def node(
    address: str,
    cpus: int = 0,
    gpus: int = 0,
    labels: Mapping[str, str] | None = None,
    hostname: str = "",
) -> RayNode:
    """As ``ray.nodes()`` describes it."""
    described: dict[str, Any] = {
        "NodeID": f"id-{address}",
        "NodeManagerAddress": address,
        "NodeManagerHostname": hostname or f"host-of-{address}",
        "NodeManagerPort": 1234,
        "NodeName": address,
        "Labels": {"ray.io/node-id": f"id-{address}", **(labels or {})},
        "Resources": {"CPU": float(cpus), "GPU": float(gpus), "memory": 1e9},
    }
    return RayNode.of(described)


def hosts(*lines: Host) -> Cluster:
    return Cluster(hosts=lines, within_host=LINK, between_hosts=LINK)


def test_nodes_are_in_the_order_of_their_addresses_and_the_controllers_is_first() -> None:
    nodes = [node("10.0.0.10"), node("10.0.0.9"), node("10.0.0.2")]
    found = in_order(nodes, "id-10.0.0.10")
    assert [one.address for one in found] == ["10.0.0.10", "10.0.0.2", "10.0.0.9"]


def test_workers_fill_one_node_after_the_other() -> None:
    nodes = [node("10.0.0.1", cpus=0), node("10.0.0.2", cpus=2), node("10.0.0.3", cpus=4)]
    plans = in_turn(nodes, "CPU", None)
    assert [(plan.node.address, plan.workers) for plan in plans] == [
        ("10.0.0.2", (0, 1)),
        ("10.0.0.3", (2, 3, 4, 5)),
    ]
    assert [plan.workers for plan in in_turn(nodes, "CPU", 3)] == [(0, 1), (2,)]


def test_gpus_count_where_there_are_any_and_they_are_wanted() -> None:
    nodes = [node("10.0.0.1", cpus=8), node("10.0.0.2", cpus=8, gpus=2)]
    assert kind_of_accelerators(nodes, gpus=True) == "GPU"
    assert kind_of_accelerators(nodes, gpus=False) == "CPU"
    assert kind_of_accelerators(nodes[:1], gpus=True) == "CPU"
    (plan,) = in_turn(nodes, "GPU", None)
    assert plan.node is nodes[1]


def test_fewer_accelerators_than_asked_for_are_one_line() -> None:
    nodes = [node("10.0.0.1", cpus=2), node("10.0.0.2", cpus=1)]
    with pytest.raises(InvalidCluster) as told:
        in_turn(nodes, "CPU", 4)
    assert str(told.value) == (
        "4 workers were asked for, but the Ray cluster has 3 CPUs: 10.0.0.1 (2 CPU), 10.0.0.2 "
        "(1 CPU); how many a host has is an option of `ray start`, --num-cpus"
    )
    with pytest.raises(InvalidCluster, match=r"at least one worker .* has 0 CPUs: 10.0.0.3 \(no"):
        in_turn([node("10.0.0.3")], "CPU", None)


@pytest.mark.parametrize("called", ["label", "hostname", "address"])
def test_hosts_are_found_by_what_they_are_called(called: str) -> None:
    name = "10.0.0.3" if called == "address" else "slow"
    labels = {HOST_LABEL: "slow"} if called == "label" else {}
    hostname = "slow" if called == "hostname" else ""
    nodes = [
        node("10.0.0.1", cpus=2),
        node("10.0.0.2", cpus=2),
        node("10.0.0.3", cpus=2, labels=labels, hostname=hostname),
    ]
    description = hosts(Host(name=name, accelerators=2), Host(name="other", accelerators=2))
    plans = matched(description, nodes, gpus=False)
    assert [(plan.name, plan.node.address, plan.workers) for plan in plans] == [
        (name, "10.0.0.3", (0, 1)),
        ("other", "10.0.0.1", (2, 3)),
    ]


def test_a_small_host_leaves_the_large_node_to_one_that_needs_it() -> None:
    nodes = [node("10.0.0.1", cpus=4), node("10.0.0.2", cpus=2)]
    description = hosts(Host(name="small", accelerators=2), Host(name="large", accelerators=4))
    plans = matched(description, nodes, gpus=False)
    assert [plan.node.address for plan in plans] == ["10.0.0.2", "10.0.0.1"]


def test_hosts_with_gpus_get_nodes_with_gpus() -> None:
    nodes = [node("10.0.0.1", cpus=64), node("10.0.0.2", cpus=64, gpus=4)]
    description = hosts(
        Host(name="gpus", accelerators=4, device="cuda"), Host(name="cpus", accelerators=4)
    )
    plans = matched(description, nodes, gpus=True)
    assert [(plan.node.address, plan.kind) for plan in plans] == [
        ("10.0.0.2", "GPU"),
        ("10.0.0.1", "CPU"),
    ]


def test_fewer_or_smaller_hosts_than_asked_for_are_one_line() -> None:
    nodes = [node("10.0.0.1", cpus=2), node("10.0.0.2", cpus=1)]
    with pytest.raises(InvalidCluster) as told:
        matched(hosts(Host(name="host", count=2, accelerators=2)), nodes, gpus=False)
    assert str(told.value) == (
        "2 hosts were asked for, and the Ray cluster has no node left with 2 CPUs for host host-1; "
        "its nodes: 10.0.0.1 (2 CPU), 10.0.0.2 (1 CPU). Start Ray on another, or ask for fewer: "
        "a cluster.yaml as --cluster names them, else they are the placement's (drlpp train "
        "--workers), which can be planned for those that are there (drlpp profile, drlpp plan)"
    )
    with pytest.raises(InvalidCluster, match=r"2 CPUs for host 10.0.0.2 were .* 10.0.0.2 \(1 CPU"):
        matched(hosts(Host(name="10.0.0.2", accelerators=2)), nodes, gpus=False)


PAIR = hosts(Host(name="a", accelerators=2), Host(name="b", accelerators=2))


def _placed(nodes: list[RayNode], workers: int) -> list[tuple[str, str, tuple[int, ...]]]:
    plans = matched_with_others(PAIR, nodes, workers, gpus=False)
    return [(plan.name, plan.node.address, plan.workers) for plan in plans]


def test_an_elastic_training_begins_on_the_hosts_of_its_placement_that_there_are() -> None:
    """Numbers are those of the placement, whatever comes first in the cluster and is missing."""
    first, its = node("10.0.0.1", cpus=4), node("10.0.0.5", cpus=2, hostname="b")
    other = node("10.0.0.9", cpus=8, hostname="a")
    assert _placed([first, its, other], 4) == [
        ("a", "10.0.0.9", (0, 1)),
        ("b", "10.0.0.5", (2, 3)),
    ]
    assert _placed([its], 4) == [("a", "", (0, 1)), ("b", "10.0.0.5", (2, 3))]
    # As without --elastic, a node that nobody is called like takes the place of one that is not.
    assert _placed([first, its], 4)[0] == ("a", "10.0.0.1", (0, 1))
    small = node("10.0.0.2", cpus=1, hostname="a")
    assert _placed([small, its], 4)[0] == ("a", "", (0, 1))


def test_more_workers_than_the_placements_are_on_what_else_there_is() -> None:
    a, b = node("10.0.0.3", cpus=2, hostname="a"), node("10.0.0.5", cpus=2, hostname="b")
    none, large = node("10.0.0.1"), node("10.0.0.2", cpus=3)
    named = [("a", "10.0.0.3", (0, 1)), ("b", "10.0.0.5", (2, 3))]
    another = ("10.0.0.4", "10.0.0.4", (4,))
    assert _placed([none, large, a, b], 5) == [*named, ("10.0.0.2", "10.0.0.2", (4,))]
    assert _placed([node("10.0.0.4", cpus=1), a, b], 10) == [
        *named,
        another,
        ("another-5", "", (5, 6)),
        ("another-7", "", (7, 8)),
        ("another-9", "", (9,)),
    ]
    # It is b, only too small so far.
    small = node("10.0.0.5", cpus=1, hostname="b")
    assert _placed([a, small], 6) == [
        named[0],
        ("b", "", (2, 3)),
        ("another-4", "", (4, 5)),
    ]


def test_a_missing_host_is_found_when_it_joins() -> None:
    missing = matched_with_others(PAIR, [], 4, gpus=False)[1]
    other, its = node("10.0.0.1", cpus=2), node("10.0.0.5", cpus=4, hostname="b")
    assert found_again(missing, [other, its]) == replace(missing, node=its)
    assert found_again(missing, [other]) == replace(missing, node=other)


def test_fewer_than_the_least_is_one_line() -> None:
    nodes = [node("10.0.0.5", cpus=2, hostname="b")]
    plans = matched_with_others(PAIR, nodes, 4, gpus=False)
    check_enough(plans, 2, nodes)
    with pytest.raises(InvalidCluster) as told:
        check_enough(plans, 3, nodes)
    assert str(told.value).startswith(
        "3 workers are wanted at least, and the Ray cluster has nodes for 2 of them; not there, or "
        "used by others: a (2 CPU); its nodes: 10.0.0.5 (2 CPU). "
    )
    assert plans[0].node == NOWHERE


def test_a_lost_host_is_found_on_its_node_then_by_what_it_is_called_then_by_size() -> None:
    lost = HostPlan("slow", node("10.0.0.3", cpus=2), (4, 5), "CPU")
    small, large = node("10.0.0.1", cpus=1), node("10.0.0.8", cpus=8)
    fitting = node("10.0.0.9", cpus=2)
    called = node("10.0.0.7", cpus=4, labels={HOST_LABEL: "slow"})
    restarted = replace(node("10.0.0.3", cpus=4), identity="another")
    assert found_again(lost, [small]) is None
    for nodes in (
        [small, large],
        [small, large, fitting],
        [small, large, fitting, called],
        [small, large, fitting, restarted],
        [small, large, fitting, called, lost.node],
    ):
        found = found_again(lost, nodes)
        assert found == replace(lost, node=nodes[-1])


class _Busy:
    """Nodes whose accelerators others have, and which were asked for theirs."""

    def __init__(self, *busy: RayNode) -> None:
        self.busy = busy
        self.asked: list[str] = []

    def start(self, plan: HostPlan) -> HostPlan:
        self.asked.append(plan.node.address)
        if plan.node in self.busy:
            raise InvalidCluster("another session has them")
        return plan


def test_a_node_that_others_use_hides_none_that_is_free() -> None:
    lost = HostPlan("slow", node("10.0.0.3", cpus=2), (4, 5), "CPU")
    small, busy, free = node("10.0.0.1", cpus=1), node("10.0.0.5", cpus=2), node("10.0.0.9", cpus=4)
    nodes = _Busy(busy, lost.node)
    found = started_where_free(lost, [small, busy, lost.node, free], nodes.start)
    assert found == replace(lost, node=free)
    assert nodes.asked == ["10.0.0.3", "10.0.0.5", "10.0.0.9"]
    assert started_where_free(lost, [small, busy], nodes.start) is None


def _session(monkeypatch: pytest.MonkeyPatch, nodes: list[RayNode], *busy: RayNode) -> Any:
    """A session on these nodes, before it has a host; Ray itself is not asked."""
    from drlpp.runtime.hosts.on_ray import cluster as module

    monkeypatch.setattr(module, "nodes_of_cluster", lambda: nodes)
    # It would start a cluster of this process's own.
    monkeypatch.setattr(module.ray, "kill", lambda actor: None)
    session, start = object.__new__(module.RayHosts), _Busy(*busy).start
    session._started = lambda plans: [module._Place(start(plan)) for plan in plans]
    return session


def test_a_session_begins_on_nodes_that_others_do_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """None takes that of another host, or of one that is missing."""
    a, b = node("10.0.0.3", cpus=2, hostname="a"), node("10.0.0.5", cpus=2, hostname="b")
    large, c = node("10.0.0.7", cpus=8), node("10.0.0.8", cpus=1, hostname="c")

    def places(nodes: list[RayNode], *busy: RayNode) -> list[str]:
        plans = matched_with_others(PAIR, nodes, 4, gpus=False)
        session = _session(monkeypatch, nodes, *busy)
        return [place.plan.node.address for place in session._some_started(plans)]

    assert places([a, b, large]) == ["10.0.0.3", "10.0.0.5"]
    assert places([a, b, large, c], a) == ["10.0.0.7", "10.0.0.5"]
    assert places([a, b, large], b) == ["10.0.0.3", "10.0.0.7"]
    assert places([a, b, large], a, b) == ["10.0.0.7", ""]
    assert places([a, b], a) == ["", "10.0.0.5"]


def test_a_lost_host_is_looked_for_on_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = node("10.0.0.3", cpus=2, hostname="a"), node("10.0.0.5", cpus=2, hostname="b")
    busy, free = node("10.0.0.6", cpus=2), node("10.0.0.7", cpus=2)
    session = _session(monkeypatch, [b, busy, free], busy)
    session._places = session._started(matched_with_others(PAIR, [a, b], 4, gpus=False))
    session._closed, session.hosts, session._refused = threading.Event(), [], set()
    session._opened = lambda places: [place.plan.node for place in places]
    assert session._sought_alone(0) == free
    assert [place.plan.node for place in session._places] == [free, b]
