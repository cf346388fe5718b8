"""What runs on each host of a Ray cluster: an actor that keeps the workers of a session there.

It computes nothing itself. It starts workers, passes commands on to them and their answers back,
and keeps the host's copies of the session's files. The controller's side of it is
:mod:`drlpp.runtime.hosts.on_ray.host`. Ray places it and says when it has died; tensors and the
exchange between workers never pass it.

Calls of one concurrency group are carried out one after the other, in the order given, by a thread
of their own::

    orders   start, stop, commands, files     all that changes something
    events   what workers have said           asked for all the time: each side lives
    clock    what time it is                  also while a file is written
"""

from __future__ import annotations

from typing import Any

GROUPS = {"orders": 1, "events": 1, "clock": 1}


def host_actor() -> Any:
    """Return the class of the actor, which Ray does not know yet.

    Since it is made here, it travels as code, not as a name: a host says which versions it has
    before anything of drlpp is imported there.
    """
    import ray

    class HostActor:
        """Keeps the workers of a host; the rest of it is :class:`HostKeeper`."""

        def __init__(self) -> None:
            self._keeper: Any = None
            self._orders = 0

        def versions(self) -> str:
            """Return what has to be equal on all hosts."""
            import sys
            from importlib import metadata

            found = []
            for package in ("drlpp", "torch"):
                try:
                    found.append(f"{package} {metadata.version(package).partition('+')[0]}")
                except metadata.PackageNotFoundError:
                    found.append(f"no {package}")
            return ", ".join([*found, f"Python {sys.version_info.major}.{sys.version_info.minor}"])

        @ray.method(concurrency_group="orders")
        def open(self, *given: Any) -> Any:
            from drlpp.runtime.hosts.fork_server import warm_up

            # It loads torch while this process does.
            warm_up()
            from drlpp.runtime.hosts.host_keeper import HostKeeper, end_when_abandoned

            self._keeper = HostKeeper(*given)
            end_when_abandoned(self._keeper)
            return self._keeper.facts

        @ray.method(concurrency_group="orders")
        def order(self, number: int, name: str, *given: Any) -> Any:
            """Carry out the order with that number: the next one, or something is wrong with Ray.

            Returns:
                What it gives, or the error that it raised.
            """
            self._orders += 1
            if number != self._orders:
                raise RuntimeError(f"order {number}, {name}, came as the {self._orders}th")
            return self._keeper.carry_out(name, given)

        @ray.method(concurrency_group="orders")
        def close(self) -> Any:
            """End the workers, and leave nothing behind."""
            import shutil
            from multiprocessing import util

            answer = self._keeper.carry_out("close", ())
            # Ray ends actors without the chance to remove it that other processes have.
            shutil.rmtree(util.get_temp_dir(), ignore_errors=True)
            return answer

        @ray.method(concurrency_group="events")
        def next_events(self) -> Any:
            return self._keeper.next_events()

        @ray.method(concurrency_group="clock")
        def seconds(self) -> float:
            import time

            return time.perf_counter()

    return HostActor
