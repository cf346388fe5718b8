"""The controller's side of a host of a Ray cluster: an actor, from its reservation to its end."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    RayTaskError,
)
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from drlpp.errors import DRLPPError, HostLost, InvalidInput, RunFailure, StorageFailure
from drlpp.io.files import is_storage_error
from drlpp.runtime.hosts.host import Event, WorkerHost
from drlpp.runtime.hosts.on_ray.actor import Report, host_actor, machine_identity
from drlpp.runtime.hosts.on_ray.nodes import HostPlan
from drlpp.runtime.ipc.protocol import Command, RunResult, WorkerSpec
from drlpp.runtime.ipc.time_limits import TimeLimits

_CLOCK_READINGS = 5
_LOOK_SECONDS = 0.5
"""Between two looks whether a host that is waited for is lost."""


class RayHost(WorkerHost):
    """The workers of one actor, from when its accelerators are asked for until they are given back.

    From :meth:`open` on a thread asks for its events all the time. An actor that says nothing for
    ``host_silence_seconds`` is lost, for ever. Another object, with the same workers and name,
    takes its place among the hosts if it returns.

    Args:
        plan: of the host; it is lost from the beginning if that has no node.
        folder: of the session on this machine; what is fetched is put there.
        limits: how long to wait for it; may be replaced.
        blame: returns what a host is lost by, if that is known better, given what it seems to be.

    Attributes:
        folder: of the session there.
        arrived: what the host has reported, and nobody has taken yet.
    """

    def __init__(
        self, plan: HostPlan, folder: Path, limits: TimeLimits, blame: Callable[[str], str]
    ) -> None:
        self.plan = plan
        self.workers = plan.workers
        self.name = plan.name
        self.address = plan.node.address if plan.node else ""
        self.folder, self.machine, self.cores = "", f"of missing host {plan.name}", ()
        self.arrived: deque[Report] = deque()
        # What waits for workers of this machine waits for files, not for objects of Ray.
        self._news, self._tell = Pipe(duplex=False)
        self.lost = None if plan.node else HostLost(f"host {plan.name} is not there")
        self._own_folder = folder
        self.limits = limits
        self._blame = blame
        self._group: PlacementGroup | None = None
        if plan.node:
            node_id = {"ray.io/node-id": plan.node.identity}
            self._group = placement_group(
                [{plan.kind: len(plan.workers)}], bundle_label_selector=[node_id]
            )
        self._actor: Any = None
        self._begun: Any = None
        self._sent: list[Any] = []
        self._closed = False
        self._generation = 0
        self._process_ids: list[int] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)

    # The actor

    def begin(self, seconds: float) -> bool:
        """Start the actor; return False if others have the accelerators for so long."""
        assert self._group is not None
        count, kind = len(self.workers), self.plan.kind
        if not self._group.wait(seconds):
            self.give_back()
            return False
        actor = ray.remote(host_actor()).options(
            max_restarts=0,
            max_task_retries=0,
            num_cpus=count if kind == "CPU" else 0,
            num_gpus=count if kind == "GPU" else 0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group),
        )
        self._actor = actor.remote()
        return True

    def open(self) -> None:
        """Have the actor keep workers, and ask it for events from now on.

        Raises:
            InvalidInput: the host has other versions.
            DRLPPError: it cannot begin, or does not answer.
        """
        assert self.plan.node is not None
        is_here = self.plan.node.identity == ray.get_runtime_context().get_node_id()
        ours, folder = host_actor().versions(), str(self._own_folder) if is_here else None
        given = self.workers, self.name, self.address, folder
        found = self._reply(self._remote("open", ours, *given))
        if isinstance(found, str):
            raise InvalidInput(
                f"host {self.name} has {found}, and this one {ours}; install the same versions on "
                "all hosts"
            )
        self.folder, self.machine, self.cores = found
        self._listener.start()

    def _listen(self) -> None:
        """Collect what the host reports, until it is lost or closed."""
        asked = None
        while not self._closed and self.lost is None:
            silence = self.limits.host_silence_seconds
            begin, reason = time.monotonic(), ""
            try:
                asked = asked or self._actor.call.remote("next_events")
                batch = ray.get(asked, timeout=silence)
            except GetTimeoutError:
                # Longer than that: this process was stopped, and the answer is here.
                if time.monotonic() - begin < silence + self.limits.stopped_seconds:
                    reason = f"no sign of life for {silence:.0f} s"
            except Exception as error:
                # Of Ray, whatever it is: a connection that is closed, an actor that is dead.
                reason = reason_of(error)
            else:
                asked = None
                if batch:
                    self.arrived.extend(batch)
                    self._tell.send_bytes(b"events")
            if reason and not self._closed:
                self.lose(reason)

    def lose(self, reason: str) -> HostLost:
        """Note that the host is lost, which whoever deals with it from now on is told."""
        if self.lost is None:
            self.lost = HostLost(f"host {self.name} cannot be reached: {self._blame(reason)}")
            self._tell.send_bytes(b"lost")
        return self.lost

    def give_back(self) -> None:
        """End the actor, which may only be cut off, and let others have the accelerators."""
        with suppress(Exception):
            if self._actor is not None:
                ray.kill(self._actor)
        with suppress(Exception):
            if self._group is not None:
                remove_placement_group(self._group)
        self._actor = self._group = None

    # What it is asked

    def _order(self, order: str, *given: Any) -> Any:
        """Give the actor an order, see ``HostKeeper``; return what :meth:`_reply` waits for."""
        return self._remote("call", "order", order, *given)

    def _remote(self, method: str, *given: Any) -> Any:
        return self._of_ray(lambda: getattr(self._actor, method).remote(*given))

    def _of_ray(self, call: Callable[[], Any]) -> Any:
        """Return what Ray says; whatever it raises, the host is lost."""
        if self.lost:
            raise self.lost
        try:
            return call()
        except (GetTimeoutError, RayTaskError):
            raise
        except Exception as error:
            raise self.lose(reason_of(error)) from None

    def _reply(self, asked: Any, seconds: float | None = None) -> Any:
        """Wait for an answer of the actor; raise what the order has raised."""
        limit = seconds or self.limits.host_start_seconds
        give_up = time.monotonic() + limit
        while True:
            try:
                return self._of_ray(lambda: ray.get(asked, timeout=_LOOK_SECONDS))
            except GetTimeoutError:
                if time.monotonic() > give_up:
                    raise self.lose(f"no answer within {limit:.0f} s") from None
            except RayTaskError as error:
                cause = error.cause
                kind: type[DRLPPError] = RunFailure
                if isinstance(cause, DRLPPError):
                    kind = type(cause)
                elif isinstance(cause, OSError) and is_storage_error(cause):
                    kind = StorageFailure
                raise kind(f"host {self.name}: {cause}") from None

    def _seconds(self) -> float:
        """Return what time it is there."""
        asked = self._remote("call", "seconds")
        seconds: float = self._reply(asked, self.limits.host_silence_seconds)
        return seconds

    # Its workers

    @property
    def process_ids(self) -> list[int]:
        return list(self._process_ids)

    def start(self, posts: Sequence[WorkerSpec]) -> None:
        self._generation += 1
        self._begun = self._order("begin", self._generation, tuple(posts))

    def finish_start(self) -> None:
        self._process_ids = self._reply(self._begun)

    def send(self, worker: int, command: Command) -> None:
        self._sent.append(self._order("send", worker, command))

    def finish_send(self) -> None:
        while self._sent:
            self._reply(self._sent.pop())

    def waitables(self) -> list[Any]:
        if self.lost:
            raise self.lost
        return [self._news]

    def events(self, ready: Container[object]) -> list[Event]:
        if self._news in ready:
            self._news.recv_bytes()
        if self.lost:
            raise self.lost
        found = []
        while self.arrived:
            generation, event = self.arrived.popleft()
            # Workers that were replaced may have said something before they ended.
            if generation == self._generation:
                found.append(self._on_our_clock(event))
        return found

    def _on_our_clock(self, event: Event) -> Event:
        match event:
            case (worker, RunResult() as result) if self.machine != machine_identity():
                readings = []
                for _ in range(_CLOCK_READINGS):
                    begin = time.perf_counter()
                    theirs = self._seconds()
                    end = time.perf_counter()
                    readings.append((end - begin, theirs - (begin + end) / 2))
                # How far that machine's clock is ahead, by the reading that took least.
                return worker, result.later(-min(readings)[1])
        return event

    def check(self) -> None:
        self._seconds()

    def kill(self) -> None:
        self._reply(self._order("kill"))
        self._forget()

    def close(self) -> None:
        """End the workers and the actor; Ray ends those of a lost host."""
        with suppress(DRLPPError):
            if self._actor is not None and self.lost is None:
                self._reply(self._remote("close"))
        self._closed = True
        self._forget()

    def _forget(self) -> None:
        # A generation that nobody speaks of any more.
        self._generation += 1
        self._process_ids, self._sent = [], []

    # Its copies of the session's files, which travel by Ray's stores of objects

    @property
    def _shares_folder(self) -> bool:
        return self.folder == str(self._own_folder)

    def publish(self, path: Path) -> None:
        if not self._shares_folder:
            content = np.fromfile(path, np.uint8)
            put = self._of_ray(lambda: ray.put(content))
            # However long it takes: whether the host lives is known meanwhile.
            self._reply(self._order("write", path.name, put), math.inf)

    def remove(self, file: str) -> None:
        if not self._shares_folder:
            self._order("remove", file)

    def fetch(self, file: str) -> Path:
        path = self._own_folder / file
        if not self._shares_folder:
            path.write_bytes(self._reply(self._order("read", file), math.inf))
        return path


def reason_of(error: Exception) -> str:
    """Return what an error of Ray's means for a host, in words of ours."""
    if isinstance(error, ActorDiedError | ActorUnavailableError):
        return "the process that keeps its workers has ended, or Ray's on that host has"
    return f"Ray says {' '.join(str(error).split())[:300] or type(error).__name__}"
