"""The hosts of a session on a Ray cluster: joined, found, reserved, checked, and given back."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import ray
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray.exceptions import AuthenticationError, RayError

from drlpp.errors import DRLPPError, InvalidCluster, InvalidInput
from drlpp.runtime.hosts.host import Hosts
from drlpp.runtime.hosts.on_ray.host import RayHost, reason_of
from drlpp.runtime.hosts.on_ray.nodes import (
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
from drlpp.specs.cluster import Cluster

_POLL_SECONDS = 0.5
_NODE_SECONDS = 2.0


class RayHosts(Hosts):
    """The hosts of one session, which have their accelerators to themselves until :meth:`release`.

    Args are those of :func:`~drlpp.runtime.hosts.session_hosts.hosts_for`; without a description
    the hosts are the first that there are.

    Raises:
        InvalidInput: the cluster has not what is wanted, or other versions.
        HostLost: a host does not answer.
    """

    def __init__(
        self,
        workers: int,
        folder: Path,
        limits: TimeLimits,
        cluster: str,
        description: Cluster | None,
        least: int | None,
        *,
        gpus: bool,
    ) -> None:
        connect(cluster)
        super().__init__([])
        self._limits = limits
        self._closed = threading.Event()
        self._head = gcs_address()
        self._folder = folder
        self._refused: set[str] = set()
        try:
            self._gather(*self._planned(workers, description, gpus, least), least)
        except BaseException:
            self.release()
            raise
        for watch in (self._watch_head, self._seek):
            threading.Thread(target=watch, daemon=True).start()

    def release(self) -> None:
        """End the actors, and let others have the accelerators."""
        self._closed.set()
        # In a thread, since Ray may wait for ever for a head that has ended.
        giving = threading.Thread(
            target=lambda: [host.give_back() for host in self.hosts], daemon=True
        )
        giving.start()
        giving.join(self._limits.host_silence_seconds if self._head_answers() else 0)

    def _planned(
        self, workers: int, description: Cluster | None, gpus: bool, least: int | None
    ) -> tuple[Sequence[RayNode], list[HostPlan]]:
        """Find a node for every host; wait for those that are on their way."""
        give_up = time.monotonic() + self._limits.gathering_seconds
        while True:
            nodes = nodes_of_cluster()
            is_late = time.monotonic() > give_up
            try:
                if description is None:
                    return nodes, in_turn(nodes, kind_of_accelerators(nodes, gpus=gpus), workers)
                plans = matched(hosts_of(description, workers, gpus=gpus), nodes)
                check_enough(plans, least if is_late else None, nodes)
                return nodes, plans
            except InvalidCluster:
                if is_late:
                    raise
            time.sleep(_POLL_SECONDS)

    def _gather(
        self, nodes: Sequence[RayNode], plans: Sequence[HostPlan], least: int | None
    ) -> None:
        """Start an actor on every host that is there, and that nobody else uses."""
        self.address = nodes[0].address
        hosts = self.hosts
        hosts.extend(map(self._host, plans))
        # Here and not in threads, so that Ctrl-C ends it.
        give_up = time.monotonic() + self._limits.gathering_seconds
        for host in [host for host in hosts if not host.lost]:
            if not host.begin(max(1.0, give_up - time.monotonic())):
                hosts[hosts.index(host)] = self._host(replace(host.plan, node=None))
        check_enough([host.plan for host in hosts], least, nodes)
        # At once, since one that has begun must not wait for the others.
        with ThreadPoolExecutor(max_workers=len(hosts)) as pool:
            list(pool.map(RayHost.open, [host for host in hosts if not host.lost]))

    def _host(self, plan: HostPlan) -> RayHost:
        return RayHost(plan, self._folder, self._limits, self._blame)

    def _seek(self) -> None:
        """Look again and again for where the hosts can be that are missed."""
        while not self._closed.wait(_POLL_SECONDS):
            for host in [host for host in self.hosts if host.lost and host.is_missed]:
                with suppress(RayError):
                    self._seek_one(host)

    def _seek_one(self, lost: RayHost) -> None:
        """Start an actor for a lost host, if it can be anywhere.

        On its own node, where that is alive, else on one that is no other host's: the machine that
        was started again, or one that has joined.
        """
        lost.give_back()
        others = [host for host in self.hosts if host is not lost]
        taken = {host.plan.node.identity for host in others if host.plan.node} | self._refused
        awaited = {host.name for host in others if host.lost}
        left = [node for node in nodes_of_cluster() if node.identity not in taken]
        for node in lost.plan.possible(left, awaited):
            host = self._host(replace(lost.plan, node=node))
            try:
                if host.begin(self._limits.gathering_seconds):
                    host.open()
                    host.has_returned = True
                    self.hosts[self.hosts.index(lost)] = host
                    if not self._closed.is_set():
                        return
            except InvalidInput:
                self._refused.add(node.identity)
            except (DRLPPError, RayError):
                # Gone again, or it cannot begin: it is looked for once more.
                pass
            host.give_back()

    def _watch_head(self) -> None:
        """Notice that the head has ended, before Ray ends this program for it without a word."""
        heard = time.monotonic()
        while not self._closed.wait(_POLL_SECONDS):
            begin = time.monotonic()
            if self._head_answers():
                heard = begin
            elif time.monotonic() - heard > self._limits.host_silence_seconds:
                # It may only be cut off, and hosts be found again; it is watched on.
                for host in self.hosts:
                    host.lose("the head does not answer")

    def _blame(self, reason: str) -> str:
        """Return why a host is lost: its own reason, unless the head is."""
        if self._head_answers():
            return reason
        return f"the head of the Ray cluster, {self._head}, has ended or is cut off"

    def _head_answers(self) -> bool:
        name, _, port = self._head.rpartition(":")
        return listens(name, int(port))


def connect(address: str) -> None:
    """Connect this program to a Ray cluster, if it is not.

    Args:
        address: ``auto`` for the one that this machine belongs to, or ``HOST:PORT`` of its head.

    Raises:
        InvalidInput: there is none, it refuses this program, or it has other versions.
    """
    given = address
    if address == "auto" and not ray.is_initialized():
        given = os.environ.get("RAY_ADDRESS", "")
    if "://" in given:
        raise InvalidInput(
            f"{given} is no address of a head, and this program has to run on a host of the "
            "cluster: start it there (ssh, `ray job submit`), and give auto or HOST:PORT"
        )
    if ray.is_initialized():
        there = gcs_address()
        if address != "auto" and _resolved(address) != there:
            raise InvalidInput(
                f"this program belongs to the Ray cluster {there} already, and cannot use "
                f"{address} as well; begin another program, or call ray.shutdown() before"
            )
        return
    try:
        _check_head(address)
        # Hosts' processes print nothing that a user should read; errors are ours to say.
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except InvalidInput:
        raise
    except (AuthenticationError, ConnectionError, ValueError, RuntimeError) as error:
        if address == "auto" and "RAY_ADDRESS" in str(error):
            raise InvalidInput(
                "no Ray cluster runs on this machine; start one (`ray start --head`), or name "
                "the address of another's head"
            ) from None
        raise _unusable(address, reason_of(error)) from None


def _check_head(address: str) -> None:
    """Check that a cluster's head takes this program; Ray would try for many minutes.

    Raises:
        InvalidInput: it does not.
    """
    name, _, port = canonicalize_bootstrap_address_or_die(address).rpartition(":")
    encrypted = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
    if not listens(name, int(port), greeted=not encrypted):
        raise _unusable(address, f"no word from {name}:{port}")


def _unusable(address: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"the Ray cluster {address} cannot be reached, or refuses this program ({reason}); one "
        "that was started with RAY_AUTH_MODE=token takes only programs with RAY_AUTH_MODE=token "
        "and the same secret in RAY_AUTH_TOKEN, and one with RAY_USE_TLS=1 only those with that "
        "and its certificate (RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY, RAY_TLS_CA_CERT)"
    )


def nodes_of_cluster() -> list[RayNode]:
    """Return the nodes that are alive, that of the controller first.

    Ray itself takes a minute to notice that one is gone, so each other is asked.
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = [RayNode.of(node) for node in ray.nodes() if node["Alive"]]
    with ThreadPoolExecutor(max_workers=len(nodes) or 1) as pool:
        answers = pool.map(
            lambda node: node.identity == here or listens(node.address, node.port), nodes
        )
    there = [node for node, answer in zip(nodes, answers, strict=True) if answer]
    return in_order(there, here)


def listens(address: str, port: int, *, greeted: bool = False) -> bool:
    """Return whether a server takes connections there.

    With ``greeted`` it has to speak first, as Ray's do, unless they expect encryption.
    """
    with suppress(OSError), socket.create_connection((address, port), _NODE_SECONDS) as line:
        return not greeted or bool(line.recv(1))
    return False


def accelerators_of_cluster(address: str, *, gpus: bool = True) -> int:
    """Return how many workers a Ray cluster has room for."""
    connect(address)
    nodes = nodes_of_cluster()
    kind = kind_of_accelerators(nodes, gpus=gpus)
    return sum(node.resources[kind] for node in nodes)


def _resolved(address: str) -> str:
    host, _, port = address.rpartition(":")
    with suppress(OSError):
        host = socket.gethostbyname(host)
    return f"{host}:{port}"


def gcs_address() -> str:
    """Return where the head of this program's cluster is."""
    return str(ray.get_runtime_context().gcs_address)
