"""The line to the actor that keeps a host's workers: orders, answers, reports, and its end."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from multiprocessing import Pipe
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError

from drlpp.errors import DRLPPError, HostLost
from drlpp.runtime.hosts.host_keeper import Report
from drlpp.runtime.ipc.time_limits import TimeLimits

_LOOK_SECONDS = 0.5

Call = Callable[[], Any]
"""What makes Ray do something, and returns its reference to the answer."""


class ActorLine:
    """The line to one actor, from when it is open until it is lost or closed.

    A thread asks for its events all the time. So each side knows that the other lives: an actor
    that says nothing for ``host_silence_seconds`` is lost. Another thread calls Ray for all else,
    since Ray may wait for ever where its own processes have ended.

    Args:
        actor: of the host (:mod:`drlpp.runtime.hosts.on_ray.actor`), open.
        name: of the host.
        limits: how long to wait for it.
        blame: returns what a host is lost by, if that is known better, given what it seems to be.
        lost: how it was lost before it was there, if there is no actor.

    Attributes:
        actor: as given.
        arrived: what the workers' host has reported, and nobody has taken yet.
        news: can be read when there is something new: what waits for workers of this machine waits
            for files, not for objects of Ray.
        lost: how the actor was lost.
        orders: how many have been given.
    """

    def __init__(
        self,
        actor: Any,
        name: str,
        limits: TimeLimits,
        blame: Callable[[str], str],
        lost: HostLost | None = None,
    ) -> None:
        self.actor = actor
        self.arrived: deque[Report] = deque()
        self.news, self._tell = Pipe(duplex=False)
        self.lost = lost
        self.orders = 0
        self._name = name
        self._limits = limits
        self._blame = blame
        self._calls: queue.SimpleQueue[tuple[Call, Future[Any]]] = queue.SimpleQueue()
        self._closed = False
        self._listening = threading.Thread(target=self._listen, daemon=True)
        for thread in (self._listening, threading.Thread(target=self._call_ray, daemon=True)):
            thread.start()

    def ask(self, order: str, *given: Any) -> Any:
        """Give the actor an order and return what it gives; errors are those of :meth:`reply`."""
        return self.reply(self.order(order, *given))

    def order(self, order: str, *given: Any) -> Future[Any]:
        """Give the actor an order.

        Raises:
            HostLost: it is lost.
        """
        self.check()
        self.orders += 1
        return self.call(partial(self.actor.order.remote, self.orders, order, *given))

    def call(self, call: Call) -> Future[Any]:
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
                answer = reply.result(_LOOK_SECONDS)
                break
            except TimeoutError:
                if time.monotonic() > give_up:
                    raise self.lose(f"no answer within {limit:.0f} s") from None
            except RayError as error:
                raise self.lose(reason_of(error)) from None
        if isinstance(answer, DRLPPError):
            raise type(answer)(f"host {self._name}: {answer}")
        return answer

    def check(self) -> None:
        """Raise how the actor was lost, if it is."""
        if self.lost:
            raise self.lost

    def lose(self, reason: str) -> HostLost:
        """Note that the host is lost, which whoever deals with it from now on is told."""
        if self.lost is None:
            self.lost = HostLost(f"host {self._name} cannot be reached: {self._blame(reason)}")
            self._tell.send_bytes(b"lost")
        return self.lost

    def close(self) -> None:
        """Call and listen no more."""
        self._closed = True

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
                    asked = asked or self.actor.next_events.remote()
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
    return f"Ray says {' '.join(str(error).split())[:200] or type(error).__name__}"
