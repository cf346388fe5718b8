"""Which nodes of a Ray cluster become which hosts of a session; no Ray is needed for that."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drlpp.errors import HostLost, InvalidCluster, InvalidInput, RunFailure
from drlpp.runtime.hosts.on_ray import cluster as module
from drlpp.runtime.hosts.on_ray.nodes import (
    HOST_LABEL,
    HostPlan,
    RayNode,
    check_enough,
    hosts_of,
    in_order,
    in_turn,
    kind_of_accelerators,
    matched,
)
from drlpp.runtime.ipc.time_limits import TimeLimits
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


PAIR = hosts(Host(name="a", accelerators=2), Host(name="b", accelerators=2))


def test_nodes_are_in_the_order_of_their_addresses_and_the_controllers_is_first() -> None:
    nodes = [node("10.0.0.10"), node("10.0.0.9"), node("10.0.0.2")]
    found = in_order(nodes, "id-10.0.0.10")
    assert [one.address for one in found] == ["10.0.0.10", "10.0.0.2", "10.0.0.9"]


def test_workers_fill_one_node_after_the_other() -> None:
    nodes = [node("10.0.0.1", cpus=0), node("10.0.0.2", cpus=2), node("10.0.0.3", cpus=4)]
    plans = in_turn(nodes, "CPU", 6)
    assert [(plan.node, plan.workers) for plan in plans] == [
        (nodes[1], (0, 1)),
        (nodes[2], (2, 3, 4, 5)),
    ]
    assert [plan.workers for plan in in_turn(nodes, "CPU", 3)] == [(0, 1), (2,)]
    # Two that are called alike have names of their own.
    alike = [node("10.0.0.1", cpus=1, hostname="x"), node("10.0.0.2", cpus=1, hostname="x")]
    assert [plan.name for plan in in_turn(alike, "CPU", 2)] == ["10.0.0.1", "10.0.0.2"]


def test_gpus_count_where_there_are_any_and_they_are_wanted() -> None:
    nodes = [node("10.0.0.1", cpus=8), node("10.0.0.2", cpus=8, gpus=2)]
    assert kind_of_accelerators(nodes, gpus=True) == "GPU"
    assert kind_of_accelerators(nodes, gpus=False) == "CPU"
    assert kind_of_accelerators(nodes[:1], gpus=True) == "CPU"
    (plan,) = in_turn(nodes, "GPU", 2)
    assert plan.node is nodes[1]
    both = hosts(
        Host(name="gpus", accelerators=2, device="cuda"), Host(name="cpus", accelerators=4)
    )
    found = matched(hosts_of(both, 6, gpus=True), nodes)
    assert [(plan.node, plan.kind) for plan in found] == [(nodes[1], "GPU"), (nodes[0], "CPU")]


def _placed(nodes: list[RayNode], description: Cluster = PAIR, workers: int = 4) -> dict[str, str]:
    """The address of every host's node."""
    plans = matched(hosts_of(description, workers, gpus=False), nodes)
    assert [worker for plan in plans for worker in plan.workers] == list(range(workers))
    return {plan.name: plan.node.address if plan.node else "" for plan in plans}


@pytest.mark.parametrize("called", ["label", "hostname", "address"])
def test_hosts_are_found_by_what_they_are_called_then_by_size(called: str) -> None:
    name = "10.0.0.3" if called == "address" else "slow"
    labels = {HOST_LABEL: "slow"} if called == "label" else {}
    its = node("10.0.0.3", cpus=8, labels=labels, hostname="slow" if called == "hostname" else "")
    small, large = node("10.0.0.1", cpus=2), node("10.0.0.2", cpus=4)
    description = hosts(
        Host(name="small", accelerators=2),
        Host(name="large", accelerators=3),
        Host(name=name, accelerators=2),
    )
    expected = {"small": "10.0.0.1", "large": "10.0.0.2", name: "10.0.0.3"}
    for nodes in ([small, large, its], [its, large, small]):
        assert _placed(nodes, description, 7) == expected


def test_a_host_without_a_node_that_is_large_enough_is_missing() -> None:
    its = node("10.0.0.5", cpus=2, hostname="b")
    assert _placed([its]) == {"a": "", "b": "10.0.0.5"}
    small = node("10.0.0.2", cpus=1, hostname="a")
    assert _placed([small, its])["a"] == ""
    # A node that nobody is called like takes its place; one that another is called like does not.
    assert _placed([node("10.0.0.1", cpus=4), its])["a"] == "10.0.0.1"
    uneven = hosts(Host(name="a", accelerators=1), Host(name="b", accelerators=2))
    assert _placed([node("10.0.0.6", cpus=1, hostname="b")], uneven, 3) == {"a": "", "b": ""}
    further = _placed([its, node("10.0.0.9", cpus=2)], workers=7)
    assert further == {"a": "10.0.0.9", "b": "10.0.0.5", "another-4": "", "another-6": ""}


def test_fewer_than_are_needed_are_one_line() -> None:
    nodes = [node("10.0.0.5", cpus=2, hostname="b")]
    plans = matched(hosts_of(PAIR, 4, gpus=False), nodes)
    check_enough(plans, 2, nodes)
    for least, count in ((3, 3), (None, 4)):
        with pytest.raises(InvalidCluster) as told:
            check_enough(plans, least, nodes)
        assert str(told.value).startswith(
            f"{count} workers are needed, and the Ray cluster has free nodes for 2 of them; not "
            "there, too small, or used by another program or session: a (2 CPU); its nodes: "
            "10.0.0.5 (2 CPU). Start Ray on more, or ask for fewer: "
        )
    with pytest.raises(InvalidCluster, match=r"4 workers were asked .* has 2 CPUs: 10.0.0.5 \(2 C"):
        in_turn(nodes, "CPU", 4)


def test_a_lost_host_is_found_on_its_node_then_by_what_it_is_called_then_by_size() -> None:
    own = node("10.0.0.3", cpus=2)
    lost = HostPlan("slow", (4, 5), "CPU", own)
    small, large = node("10.0.0.1", cpus=1), node("10.0.0.8", cpus=8)
    fitting = node("10.0.0.9", cpus=2)
    called = node("10.0.0.7", cpus=4, labels={HOST_LABEL: "slow"})
    restarted = replace(own, identity="another", resources={"CPU": 4, "GPU": 0})
    assert lost.possible([small]) == []
    best_last = [small, large, fitting, called, own]
    assert lost.possible(best_last) == best_last[:0:-1]
    assert lost.possible([fitting, restarted]) == [restarted, fitting]
    assert replace(lost, node=None).possible([fitting, called]) == [called, fitting]


class _Host:
    """As RayHost, of nodes some of which others use, are gone, or have other versions, or broken.

    Each that is opened waits at ``met`` for others.
    """

    busy: tuple[RayNode, ...] = ()
    gone: tuple[RayNode, ...] = ()
    broken: tuple[RayNode, ...] = ()
    others: tuple[RayNode, ...] = ()
    asked: list[str]
    met = threading.Barrier(1)
    is_missed = False

    def __init__(self, plan: HostPlan, *_: Any, **__: Any) -> None:
        self.plan, self.name, self.workers = plan, plan.name, plan.workers
        self.lost = None if plan.node else HostLost("not there")
        self.given_back = False

    def begin(self, _seconds: float) -> bool:
        assert self.plan.node is not None
        self.asked.append(self.plan.node.address)
        return self.plan.node not in self.busy

    def open(self) -> None:
        self.met.wait(30)
        if self.plan.node in self.gone:
            raise HostLost("gone again")
        if self.plan.node in self.broken:
            raise RunFailure("no such module")
        if self.plan.node in self.others:
            raise InvalidInput("other versions")

    def give_back(self) -> None:
        self.given_back = True


@contextmanager
def _session(nodes: list[RayNode], **of: Any) -> Iterator[Any]:
    """A session on these nodes, before it has a host; Ray itself is not asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "nodes_of_cluster", lambda: nodes)
        patch.setattr(module, "connect", lambda address: None)
        patch.setattr(module, "gcs_address", lambda: "head:1")
        patch.setattr(module, "listens", lambda *_: True)
        patch.setattr(module, "RayHost", type("Host", (_Host,), {"asked": [], **of}))

        def begun(least: int | None = None) -> Any:
            limits = TimeLimits(gathering_seconds=1e-9)
            return module.RayHosts(4, Path(), limits, "head:1", PAIR, least, gpus=False)

        yield begun


def test_a_session_begins_without_hosts_that_others_use_if_it_may() -> None:
    a, b = node("10.0.0.3", cpus=2, hostname="a"), node("10.0.0.5", cpus=2, hostname="b")
    with _session([a, b], met=threading.Barrier(2)) as begun:
        session = begun()
        assert session.address == a.address
        assert [host.plan.node for host in session.hosts] == [a, b]
        session.release()
    with _session([a, b], busy=(a,)) as begun:
        with pytest.raises(InvalidCluster, match=r"used by another program or session: a \(2 CPU"):
            begun()
        session = begun(2)
        assert [bool(host.lost) for host in session.hosts] == [True, False]
        assert [host.plan.node for host in session.hosts] == [None, b]
        session.release()
        assert session.hosts[1].given_back


def test_a_head_that_was_only_cut_off_gets_the_accelerators_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = node("10.0.0.3", cpus=2, hostname="a"), node("10.0.0.5", cpus=2, hostname="b")
    with _session([a, b]) as begun:
        session = begun()
        with monkeypatch.context() as patch:
            patch.setattr(module, "listens", lambda *_: False)
            assert session._blame("silent") == (
                "the head of the Ray cluster, head:1, has ended or is cut off"
            )
        assert session._blame("silent") == "silent"
        session.release()
        assert all(host.given_back for host in session.hosts)


def test_a_lost_host_is_looked_for_on_all_nodes_that_are_no_other_hosts() -> None:
    a, b = node("10.0.0.3", cpus=2, hostname="a"), node("10.0.0.5", cpus=2, hostname="b")
    nodes = [a, b]
    busy, gone, broken, other, free = (node(f"10.0.0.{n}", cpus=2) for n in range(6, 11))
    with _session(nodes, busy=(busy,), gone=(gone,), broken=(broken,), others=(other,)) as begun:
        session = begun()
        lost = session.hosts[0]
        lost.lost = HostLost("cut off")
        nodes[:] = [b, busy, gone, broken, other]
        session._seek_one(lost)
        assert (session.hosts[0], lost.given_back) == (lost, True)
        # That one has other versions, and is not asked again.
        lost.asked.clear()
        nodes.append(free)
        session._seek_one(lost)
        found = session.hosts[0]
        assert lost.asked == [one.address for one in (busy, gone, broken, free)]
        assert (found.plan.node, found.workers) == (free, (0, 1))
        # The node of another lost host is its own.
        session.hosts[1].lost = HostLost("cut off")
        nodes[:] = [replace(b, identity="again")]
        session._seek_one(found)
        assert session.hosts[0] is found
        session._seek_one(session.hosts[1])
        assert session.hosts[1].plan.node == nodes[0]
        session.release()
