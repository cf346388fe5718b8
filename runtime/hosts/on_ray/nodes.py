"""Which nodes of a Ray cluster are the hosts of a session: by name, address, label, and size."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from drlpp.errors import InvalidCluster
from drlpp.specs.cluster import Cluster

_Started = TypeVar("_Started")

HOST_LABEL = "drlpp-host"
"""The label of a node that says which host of a ``cluster.yaml`` it is."""


@dataclass(frozen=True)
class RayNode:
    """A machine of a Ray cluster.

    Attributes:
        identity: by which Ray knows it.
        address: where others reach it.
        port: of the raylet there.
        called: what it is called: its label, its name in Ray, and its own.
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
        names = (label, node.get("NodeName"), node.get("NodeManagerHostname"), address)
        return cls(
            identity=node["NodeID"],
            address=address,
            port=node["NodeManagerPort"],
            # Ray calls a node by its address if nobody says otherwise.
            called=tuple(dict.fromkeys(name for name in names if name)),
            resources={kind: int(node["Resources"].get(kind, 0)) for kind in ("GPU", "CPU")},
        )

    def __str__(self) -> str:
        have = [f"{count} {kind}" for kind, count in self.resources.items() if count]
        return f"{self.address} ({', '.join(have) or 'no accelerators'})"


NOWHERE = RayNode("", "", 0, (), {})
"""The node of a host that is none, so far."""

_WAYS_ON = (
    "ask for fewer: a cluster.yaml as --cluster names them, else they are the placement's (drlpp "
    "train --workers), which can be planned for those that are there (drlpp profile, drlpp plan)"
)


@dataclass(frozen=True)
class HostPlan:
    """A host of a session before it is there.

    Attributes:
        name: of the host.
        node: that it is, or :data:`NOWHERE`.
        workers: their numbers; each is one accelerator.
        kind: of these: ``GPU`` or ``CPU``.
    """

    name: str
    node: RayNode
    workers: tuple[int, ...]
    kind: str

    @property
    def is_missing(self) -> bool:
        """Whether no node is this host."""
        return self.node == NOWHERE

    def __str__(self) -> str:
        return f"{self.name} ({len(self.workers)} {self.kind})"


def in_order(nodes: Iterable[RayNode], first: str) -> list[RayNode]:
    """Return nodes by their addresses, that of the controller before the others.

    Args:
        nodes: of the cluster.
        first: identity of the controller's.
    """

    def place(node: RayNode) -> tuple[Any, ...]:
        try:
            address = int(ipaddress.ip_address(node.address))
        except ValueError:
            address = 0
        return node.identity != first, address, node.address, node.identity

    return sorted(nodes, key=place)


def kind_of_accelerators(nodes: Iterable[RayNode], *, gpus: bool) -> str:
    """Return what workers take of each node: GPUs where any has some and they are wanted."""
    return "GPU" if gpus and any(node.resources["GPU"] for node in nodes) else "CPU"


def in_turn(nodes: Sequence[RayNode], kind: str, workers: int | None) -> list[HostPlan]:
    """Give the nodes workers one after the other, to each as many as it has accelerators.

    Args:
        nodes: in their order.
        kind: of accelerators.
        workers: how many; None for all that there are.

    Raises:
        InvalidCluster: there are fewer.
    """
    there = sum(node.resources[kind] for node in nodes)
    wanted = there if workers is None else workers
    if not 0 < wanted <= there:
        asked = "workers were asked for" if workers else "at least one worker is needed"
        raise InvalidCluster(
            f"{wanted or ''} {asked}, but the Ray cluster has {there} {kind}s: ".lstrip()
            + f"{_listed(nodes)}; how many a host has is an option of `ray start`, --num-cpus"
        )
    names = _names_of(nodes)
    plans, first = [], 0
    for node, name in zip(nodes, names, strict=True):
        count = min(node.resources[kind], wanted - first)
        if count:
            plans.append(HostPlan(name, node, tuple(range(first, first + count)), kind))
        first += count
    return plans


def matched(cluster: Cluster, nodes: Sequence[RayNode], *, gpus: bool) -> list[HostPlan]:
    """Find the node of every host that a cluster's description has.

    One that is called like the host, by label, name or address; else the smallest with enough
    accelerators that is no other host's.

    Args:
        cluster: the description.
        nodes: in their order.
        gpus: whether hosts of device ``cuda`` take GPUs; else workers compute on CPUs.

    Raises:
        InvalidCluster: there are fewer hosts than that, or they are smaller.
    """
    plans = _as_far_as_there(cluster, nodes, gpus=gpus)
    for plan in plans:
        wanted = f"{len(plan.workers)} {plan.kind}s for host {plan.name}"
        if plan.is_missing:
            raise InvalidCluster(
                f"{len(plans)} hosts were asked for, and the Ray cluster has no node left with "
                f"{wanted}; its nodes: {_listed(nodes)}. Start Ray on another, or {_WAYS_ON}"
            )
        if _is_too_small(plan):
            raise InvalidCluster(
                f"{wanted} were asked for, and its node is {plan.node}. Start Ray there with more, "
                f"or {_WAYS_ON}"
            )
    return plans


def matched_with_others(
    cluster: Cluster, nodes: Sequence[RayNode], workers: int, *, gpus: bool
) -> list[HostPlan]:
    """Find the hosts that a cluster's description has, and others for more workers.

    What is not there is missing: a host of the description without a node, or whose node is too
    small, and for workers that no node is left for, hosts like the description's last.

    Args:
        cluster: the description.
        nodes: in their order.
        workers: how many are wanted, at least the accelerators of the description.
        gpus: as for :func:`matched`.
    """
    plans = [
        replace(plan, node=NOWHERE) if _is_too_small(plan) else plan
        for plan in _as_far_as_there(cluster, nodes, gpus=gpus)
    ]
    first, kind, usual = cluster.accelerators, plans[-1].kind, len(plans[-1].workers)
    taken = {plan.node.identity for plan in plans}
    names = _names_of(nodes)
    for node, name in zip(nodes, names, strict=True):
        count = min(node.resources[kind], workers - first)
        # A node that is called like a missing host is its, once it is large enough.
        is_its = any(plan.is_missing and plan.name in node.called for plan in plans)
        if count and not is_its and node.identity not in taken:
            plans.append(HostPlan(name, node, tuple(range(first, first + count)), kind))
            first += count
    while first < workers:
        own = tuple(range(first, min(first + usual, workers)))
        plans.append(HostPlan(f"another-{first}", NOWHERE, own, kind))
        first += len(own)
    return plans


def _as_far_as_there(cluster: Cluster, nodes: Sequence[RayNode], *, gpus: bool) -> list[HostPlan]:
    """Return the hosts of a description; one that a node is called like may be larger than it."""
    kinds = {
        host: "GPU" if gpus and device == "cuda" else "CPU"
        for host, device in zip(cluster.host_of, cluster.devices, strict=True)
    }
    plans = [
        HostPlan(
            name,
            NOWHERE,
            tuple(worker for worker, of in enumerate(cluster.host_of) if of == host),
            kinds[host],
        )
        for host, name in enumerate(cluster.host_names)
    ]
    left = list(nodes)
    for host, plan in enumerate(plans):
        node = next((node for node in left if plan.name in node.called), None)
        if node is not None:
            plans[host] = replace(plan, node=node)
            left.remove(node)
    # The largest first: a small one might take its node.
    for host in sorted(range(len(plans)), key=lambda host: -len(plans[host].workers)):
        plan = plans[host]
        fitting = [node for node in left if node.resources[plan.kind] >= len(plan.workers)]
        if plan.is_missing and fitting:
            node = min(fitting, key=lambda node: node.resources[plan.kind])
            plans[host] = replace(plan, node=node)
            left.remove(node)
    return plans


def _is_too_small(plan: HostPlan) -> bool:
    return not plan.is_missing and plan.node.resources[plan.kind] < len(plan.workers)


def check_enough(plans: Sequence[HostPlan], least: int, nodes: Sequence[RayNode]) -> None:
    """Check that hosts which are there have enough workers.

    Raises:
        InvalidCluster: they have fewer than ``least``.
    """
    there = sum(len(plan.workers) for plan in plans if not plan.is_missing)
    if there < least:
        missing = ", ".join(str(plan) for plan in plans if plan.is_missing)
        raise InvalidCluster(
            f"{least} workers are wanted at least, and the Ray cluster has nodes for {there} of "
            f"them; not there, or used by others: {missing}; its nodes: {_listed(nodes)}. Start "
            f"Ray on more, or {_WAYS_ON}"
        )


def found_again(lost: HostPlan, nodes: Sequence[RayNode]) -> HostPlan | None:
    """Find where a lost host can be again: its node, or another that is large enough.

    Args:
        lost: the host as it was, which may have been missing from the beginning.
        nodes: that are alive and no other host's, in their order.

    Returns:
        The host with the same name and workers, on the node that is called like it or has its
        address, else on the smallest; None if no node has enough accelerators.
    """

    def rank(node: RayNode) -> tuple[bool, bool, int]:
        is_same = lost.name in node.called or node.address == lost.node.address
        return node.identity != lost.node.identity, not is_same, node.resources[lost.kind]

    fitting = [node for node in nodes if node.resources[lost.kind] >= len(lost.workers)]
    return replace(lost, node=min(fitting, key=rank)) if fitting else None


def started_where_free(
    wanted: HostPlan, nodes: Iterable[RayNode], start: Callable[[HostPlan], _Started]
) -> _Started | None:
    """Start a host on the first node that :func:`found_again` finds and nobody else uses.

    How many accelerators a node has says nothing of how many are free; that is known once they are
    asked for.

    Args:
        wanted: the host.
        nodes: as for :func:`found_again`.
        start: starts it; raises InvalidCluster where others have the accelerators.

    Returns:
        What ``start`` does; None if no node is free and large enough.
    """
    left = list(nodes)
    while plan := found_again(wanted, left):
        try:
            return start(plan)
        except InvalidCluster:
            left.remove(plan.node)
    return None


def _listed(nodes: Sequence[RayNode]) -> str:
    return ", ".join(map(str, nodes)) or "none"


def _names_of(nodes: Sequence[RayNode]) -> list[str]:
    """Return a name for each node that no other has: the first of what it is called, or several."""
    shared = Counter(name for node in nodes for name in node.called)
    return [
        next((name for name in node.called if shared[name] == 1), f"{node.address}-{number}")
        for number, node in enumerate(nodes)
    ]
