"""The workers of a session on all hosts: starting, commanding, watching and replacing them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import connection as mp_connection
from pathlib import Path
from typing import Any

import torch.distributed as dist

from drlpp.errors import HostLost, RunFailure, TrialTimeout, WorkerLost
from drlpp.runtime.hosts.host import (
    Answered,
    Ended,
    Event,
    Interrupted,
    Post,
    StoreAddress,
    WorkerHost,
)
from drlpp.runtime.ipc.commands import Answer, Command, Failed, Progress, Reading, Working
from drlpp.runtime.ipc.store import new_token, open_store
from drlpp.runtime.session.feed import Feed

_GRACE_SECONDS = 0.5
_LOOK_SECONDS = 1.0
_STOPPED_SECONDS = 2.0
"""So much longer than it should, a wait takes only if this process was stopped meanwhile."""


class WorkerPool:
    """Worker processes, numbered from 0.

    After any failure all of them are replaced, because a communication group cannot be repaired;
    ``generation`` counts the sets of workers so far, and ``longest_silence_seconds`` is the longest
    time without a word while a command was carried out. While this process is stopped (Ctrl-Z), and
    its workers with it, nobody waits: that counts as no silence, but in ``stops``.

    Args:
        hosts: that hold the workers, that of the controller first.
        speeds: of every worker, relative to this machine's; slower ones sleep after every pass.
        cores: that every worker computes on, None where it is left to the system.
        folder: of this session on the controller's host.
    """

    def __init__(
        self,
        hosts: Sequence[WorkerHost],
        speeds: Sequence[float],
        cores: Sequence[int | None],
        folder: Path,
    ) -> None:
        self.size = len(speeds)
        self.hosts = tuple(hosts)
        self.folder = folder
        self.generation = 0
        self.longest_silence_seconds = 0.0
        self.stops = 0
        self._silence_seconds = 0.0
        self._speeds = speeds
        self._cores = cores
        self._host_of = {worker: host for host in hosts for worker in host.workers}
        self._lost: HostLost | None = None
        self._stages: Mapping[int, int] = {}
        self._store: dist.TCPStore | None = None

    @property
    def process_ids(self) -> list[int]:
        """Of the workers that run now."""
        return [process for host in self.hosts for process in host.process_ids]

    def start(self) -> None:
        """Start the workers, unless they run; if one has died in the meantime, replace them.

        Raises:
            HostLost: a host does not answer.
        """
        with self._noting_lost_hosts():
            if all(host.is_whole() for host in self.hosts):
                return
            self.kill()
            address = self.hosts[0].address
            self._store = open_store(address)
            store = StoreAddress(address, self._store.port, new_token())
            started: Counter[str] = Counter()
            for host in self.hosts:
                host.start(
                    [
                        Post(
                            worker=worker,
                            place=started[host.name] + number,
                            address=host.address,
                            store=store,
                            speed=self._speeds[worker],
                            core=self._cores[worker],
                        )
                        for number, worker in enumerate(host.workers)
                    ]
                )
                started[host.name] += len(host.workers)
            for host in self.hosts:
                host.finish_start()
            self.generation += 1
            self._stages = {}

    def note_stages(self, stages: Mapping[int, int]) -> None:
        """Which stage each worker holds from now on, for what is said of one that is lost."""
        self._stages = stages

    @contextmanager
    def _noting_lost_hosts(self) -> Iterator[None]:
        """A host that is lost stays lost, and is not waited for again."""
        if self._lost is not None:
            raise self._lost
        try:
            yield
        except HostLost as error:
            self._lost = error
            raise

    def command(
        self,
        commands: Mapping[int, Command],
        timeout_seconds: float,
        on_progress: Callable[[Progress], None] | None = None,
        feed: Feed | None = None,
    ) -> dict[int, Answer]:
        """Give workers their commands and wait for all answers.

        Args:
            commands: by worker.
            timeout_seconds: without any word from a worker after which the trial counts as hung.
            on_progress: called now and then with how far the last stage is.
            feed: goes on with what the workers read while they are waited for; the time that it
                takes counts for no timeout.

        Raises:
            RunFailure: a worker was lost, failed, or did not answer; none is left after that.
            KeyboardInterrupt: Ctrl-C was pressed on another host; nor is one left after that.
        """
        try:
            with self._noting_lost_hosts():
                self._raise_if_ended(self._events(0))
                for worker, command in commands.items():
                    self._host_of[worker].send(worker, command)
                return self._wait_for_answers(set(commands), timeout_seconds, on_progress, feed)
        except BaseException as error:
            self.kill()
            # A host that is cut off may be why nobody answers; killing its workers tells.
            if isinstance(error, TrialTimeout) and self._lost is not None:
                raise self._lost from None
            raise

    def _wait_for_answers(
        self,
        waiting: set[int],
        timeout_seconds: float,
        on_progress: Callable[[Progress], None] | None,
        feed: Feed | None,
    ) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        self._silence_seconds = 0.0
        while waiting:
            fed = feed is not None and feed.advance()
            if fed:
                self._silence_seconds = 0.0
            events = self._events(0 if fed else timeout_seconds)
            if not events:
                if fed:
                    continue
                raise TrialTimeout(
                    f"workers {sorted(waiting)} did not answer within {timeout_seconds:.0f} s; if "
                    "they need longer, give a longer time limit (--timeout, timeout_seconds)"
                )
            silence, self._silence_seconds = self._silence_seconds, 0.0
            self.longest_silence_seconds = max(self.longest_silence_seconds, silence)
            for event in events:
                if not isinstance(event, Answered):
                    continue
                if isinstance(event.answer, Failed):
                    # A worker that has died makes the others fail, and may be noticed after them.
                    self._raise_if_one_ends(events)
                    raise event.answer.error
                if isinstance(event.answer, Working):
                    continue
                if isinstance(event.answer, Progress):
                    if on_progress:
                        on_progress(event.answer)
                    continue
                if isinstance(event.answer, Reading):
                    assert feed is not None
                    feed.heard(event.worker, event.answer)
                    continue
                answers[event.worker] = event.answer
                waiting.discard(event.worker)
            if waiting:
                self._raise_if_ended(events)
        return answers

    def _events(self, timeout_seconds: float) -> list[Event]:
        """What has happened on the hosts; none if nothing has in time."""
        left = timeout_seconds
        while True:
            waitables = [waitable for host in self.hosts for waitable in host.waitables()]
            ready, seconds = self._wait(waitables, min(left, _LOOK_SECONDS))
            left -= seconds
            events = [event for host in self.hosts for event in host.events(ready)]
            for event in events:
                if isinstance(event, Interrupted):
                    raise KeyboardInterrupt(f"on host {event.host}")
            if events or left <= 0:
                return events

    def _wait(self, waitables: Sequence[Any], seconds: float) -> tuple[list[Any], float]:
        """Those that are ready, and how long they were waited for."""
        begin = time.monotonic()
        ready = mp_connection.wait(waitables, max(0.0, seconds))
        waited = time.monotonic() - begin
        if waited > seconds + _STOPPED_SECONDS:
            self.stops += 1
            waited = seconds
        self._silence_seconds += waited
        return ready, waited

    def _raise_if_one_ends(self, events: Sequence[Event]) -> None:
        end = time.monotonic() + _GRACE_SECONDS
        while events:
            self._raise_if_ended(events)
            events = self._events(end - time.monotonic())

    def _raise_if_ended(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Ended):
                raise WorkerLost(f"{self._description_of(event.worker)} {event.how}")

    def _description_of(self, worker: int) -> str:
        facts = [f"stage {self._stages[worker]}"] if worker in self._stages else []
        if len({host.name for host in self.hosts}) > 1:
            facts.append(f"on {self._host_of[worker].name}")
        return f"worker {worker} ({', '.join(facts)})" if facts else f"worker {worker}"

    def publish(self, file: str) -> None:
        """Give every host its copy of a file that is in the folder here.

        Raises:
            HostLost: a host does not answer.
        """
        with self._noting_lost_hosts():
            for host in self.hosts:
                host.publish(self.folder / file)

    def remove(self, file: str) -> None:
        """Remove a file here and every host's copy of it; who reads it reads on.

        Raises:
            HostLost: a host does not answer.
        """
        (self.folder / file).unlink(missing_ok=True)
        with self._noting_lost_hosts():
            for host in self.hosts:
                host.remove(file)

    def fetch(self, worker: int, file: str) -> Path:
        """The file that a worker wrote into the folder of its host.

        Raises:
            HostLost: the host does not answer.
        """
        with self._noting_lost_hosts():
            return self._host_of[worker].fetch(file)

    def kill(self) -> None:
        """End all workers at once."""
        self._end(lambda host: host.kill())

    def close(self) -> None:
        """Ask the workers to end, and kill those that do not."""
        self._end(lambda host: host.close())

    def _end(self, end: Callable[[WorkerHost], None]) -> None:
        """On every host, also if one of them is lost, which the next start tells."""
        for host in self.hosts:
            try:
                end(host)
            except HostLost as error:
                self._lost = self._lost or error
            except RunFailure as error:
                # What it was asked before may have failed; the others have to end as well.
                self._lost = self._lost or HostLost(str(error))
        self._store = None
