"""The hosts of a session on a Ray cluster: found, reserved, checked, and given back."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from drlpp.errors import DRLPPError, HostLost, InvalidCluster, InvalidInput
from drlpp.runtime.hosts.host_keeper import machine_identity
from drlpp.runtime.hosts.on_ray.actor import GROUPS, host_actor
from drlpp.runtime.hosts.on_ray.connection import (
    CLIENT,
    connect,
    gcs_address,
    listens,
    nodes_of_cluster,
)
from drlpp.runtime.hosts.on_ray.host import Contact, RayHost
from drlpp.runtime.hosts.on_ray.line import reason_of
from drlpp.runtime.hosts.on_ray.nodes import (
    NOWHERE,
    HostPlan,
    check_enough,
    in_turn,
    kind_of_accelerators,
    matched,
    matched_with_others,
    started_where_free,
)
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.specs.cluster import Cluster

_POLL_SECONDS = 0.5


@dataclass
class _Place:
    """Where a host of a session is: its plan, the bundle of a group that is its, and its actor.

    One that is missing has neither.
    """

    plan: HostPlan
    group: PlacementGroup | None = None
    bundle: int = 0
    actor: Any = None


class RayHosts:
    """The hosts of one session, which have their accelerators to themselves until :meth:`close`.

    Args:
        address: of the Ray cluster.
        workers: how many; None for all that there is room for.
        description: of the hosts that are wanted; else the first that there are.
        gpus: whether workers may compute on GPUs.
        folder: of the session on this machine.
        limits: of the session.
        least: of the workers to begin with, if not all of the description's hosts, and others up to
            ``workers``, are there in time.

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
        self._folder = folder
        self._closed = threading.Event()
        self._head_is_lost = False
        self._outside = address.startswith(CLIENT)
        self._head = address.removeprefix(CLIENT) if self._outside else gcs_address()
        self._groups: list[PlacementGroup] = []
        self._actors: list[Any] = []
        self._refused: set[str] = set()
        self._seeking = threading.Lock()
        self.hosts: list[RayHost] = []
        try:
            plans = self._planned(workers, description, gpus, least)
            self._places = self._started(plans) if least is None else self._some_started(plans)
            if least is not None:
                check_enough([place.plan for place in self._places], least, nodes_of_cluster())
            missing = [place.plan.is_missing for place in self._places]
            opened = iter(self._opened([p for p in self._places if not p.plan.is_missing]))
            contacts = [None if is_missing else next(opened) for is_missing in missing]
        except BaseException:
            self.close()
            raise
        self.hosts = [
            RayHost(
                contact,
                place.plan.workers,
                place.plan.name,
                folder,
                machine_identity(),
                limits,
                self._blame,
                partial(self._sought, number),
            )
            for number, (place, contact) in enumerate(zip(self._places, contacts, strict=True))
        ]
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
        for actor in self._actors:
            with suppress(Exception):
                ray.kill(actor)
        for group in self._groups:
            with suppress(Exception):
                remove_placement_group(group)

    def _planned(
        self, workers: int | None, description: Cluster | None, gpus: bool, least: int | None
    ) -> list[HostPlan]:
        """Return the hosts; wait for those that are on their way."""
        give_up = time.monotonic() + self._limits.gathering_seconds
        while True:
            nodes = nodes_of_cluster()
            is_late = time.monotonic() > give_up
            try:
                if description is None:
                    return in_turn(nodes, kind_of_accelerators(nodes, gpus=gpus), workers)
                if least is None or workers is None:
                    return matched(description, nodes, gpus=gpus)
                plans = matched_with_others(description, nodes, workers, gpus=gpus)
                if is_late or not any(plan.is_missing for plan in plans):
                    return plans
            except InvalidCluster:
                if is_late:
                    raise
            time.sleep(_POLL_SECONDS)

    def _some_started(self, plans: Sequence[HostPlan]) -> list[_Place]:
        """Start each host by itself; one is missing where others have all accelerators for it."""
        nodes, places = nodes_of_cluster(), [_Place(plan) for plan in plans]
        for number, plan in enumerate(plans):
            others = [place.plan for place in places if place.plan is not plan]
            taken = {other.node.identity for other in others}
            awaited = {other.name for other in others if other.is_missing}
            left = [
                node
                for node in nodes
                if node.identity not in taken
                and (node == plan.node or not awaited & set(node.called))
            ]
            place = None if plan.is_missing else started_where_free(plan, left, self._started_one)
            places[number] = place or _Place(replace(plan, node=NOWHERE))
        return places

    def _started_one(self, plan: HostPlan) -> _Place:
        (place,) = self._started([plan])
        return place

    def _started(self, plans: Sequence[HostPlan]) -> list[_Place]:
        """Reserve the accelerators, all or none, and start an actor on every host."""
        group = placement_group(
            [{plan.kind: len(plan.workers)} for plan in plans],
            bundle_label_selector=[{"ray.io/node-id": plan.node.identity} for plan in plans],
        )
        self._groups.append(group)
        if not group.wait(self._limits.gathering_seconds):
            remove_placement_group(group)
            self._groups.remove(group)
            raise InvalidCluster(
                "another program or session has accelerators of the Ray cluster that are wanted: "
                + ", ".join(f"{len(p.workers)} {p.kind}s of {p.node.address}" for p in plans)
                + "; end it, or ask for fewer workers"
            )
        return [
            _Place(plan, group, bundle, self._actor(plan, group, bundle))
            for bundle, plan in enumerate(plans)
        ]

    def _actor(self, plan: HostPlan, group: PlacementGroup, bundle: int) -> Any:
        # Its types know nothing of groups.
        remote: Any = ray.remote
        actor = remote(concurrency_groups=GROUPS)(host_actor()).options(
            max_restarts=0,
            max_task_retries=0,
            num_cpus=len(plan.workers) if plan.kind == "CPU" else 0,
            num_gpus=len(plan.workers) if plan.kind == "GPU" else 0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle),
        )
        self._actors.append(actor.remote())
        return self._actors[-1]

    def _opened(self, places: Sequence[_Place]) -> list[Contact]:
        """Let the actors begin, after their versions have been compared with those here."""
        ours = host_actor()().versions()
        asked = [place.actor.versions.remote() for place in places]
        for place, theirs in zip(places, self._answers(places, asked), strict=True):
            if theirs != ours:
                raise InvalidInput(
                    f"host {place.plan.name} has {theirs}, and this one {ours}; install the same "
                    "versions on all hosts"
                )
        here = ray.get_runtime_context().get_node_id()
        asked = [
            place.actor.open.remote(
                place.plan.workers,
                place.plan.name,
                place.plan.node.address,
                # Only where the controller's own files are those of the host.
                str(self._folder)
                if place.plan.node.identity == here and not self._outside
                else None,
                self._limits,
            )
            for place in places
        ]
        return [
            Contact(place.actor, facts, place.plan.node.address)
            for place, facts in zip(places, self._answers(places, asked), strict=True)
        ]

    def _answers(self, places: Sequence[_Place], asked: Sequence[Any]) -> list[Any]:
        found = []
        for place, reference in zip(places, asked, strict=True):
            name, limit = place.plan.name, self._limits.host_start_seconds
            try:
                answer = ray.get(reference, timeout=limit)
            except GetTimeoutError:
                raise HostLost(f"host {name} has not begun within {limit:.0f} s") from None
            except RayError as error:
                raise HostLost(f"host {name} cannot begin: {reason_of(error)}") from None
            if isinstance(answer, DRLPPError):
                raise type(answer)(f"host {name}: {answer}")
            found.append(answer)
        return found

    def _sought(self, number: int) -> Contact | None:
        """Look once for where a lost host can be again, and start an actor there.

        Its own node, where that is alive, else one that is no other host's: the machine that was
        started again, or one that has joined.
        """
        # One after the other, or two would take the same node.
        with self._seeking:
            return self._sought_alone(number)

    def _sought_alone(self, number: int) -> Contact | None:
        lost = self._places[number]
        with suppress(Exception):
            # It may only have been cut off, and keep what it had.
            ray.kill(lost.actor)
        taken = {place.plan.node.identity for place in self._places if place is not lost}
        others = {host.name for host in self.hosts if host.is_lost} - {lost.plan.name}
        nodes = [
            node
            for node in nodes_of_cluster()
            if node.identity not in taken | self._refused and not others & set(node.called)
        ]

        def start(plan: HostPlan) -> _Place:
            if lost.group is not None and plan.node.identity == lost.plan.node.identity:
                actor = self._actor(plan, lost.group, lost.bundle)
                return replace(lost, plan=plan, actor=actor)
            return self._started_one(plan)

        place = started_where_free(lost.plan, nodes, start)
        if place is None:
            return None
        try:
            (contact,) = self._opened([place])
        except InvalidInput:
            self._refused.add(place.plan.node.identity)
        except HostLost:
            # Gone again; it is looked for once more.
            pass
        else:
            self._places[number] = place
            if self._closed.is_set():
                self._give_back()
            return contact
        ray.kill(place.actor)
        if place.group is not None and place.group is not lost.group:
            remove_placement_group(place.group)
        return None

    def _watch_head(self) -> None:
        """Notice that the head has ended, before Ray ends this program for it without a word."""
        silent_since: float | None = None
        while not self._closed.wait(_POLL_SECONDS):
            begin = time.monotonic()
            if self._head_answers():
                silent_since = None
                continue
            silent_since = silent_since or begin
            if time.monotonic() - silent_since > self._limits.host_silence_seconds:
                for host in self.hosts:
                    host.lose("the head does not answer")
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
