"""The line to the actor that keeps a host's workers: it begins, takes orders, reports, and ends."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    RayError,
    RayTaskError,
)
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from drlpp.errors import DRLPPError, HostLost, InvalidInput, RunFailure, StorageFailure
from drlpp.io.disk_errors import is_storage_error
from drlpp.runtime.hosts.on_ray.actor import GROUPS, host_actor
from drlpp.runtime.hosts.on_ray.keeper import HostFacts, Report
from drlpp.runtime.hosts.on_ray.nodes import HostPlan
from drlpp.runtime.ipc.time_limits import TimeLimits

_LOOK_SECONDS = 0.5


class ActorLine:
    """The line to one actor, from when its accelerators are reserved until they are given back.

    From :meth:`open` on a thread asks for its events all the time. So each side knows that the
    other lives: an actor that says nothing for ``host_silence_seconds`` is lost. Another thread
    calls Ray for all else, since Ray may wait for ever where its own processes have ended.

    Args:
        plan: of the host; it is lost from the beginning if that has no node.
        limits: how long to wait for it.
        blame: returns what a host is lost by, if that is known better, given what it seems to be.

    Attributes:
        plan: as given.
        facts: what the host says of itself, once it is open.
        arrived: what the host has reported, and nobody has taken yet.
        news: can be read when there is something new: what waits for workers of this machine waits
            for files, not for objects of Ray.
        lost: how the actor was lost.
    """

    def __init__(self, plan: HostPlan, limits: TimeLimits, blame: Callable[[str], str]) -> None:
        self.plan = plan
        self.facts = HostFacts("", f"of missing host {plan.name}", ())
        self.arrived: deque[Report] = deque()
        self.news, self._tell = Pipe(duplex=False)
        self.lost = None if plan.node else HostLost(f"host {plan.name} is not there")
        self._limits = limits
        self._blame = blame
        self._group: PlacementGroup | None = None
        self._actor: Any = None
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._closed = False

    def reserve(self) -> None:
        """Ask for the accelerators; :meth:`begin` waits for them."""
        assert self.plan.node is not None
        self._group = placement_group(
            [{self.plan.kind: len(self.plan.workers)}],
            bundle_label_selector=[{"ray.io/node-id": self.plan.node.identity}],
        )

    def begin(self, seconds: float) -> bool:
        """Start the actor; return False if others have the accelerators for so long."""
        assert self._group is not None
        if not self._group.wait(seconds):
            self.give_back()
            return False
        count, kind = len(self.plan.workers), self.plan.kind
        # Its types know nothing of groups.
        remote: Any = ray.remote
        actor = remote(concurrency_groups=GROUPS)(host_actor()).options(
            max_restarts=0,
            max_task_retries=0,
            num_cpus=count if kind == "CPU" else 0,
            num_gpus=count if kind == "GPU" else 0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group),
        )
        self._use(actor.remote())
        return True

    def _use(self, actor: Any) -> None:
        self._actor = actor
        threading.Thread(target=self._call_ray, daemon=True).start()

    def open(self, folder: str | None) -> None:
        """Let the actor begin, after its versions have been compared with those here.

        Args:
            folder: of the session, if the controller's files are those of the host.

        Raises:
            InvalidInput: the host has other versions.
            HostLost: it does not answer.
        """
        plan, node = self.plan, self.plan.node
        assert node is not None
        ours = host_actor()().versions()
        theirs = self.reply(self.call(self._actor.versions.remote))
        if theirs != ours:
            raise InvalidInput(
                f"host {plan.name} has {theirs}, and this one {ours}; install the same versions on "
                "all hosts"
            )
        given = plan.workers, plan.name, node.address, folder, self._limits
        self.facts = self.reply(self.call(partial(self._actor.open.remote, *given)))
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, order: str, *given: Any) -> Any:
        """Give the actor an order and return what it gives; errors are those of :meth:`reply`."""
        return self.reply(self.order(order, *given))

    def order(self, order: str, *given: Any) -> Future[Any]:
        """Give the actor an order, a method of ``HostKeeper``.

        Raises:
            HostLost: it is lost.
        """
        self.check()
        return self.call(partial(self._actor.order.remote, order, *given))

    def seconds(self) -> float:
        """Return what time it is there.

        Raises:
            HostLost: the host does not answer.
        """
        self.check()
        asked = self.call(self._actor.seconds.remote)
        seconds: float = self.reply(asked, self._limits.host_silence_seconds)
        return seconds

    def call(self, call: Callable[[], Any]) -> Future[Any]:
        """Have Ray called, in the order of the calls, and return what the answer will be."""
        reply: Future[Any] = Future()
        self._calls.put((call, reply))
        return reply

    def reply(self, reply: Future[Any], seconds: float | None = None) -> Any:
        """Wait for what an order gives.

        Raises:
            HostLost: the host does not answer.
            DRLPPError: what the order has raised.
        """
        limit = seconds or self._limits.host_start_seconds
        give_up = time.monotonic() + limit
        while True:
            self.check()
            try:
                return reply.result(_LOOK_SECONDS)
            except TimeoutError:
                if time.monotonic() > give_up:
                    raise self.lose(f"no answer within {limit:.0f} s") from None
            except RayTaskError as error:
                raise self._error_of(error.cause) from None
            except RayError as error:
                raise self.lose(reason_of(error)) from None

    def _error_of(self, cause: Exception) -> DRLPPError:
        """Return what an order has raised, as an error of that host."""
        kind: type[DRLPPError] = RunFailure
        if isinstance(cause, DRLPPError):
            kind = type(cause)
        elif isinstance(cause, OSError) and is_storage_error(cause):
            kind = StorageFailure
        return kind(f"host {self.plan.name}: {cause}")

    def check(self) -> None:
        """Raise how the actor was lost, if it is."""
        if self.lost:
            raise self.lost

    def lose(self, reason: str) -> HostLost:
        """Note that the host is lost, which whoever deals with it from now on is told."""
        if self.lost is None:
            self.lost = HostLost(f"host {self.plan.name} cannot be reached: {self._blame(reason)}")
            self._tell.send_bytes(b"lost")
        return self.lost

    def close(self) -> None:
        """End the workers; call and listen no more."""
        if self._actor is not None and self.lost is None:
            with suppress(DRLPPError):
                self.reply(self.call(self._actor.close.remote))
        self._closed = True

    def give_back(self) -> None:
        """End the actor, which may only be cut off, and let others have the accelerators."""
        self._closed = True
        with suppress(Exception):
            if self._actor is not None:
                ray.kill(self._actor)
        with suppress(Exception):
            if self._group is not None:
                remove_placement_group(self._group)
        self._actor = self._group = None

    def _call_ray(self) -> None:
        while not self._closed:
            call, reply = self._calls.get()
            try:
                call().future().add_done_callback(partial(_pass_on, reply))
            except Exception as error:
                reply.set_exception(error)

    def _listen(self) -> None:
        """Collect what the host reports, until it is lost or closed."""
        silence = self._limits.host_silence_seconds
        while not self._closed and self.lost is None:
            batch = asked = None
            while batch is None:
                begin = time.monotonic()
                try:
                    asked = asked or self._actor.next_events.remote()
                    batch = ray.get(asked, timeout=silence)
                except GetTimeoutError:
                    # Longer than that: this process was stopped, and the answer is here.
                    if time.monotonic() - begin < silence + self._limits.stopped_seconds:
                        return self._give_up(f"no sign of life for {silence:.0f} s")
                except Exception as error:
                    # Of Ray, whatever it is: a connection that is closed, an actor that is dead.
                    return self._give_up(reason_of(error))
            if batch:
                self.arrived.extend(batch)
                self._tell.send_bytes(b"events")
        return None

    def _give_up(self, reason: str) -> None:
        if not self._closed:
            self.lose(reason)


def _pass_on(reply: Future[Any], done: Future[Any]) -> None:
    error = done.exception()
    if error is None:
        reply.set_result(done.result())
    else:
        reply.set_exception(error)


def reason_of(error: Exception) -> str:
    """Return what an error of Ray's means for a host, in words of ours."""
    if isinstance(error, ActorDiedError | ActorUnavailableError):
        return "the process that keeps its workers has ended, or Ray's on that host has"
    return f"Ray says {' '.join(str(error).split())[:300] or type(error).__name__}"
