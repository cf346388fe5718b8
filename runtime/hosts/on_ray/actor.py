"""What runs on each host of a Ray cluster: an actor that keeps the workers of a session there.

Ray places it and says when it has died; tensors between workers never pass it. Calls of one
concurrency group are carried out one after the other by a thread of their own::

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
        """Keeps the workers of a host; the rest of it is ``HostKeeper``."""

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
            from drlpp.runtime.hosts.on_ray.keeper import HostKeeper

            self._keeper = HostKeeper(*given)
            self._keeper.end_when_left_alone()
            return self._keeper.facts

        @ray.method(concurrency_group="orders")
        def order(self, name: str, *given: Any) -> Any:
            return getattr(self._keeper, name)(*given)

        @ray.method(concurrency_group="orders")
        def close(self) -> None:
            import shutil
            from multiprocessing import util

            self._keeper.close()
            # Ray ends actors without the chance to remove it that other processes have.
            shutil.rmtree(util.get_temp_dir(), ignore_errors=True)

        @ray.method(concurrency_group="events")
        def next_events(self) -> Any:
            return self._keeper.next_events()

        @ray.method(concurrency_group="clock")
        def seconds(self) -> float:
            import time

            return time.perf_counter()

    return HostActor
