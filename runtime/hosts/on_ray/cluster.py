"""The hosts of a session on a Ray cluster: found, reserved, checked, and given back."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import ray

from drlpp.errors import HostLost, InvalidCluster, InvalidInput
from drlpp.runtime.hosts.on_ray.connection import (
    CLIENT,
    connect,
    gcs_address,
    listens,
    nodes_of_cluster,
)
from drlpp.runtime.hosts.on_ray.host import RayHost
from drlpp.runtime.hosts.on_ray.line import ActorLine
from drlpp.runtime.hosts.on_ray.nodes import (
    HostPlan,
    RayNode,
    check_enough,
    hosts_of,
    in_turn,
    kind_of_accelerators,
    matched,
)
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.specs.cluster import Cluster

_POLL_SECONDS = 0.5


class RayHosts:
    """The hosts of one session, which have their accelerators to themselves until :meth:`close`.

    Args:
        address: of the Ray cluster.
        workers: how many; None for all that there is room for.
        description: of the hosts that are wanted; else the first that there are.
        folder: of the session on this machine.
        limits: of the session.
        least: of the workers to begin with, if not all are there in time, and free.
        gpus: whether workers may compute on GPUs.

    Attributes:
        hosts: in the order of their workers.

    Raises:
        InvalidInput: the cluster has not what is wanted, or other versions.
        HostLost: a host does not answer.
    """

    def __init__(
        self,
        address: str,
        workers: int | None,
        description: Cluster | None,
        folder: Path,
        limits: TimeLimits = DEFAULT_TIME_LIMITS,
        least: int | None = None,
        *,
        gpus: bool = True,
    ) -> None:
        connect(address)
        self._limits = limits
        self._closed = threading.Event()
        self._head_is_lost = False
        outside = address.startswith(CLIENT)
        self._head = address.removeprefix(CLIENT) if outside else gcs_address()
        # Only there the controller's own files are those of the host.
        here = "" if outside else ray.get_runtime_context().get_node_id()
        self._folders = {here: str(folder)}
        self._refused: set[str] = set()
        self._seeking = threading.Lock()
        self._lines: list[ActorLine] = []
        try:
            self._gather(workers, description, gpus, least)
        except BaseException:
            self.close()
            raise
        self.hosts = [RayHost(line, folder, self._sought) for line in self._lines]
        threading.Thread(target=self._watch_head, daemon=True).start()

    def close(self) -> None:
        """End the actors, and let others have the accelerators."""
        self._closed.set()
        if self._head_is_lost:
            # Ray would wait for it.
            return
        # In a thread, since Ray may wait for ever for a head that has ended a moment ago.
        giving = threading.Thread(target=self._give_back, daemon=True)
        giving.start()
        giving.join(self._limits.host_silence_seconds)

    def _give_back(self) -> None:
        for line in self._lines:
            line.give_back()

    def _gather(
        self, workers: int | None, description: Cluster | None, gpus: bool, least: int | None
    ) -> None:
        """Start an actor on every host that is there; wait for those that are on their way."""
        nodes, plans = self._planned(workers, description, gpus, least)
        self._lines = lines = [self._line(plan) for plan in plans if plan.node]
        for line in lines:
            line.reserve()
        give_up = time.monotonic() + self._limits.gathering_seconds
        begun = {
            line.plan.name: line
            for line in lines
            if line.begin(max(1.0, give_up - time.monotonic()))
        }
        plans = [plan if plan.name in begun else replace(plan, node=None) for plan in plans]
        self._lines = [begun.get(plan.name) or self._line(plan) for plan in plans]
        check_enough(plans, least, nodes)
        with ThreadPoolExecutor(max_workers=len(lines)) as pool:
            list(pool.map(self._open, begun.values()))

    def _planned(
        self, workers: int | None, description: Cluster | None, gpus: bool, least: int | None
    ) -> tuple[Sequence[RayNode], list[HostPlan]]:
        give_up = time.monotonic() + self._limits.gathering_seconds
        while True:
            nodes = nodes_of_cluster()
            is_late = time.monotonic() > give_up
            try:
                if description is None:
                    plans = in_turn(nodes, kind_of_accelerators(nodes, gpus=gpus), workers)
                else:
                    wanted = hosts_of(description, workers or description.accelerators, gpus=gpus)
                    plans = matched(wanted, nodes)
                    check_enough(plans, least if is_late else None, nodes)
                return nodes, plans
            except InvalidCluster:
                if is_late:
                    raise
            time.sleep(_POLL_SECONDS)

    def _line(self, plan: HostPlan) -> ActorLine:
        return ActorLine(plan, self._limits, self._blame)

    def _open(self, line: ActorLine) -> None:
        assert line.plan.node is not None
        line.open(self._folders.get(line.plan.node.identity))

    def _sought(self, lost: ActorLine) -> ActorLine | None:
        """Look once for where a lost host can be again, and start an actor there.

        Its own node, where that is alive, else one that is no other host's: the machine that was
        started again, or one that has joined.
        """
        # One after the other, or two would take the same node.
        with self._seeking:
            lost.give_back()
            others = [line for line in self._lines if line is not lost]
            taken = {line.plan.node.identity for line in others if line.plan.node} | self._refused
            awaited = {line.plan.name for line in others if line.lost}
            left = [
                node
                for node in nodes_of_cluster()
                if node.identity not in taken and not awaited & set(node.called)
            ]
            for node in lost.plan.possible(left):
                line = self._line(replace(lost.plan, node=node))
                line.reserve()
                if line.begin(self._limits.gathering_seconds) and self._opens(line):
                    self._lines[self._lines.index(lost)] = line
                    if self._closed.is_set():
                        line.give_back()
                    return line
            return None

    def _opens(self, line: ActorLine) -> bool:
        try:
            self._open(line)
        except InvalidInput:
            assert line.plan.node is not None
            self._refused.add(line.plan.node.identity)
        except HostLost:
            # Gone again; it is looked for once more.
            pass
        else:
            return True
        line.give_back()
        return False

    def _watch_head(self) -> None:
        """Notice that the head has ended, before Ray ends this program for it without a word."""
        heard = time.monotonic()
        while not self._closed.wait(_POLL_SECONDS):
            begin = time.monotonic()
            if self._head_answers():
                heard = begin
            elif time.monotonic() - heard > self._limits.host_silence_seconds:
                for line in self._lines:
                    line.lose("the head does not answer")
                return

    def _blame(self, reason: str) -> str:
        """Return why a host is lost: its own reason, unless the head is."""
        if self._head_answers():
            return reason
        self._head_is_lost = True
        return f"the head of the Ray cluster, {self._head}, has ended or is cut off"

    def _head_answers(self) -> bool:
        name, _, port = self._head.rpartition(":")
        return listens(name, int(port))
