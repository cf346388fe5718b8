"""What runs on each host of a Ray cluster: an actor that keeps the workers of a session there.

Tensors between workers never pass it. One loop reads what workers say and answers the controller;
orders, which may take time, are carried out one after the other by a thread. So the controller,
which asks for events all the time, is answered while workers begin or a file is written, and knows
that the host lives. Ray ends the actor, and so its workers, when the program that started it, the
raylet or the connection to the head is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection as mp_connection
from pathlib import Path
from typing import Any

import numpy as np

from drlpp.runtime.hosts.host import Ended, Event, LocalHost
from drlpp.runtime.ipc.protocol import WorkerSpec
from drlpp.runtime.ipc.session_folder import SessionFolder

_POLL_SECONDS = 0.5
"""The longest time that a host says nothing."""

Report = tuple[int, Event]
"""An event, and of which generation of workers."""


def machine_identity() -> str:
    """Return what tells this machine, since it was started, from all others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def host_actor() -> Any:
    """Return the class of the actor, which Ray does not know yet.

    It is made here so that it travels as code: a host says which versions it has before anything of
    drlpp is imported there.
    """

    class HostActor:
        @staticmethod
        def versions() -> str:
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

        async def open(self, versions: str, *given: Any) -> Any:
            """Begin and return the keeper's facts, or other versions than those.

            What is given is nothing of drlpp's, which may not be there.
            """
            if self.versions() != versions:
                return self.versions()
            from drlpp.runtime.hosts.fork_server import warm_up

            # It loads torch while this process does.
            warm_up()
            from drlpp.runtime.hosts.on_ray.actor import HostKeeper

            self._keeper = HostKeeper(*given)
            return self._keeper.facts

        async def call(self, name: str, *given: Any) -> Any:
            return await getattr(self._keeper, name)(*given)

        async def close(self) -> None:
            import shutil
            from multiprocessing import util

            await self._keeper.order("close")
            # Ray ends actors without the chance to remove it that other processes have.
            shutil.rmtree(util.get_temp_dir(), ignore_errors=True)

    return HostActor


class HostKeeper(LocalHost):
    """The inside of a host's actor: its workers, and its copies of the session's files.

    Args:
        workers, name, address: as in :class:`LocalHost`.
        folder: of the session, if the controller runs on this host; else it gets one of its own.
    """

    def __init__(self, workers: Sequence[int], name: str, address: str, folder: str | None) -> None:
        self._own = SessionFolder() if folder is None else None
        super().__init__(workers, Path(self._own.name if self._own else str(folder)), name, address)
        self._generation = 0
        self._watched: list[Any] = []
        self._reports: list[Report] = []
        self._news = asyncio.Event()
        self._one_by_one = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    @property
    def facts(self) -> tuple[str, str, tuple[int, ...]]:
        """The session's folder here, what tells the machine from others, and its cores."""
        return str(self.folder), machine_identity(), self.cores

    async def seconds(self) -> float:
        """Return what time it is here."""
        return time.perf_counter()

    async def next_events(self) -> list[Report]:
        """Return what has happened since the last call, after a short time if nothing has."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), _POLL_SECONDS)
        self._news.clear()
        found, self._reports = self._reports, []
        return found

    async def order(self, name: str, *given: Any) -> Any:
        """Carry out an order after those before: a method below, or of ``LocalHost``."""
        async with self._one_by_one:
            if name in ("kill", "close"):
                self._watch(())
            found = await asyncio.to_thread(getattr(self, name), *given)
            if name == "begin":
                self._watch(self.waitables())
            return found

    def begin(self, generation: int, posts: Sequence[WorkerSpec]) -> list[int]:
        """Start the workers, and return their process ids."""
        self._generation = generation
        # Ray kills an actor's whole group.
        self.start([replace(post, own_group=True) for post in posts])
        return self.process_ids

    def write(self, file: str, content: np.ndarray[Any, Any]) -> None:
        """Write the host's copy of a file, which is there for workers once it is whole."""
        partial = self.folder / f".{file}.partial"
        try:
            partial.write_bytes(content.data)
            partial.replace(self.folder / file)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def read(self, file: str) -> np.ndarray[Any, Any]:
        """Return a file that a worker has written."""
        return np.fromfile(self.folder / file, np.uint8)

    def close(self) -> None:
        """End the workers and remove the files; this object is of no use after that."""
        try:
            super().close()
        finally:
            if self._own:
                self._own.cleanup()

    def _watch(self, waitables: Sequence[Any]) -> None:
        """Hear of these from now on, and of no others."""
        for one in self._watched:
            self._loop.remove_reader(one)
        for one in waitables:
            self._loop.add_reader(one, self._hear)
        self._watched = list(waitables)

    def _hear(self) -> None:
        """Report what workers say until one ends, after which all are replaced."""
        events = self.events(mp_connection.wait(self._watched, 0))
        if any(isinstance(what, Ended) for _, what in events):
            self._watch(())
        self._reports += [(self._generation, event) for event in events]
        self._news.set()
