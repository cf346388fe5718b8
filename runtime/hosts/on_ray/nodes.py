"""Which nodes of a Ray cluster are the hosts of a session: by name, address, label, and size."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from drlpp.errors import InvalidCluster
from drlpp.specs.cluster import Cluster

HOST_LABEL = "drlpp-host"
"""The label of a node that says which host of a ``cluster.yaml`` it is."""


@dataclass(frozen=True)
class RayNode:
    """A machine of a Ray cluster.

    Attributes:
        identity: by which Ray knows it.
        address, port: of the raylet there.
        called: what it is called: its label, its name in Ray, its own and its address.
        resources: how many accelerators it has of each kind, ``GPU`` and ``CPU``.
    """

    identity: str
    address: str
    port: int
    called: tuple[str, ...]
    resources: Mapping[str, int]

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> RayNode:
        """Return the node that Ray describes so."""
        label = node.get("Labels", {}).get(HOST_LABEL)
        address = node["NodeManagerAddress"]
        # Ray calls a node by its address if nobody says otherwise.
        names = (label, node.get("NodeName"), node.get("NodeManagerHostname"), address)
        return cls(
            identity=node["NodeID"],
            address=address,
            port=node["NodeManagerPort"],
            called=tuple(dict.fromkeys(name for name in names if name)),
            resources={kind: int(node["Resources"].get(kind, 0)) for kind in ("GPU", "CPU")},
        )

    def __str__(self) -> str:
        have = [f"{count} {kind}" for kind, count in self.resources.items() if count]
        return f"{self.address} ({', '.join(have) or 'no accelerators'})"


@dataclass(frozen=True)
class HostPlan:
    """A host of a session before it is there.

    Attributes:
        name: of the host.
        workers: their numbers; each is one accelerator.
        kind: of these: ``GPU`` or ``CPU``.
        node: that it is; None while it is missing.
    """

    name: str
    workers: tuple[int, ...]
    kind: str
    node: RayNode | None = None

    def possible(self, nodes: Iterable[RayNode], others: Set[str] = frozenset()) -> list[RayNode]:
        """Return the nodes that the host can be, the best first; their accelerators may be in use.

        That which it was before, then those that are called like it or have that one's address,
        then the smallest that are called like none of ``others``.
        """
        own = {self.name, self.node.address if self.node else ""}

        def fits(node: RayNode) -> bool:
            is_free = own & set(node.called) or not others & set(node.called)
            return bool(is_free) and node.resources[self.kind] >= len(self.workers)

        def rank(node: RayNode) -> tuple[bool, bool, int]:
            is_other = self.node is None or node.identity != self.node.identity
            return is_other, not own & set(node.called), node.resources[self.kind]

        return sorted(filter(fits, nodes), key=rank)

    def __str__(self) -> str:
        return f"{self.name} ({len(self.workers)} {self.kind})"


def in_order(nodes: Iterable[RayNode], first: str) -> list[RayNode]:
    """Return nodes by their addresses, but the one with identity ``first`` before the others."""

    def place(node: RayNode) -> tuple[Any, ...]:
        numbers = [part.zfill(4) for part in re.split(r"[.:]", node.address)]
        return node.identity != first, numbers, node.identity

    return sorted(nodes, key=place)


def kind_of_accelerators(nodes: Iterable[RayNode], *, gpus: bool) -> str:
    """Return what workers take of each node: GPUs where any has some and they are wanted."""
    return "GPU" if gpus and any(node.resources["GPU"] for node in nodes) else "CPU"


def in_turn(nodes: Sequence[RayNode], kind: str, workers: int) -> list[HostPlan]:
    """Give the nodes workers one after the other, to each as many as it has accelerators.

    Raises:
        InvalidCluster: there are fewer.
    """
    there = sum(node.resources[kind] for node in nodes)
    if workers > there:
        raise InvalidCluster(
            f"{workers} workers were asked for, but the Ray cluster has {there} {kind}s: "
            f"{_listed(nodes)}; how many a host has is an option of `ray start`, --num-cpus"
        )
    shared = Counter(name for node in nodes for name in node.called)
    plans, first = [], 0
    for number, node in enumerate(nodes):
        own = (name for name in node.called if shared[name] == 1)
        last = first + min(node.resources[kind], workers - first)
        if first < last:
            name = next(own, f"{node.address}-{number}")
            plans.append(HostPlan(name, tuple(range(first, last)), kind, node))
        first = last
    return plans


def hosts_of(cluster: Cluster, workers: int, *, gpus: bool) -> list[HostPlan]:
    """Return the hosts that a cluster's description has, none of them on a node.

    More workers than it has accelerators are on other hosts like its last. With ``gpus`` hosts of
    another device than ``cpu`` take GPUs; else workers compute on CPUs.
    """
    numbers: dict[int, list[int]] = {}
    for worker, host in enumerate(cluster.host_of):
        numbers.setdefault(host, []).append(worker)
    plans = []
    for host, own in numbers.items():
        kind = "GPU" if gpus and cluster.devices[own[0]] != "cpu" else "CPU"
        plans.append(HostPlan(cluster.host_names[host], tuple(own), kind))
    usual = plans[-1]
    for first in range(cluster.accelerators, workers, len(usual.workers)):
        further = range(first, min(first + len(usual.workers), workers))
        plans.append(replace(usual, name=f"another-{first}", workers=tuple(further)))
    return plans


def matched(plans: Sequence[HostPlan], nodes: Sequence[RayNode]) -> list[HostPlan]:
    """Find the node of every host that there is one for, see :meth:`HostPlan.possible`."""
    found, left, names = list(plans), list(nodes), {plan.name for plan in plans}
    # The largest first: a small one might take its node.
    for number in sorted(range(len(plans)), key=lambda number: -len(plans[number].workers)):
        for node in plans[number].possible(left, names)[:1]:
            found[number] = replace(plans[number], node=node)
            left.remove(node)
    return found


def check_enough(plans: Sequence[HostPlan], least: int | None, nodes: Sequence[RayNode]) -> None:
    """Check that the hosts which are there have enough workers: ``least``, or all.

    Raises:
        InvalidCluster: they have fewer.
    """
    there, missing = (
        [plan for plan in plans if bool(plan.node) is is_there] for is_there in (True, False)
    )
    count = sum(len(plan.workers) for plan in there)
    least = least or sum(len(plan.workers) for plan in plans)
    if count < least:
        raise InvalidCluster(
            f"{least} workers are needed, and the Ray cluster has free nodes for {count} of them; "
            "not there, too small, or used by another program or session: "
            f"{', '.join(map(str, missing))}; its nodes: {_listed(nodes)}. Start Ray on more, or "
            "ask for fewer: a cluster.yaml as --cluster names them, else they are the placement's "
            "(drlpp train --workers), which can be planned for those that are there (drlpp "
            "profile, drlpp plan)"
        )


def _listed(nodes: Sequence[RayNode]) -> str:
    return ", ".join(map(str, nodes)) or "none"
