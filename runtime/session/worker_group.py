"""The workers of a session on all hosts: starting, informing, commanding and replacing them."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing import connection as mp_connection
from operator import itemgetter, methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle
import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import (
    DRLPPError,
    HostLost,
    InvalidInput,
    ModelError,
    RunFailure,
    TrialTimeout,
    WorkerLost,
)
from drlpp.io.files import reporting_disk_errors
from drlpp.models.task import Task
from drlpp.runtime.device.devices import DeviceFacts, without_their_gpu
from drlpp.runtime.device.emulation import cores_for
from drlpp.runtime.hosts.host import Ended, Event, WorkerHost
from drlpp.runtime.hosts.session_hosts import PlaceWorkers, hosts_for
from drlpp.runtime.ipc.channel import open_store
from drlpp.runtime.ipc.protocol import (
    MODEL_FILE,
    SAMPLES_FILE,
    Collect,
    Command,
    Deploy,
    GroupSpec,
    Load,
    Progress,
    Reading,
    Transport,
    WorkerSpec,
    Working,
    transport_of,
)
from drlpp.runtime.ipc.session_folder import SessionFolder
from drlpp.runtime.ipc.tensor_file import write_tree
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.specs.batches import Batch, arranged_like, tensors_in
from drlpp.specs.cluster import Cluster, DeviceChoice

if TYPE_CHECKING:
    from drlpp.runtime.session.minibatch_streamer import MinibatchStreamer

_USUAL_SILENCES = 20
"""A trial has hung when nobody says anything for this many times the longest silence so far."""

_LOOK_SECONDS = 1.0

_Answer = TypeVar("_Answer")


@dataclass
class TimeSpent:
    """Where a session's time went, in seconds: preparing trials, and running them."""

    deploying_seconds: float = 0.0
    running_seconds: float = 0.0


class WorkerGroup:
    """Workers on any number of hosts, numbered from 0, which all know the model.

    They are started where that is necessary. After any failure all of them are replaced, because a
    communication group cannot be repaired. Once a host is lost, whatever is asked of any host
    raises that again, until its workers are given up.

    Args:
        captured: the model.
        memory_bytes: of every worker's accelerator, None for all that there is.
        place: says where the workers run: by default on this machine.
        speeds, device, links, time_limits: as in :class:`ClusterSession`; the limits may be
            replaced between commands.

    Attributes:
        folder: of the session's files, on this host; every host has it, or a copy.
        hosts: all, in the order of their workers; those whose workers were given up too.
        given_up: workers that the session does without.
        lost: how a host was lost.
        devices: of every worker that has been prepared.
        stages: that the workers hold, to name that of one that is lost.
        spent: where the time went.
        generation: how many sets of workers there have been.
        longest_silence_seconds: without a word from any worker while one was waited for.
        stops: how often this process was stopped (Ctrl-Z) while it waited for workers.
    """

    def __init__(
        self,
        captured: CapturedModel,
        speeds: Sequence[float],
        *,
        device: DeviceChoice = DeviceChoice.CPU,
        time_limits: TimeLimits = DEFAULT_TIME_LIMITS,
        place: PlaceWorkers = hosts_for,
        links: Cluster | None = None,
        memory_bytes: Sequence[float | None] | None = None,
    ) -> None:
        self.captured = captured
        self.speeds = tuple(speeds)
        self.device = device
        self.links = links
        self.memory_bytes = memory_bytes or (None,) * len(speeds)
        self.devices: dict[int, DeviceFacts] = {}
        self.stages: Mapping[int, int] = {}
        self.spent = TimeSpent()
        self.generation = 0
        self.longest_silence_seconds = 0.0
        self.stops = 0
        self.time_limits = time_limits
        self.lost: HostLost | None = None
        self._runs = self._informed = self._closed = False
        self._names = 0
        self._store: object = None
        self._samples = (tensors_in(captured.task.inputs), tensors_in(captured.task.targets))
        with _telling_of_temporary_files():
            self._folder = SessionFolder()
        self.folder = Path(self._folder.name)
        self._placed = place(len(speeds), self.folder, time_limits)
        self.hosts = self._placed.hosts
        self.given_up = {w for host in self.hosts if host.lost for w in host.workers}
        try:
            self._write(MODEL_FILE, captured.state | captured.constants)
            self._write(SAMPLES_FILE, self._samples)
        except BaseException:
            self.close()
            raise

    # Hosts

    def close(self) -> None:
        """End the workers and remove the files; another session may have the hosts after that."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as last:
            last.callback(self._folder.cleanup)
            last.callback(self._placed.release)
            self._end(self.hosts, methodcaller("close"))

    def check_open(self) -> None:
        """Raise an error if the session has been closed."""
        if self._closed:
            raise InvalidInput("this session is closed; begin another one")

    @property
    def of_worker(self) -> dict[int, WorkerHost]:
        """The host of every worker, in the order of these."""
        found = {worker: host for host in self.hosts for worker in host.workers}
        return dict(sorted(found.items(), key=itemgetter(0)))

    @property
    def host_of(self) -> dict[int, str]:
        """The name of every worker's host."""
        return {worker: host.name for worker, host in self.of_worker.items()}

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers that run now; on another machine, as it counts them."""
        return [process for host in self.hosts for process in host.process_ids]

    @property
    def present(self) -> tuple[int, ...]:
        """The numbers of the workers that there are: all but those that were given up."""
        return tuple(worker for worker in self.of_worker if worker not in self.given_up)

    @property
    def _present_hosts(self) -> list[WorkerHost]:
        return [host for host in self.hosts if not self.given_up.issuperset(host.workers)]

    def check_present(self, workers: Collection[int], what: str) -> None:
        """Refuse what is on workers that were given up."""
        if absent := set(workers) - set(self.present):
            raise InvalidInput(
                f"{what} is on worker {min(absent)}, which was given up; there are workers "
                f"{', '.join(map(str, self.present))}"
            )

    def give_up(self, workers: Collection[int]) -> None:
        """Do without these workers from now on, and without their host if it has no others."""
        before = self._present_hosts
        self.given_up |= self.of_worker.keys() & set(workers)
        # A host that is lost answers after a long time, or never.
        self._end(self._present_hosts if self.lost else before, methodcaller("kill"))
        self.lost = None

    def take_back(self) -> tuple[int, ...]:
        """Count on workers again that were given up and have returned; return their numbers.

        All workers are replaced then, so that a placement has to be deployed again.
        """
        there: list[int] = []
        for host in {self.of_worker[worker]: None for worker in sorted(self.given_up)}:
            host.is_missed = host.lost is not None
            if host.has_returned:
                with suppress(HostLost):
                    for file in (MODEL_FILE, SAMPLES_FILE):
                        host.publish(self.folder / file)
                    host.has_returned = False
                    there += host.workers
        if there:
            self.kill()
            self.given_up -= set(there)
        return tuple(sorted(there))

    def ask(self, worker: int, what: Callable[[WorkerHost], _Answer]) -> _Answer:
        """Return what the host of a worker gives; raise HostLost if it, or another one, is lost."""
        return self._ask(self.of_worker[worker], what)

    def ask_all(self, what: Callable[[WorkerHost], _Answer]) -> list[_Answer]:
        """Return what every present host gives, likewise."""
        return [self._ask(host, what) for host in self._present_hosts]

    def _ask(self, host: WorkerHost, what: Callable[[WorkerHost], _Answer]) -> _Answer:
        if self.lost is not None:
            raise self.lost
        try:
            with _telling_of_temporary_files():
                return what(host)
        except HostLost as error:
            error.workers = error.workers or frozenset(host.workers)
            self.lost = error
            raise

    def kill(self) -> None:
        """End the workers of all present hosts; whoever asks next is told if one is lost."""
        self._end(self._present_hosts, methodcaller("kill"))

    def _end(self, hosts: Iterable[WorkerHost], how: Callable[[WorkerHost], None]) -> None:
        self._runs = False
        for host in hosts:
            try:
                how(host)
            except RunFailure as error:
                # What it was asked before may have failed; the others have to end as well.
                lost = error if isinstance(error, HostLost) else HostLost(str(error))
                lost.workers = lost.workers or frozenset(host.workers)
                self.lost = self.lost or lost
        # Not before: whoever begins to join it would wait, and not hear that it is to end.
        self._store = None

    # Files of the session

    def _write(self, file: str, content: object) -> None:
        """Write a tree of tensors for all hosts."""
        path = self.folder / file
        with _telling_of_temporary_files():
            # Workers may still have the old file mapped, which has to stay as it is.
            path.unlink(missing_ok=True)
            write_tree(path, content)
        self.publish_file(file)

    def new_name(self, purpose: str) -> str:
        """Return a name that the session never uses again."""
        self._names += 1
        return f"{purpose}-{self._names}"

    def lend_file(self, path: Path) -> str:
        """Publish a file of the user; return its name in the folder."""
        file = self.new_name("checkpoint")
        with _telling_of_temporary_files():
            (self.folder / file).symlink_to(path.absolute())
        self.publish_file(file)
        return file

    def lend_task(self, task: Task) -> str:
        """Publish a task, pickled with what cannot be imported; return its name in the folder.

        Raises:
            ModelError: it cannot be pickled.
        """
        file = self.new_name("task")
        try:
            with _telling_of_temporary_files():
                torch.save(task, self.folder / file, pickle_module=cloudpickle)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ModelError(f"the model cannot be sent to other processes: {error}") from None
        self.publish_file(file)
        return file

    def publish_file(self, file: str) -> None:
        """Give every host its copy of a file that is in the folder here."""
        self.ask_all(lambda host: host.publish(self.folder / file))

    def remove_file(self, file: str) -> None:
        """Remove a file here and on every host; processes that have it open can read on."""
        (self.folder / file).unlink(missing_ok=True)
        if self.lost is None:
            self.ask_all(lambda host: host.remove(file))

    def fetch_file(self, worker: int, file: str) -> Path:
        """Return the file that a worker wrote into the folder of its host."""
        return self.ask(worker, lambda host: host.fetch(file))

    # Starting

    def prepare(self) -> None:
        """Start or replace workers where that is necessary, and know their devices."""
        self.check_open()
        if self.lost is not None:
            raise self.lost
        self._start()
        self._inform()

    def _start(self) -> None:
        if self._runs and not any(isinstance(what, Ended) for _, what in self._events(0)):
            return
        self.kill()
        try:
            self._store, store = open_store(self._placed.address)
        except OSError as error:
            raise RunFailure(
                f"no port can be opened on {self._placed.address}, the address of this machine "
                f"that the other hosts know: {error}"
            ) from None
        hosts = self.of_worker
        names = [host.name for host in hosts.values()]
        # A host that has returned may be another machine, with other cores.
        cores = cores_for(self.speeds, [(h.machine, h.cores) for h in hosts.values()])
        specs = {
            worker: WorkerSpec(
                worker=worker,
                place=names[:worker].count(names[worker]),
                address=hosts[worker].address,
                store=store,
                speed=self.speeds[worker],
                memory_bytes=self.memory_bytes[worker],
                core=cores[worker],
                on_one_host=len(set(names)) == 1,
                links=None if self.links is None else self.links.links_from(worker),
            )
            for worker in self.present
        }
        self.ask_all(lambda host: host.start([specs[w] for w in host.workers if w in specs]))
        self.ask_all(lambda host: host.finish_start())
        self._runs, self._informed = True, False
        self.generation += 1
        self.stages = {}

    def _inform(self) -> None:
        """Give new workers the model, and all of them other samples."""
        if self._informed:
            return
        load = Load(self.device)
        commands = dict.fromkeys(self.present, load)
        if self.device.demands_gpu:
            # One that has had a GPU tells that it finds none; the others fail.
            again = replace(load, device=DeviceChoice.AUTO)
            commands |= dict.fromkeys(self.devices.keys() & commands.keys(), again)
        devices = self.command(commands)
        if lost := without_their_gpu(self.devices, devices):
            self.kill()
            whose = ", ".join(map(self._description_of, lost))
            self.lost = HostLost(f"there is no GPU any more for {whose}", lost)
            raise self.lost
        self.devices |= devices
        self._informed = True

    def use_samples(self, inputs: Batch, targets: Batch) -> None:
        """Give all workers, and those that replace them, samples to work on."""
        self.check_open()
        task = self.captured.task
        self._samples = (
            tensors_in(arranged_like(task.inputs, inputs, "inputs")),
            tensors_in(arranged_like(task.targets, targets, "targets")),
        )
        self._write(SAMPLES_FILE, self._samples)
        # Those that have not begun will read them anyway.
        if self._runs and self._informed:
            self._informed = False
            self._inform()

    @property
    def example_order(self) -> Tensor | None:
        """The order that makes minibatches out of the samples; None if they are one minibatch."""
        batch = self.captured.task.batch_size
        return None if len(self._samples[0][0]) == batch else torch.arange(batch).unsqueeze(0)

    # Commands

    def command(
        self,
        commands: Mapping[int, Command],
        on_progress: Callable[[Progress], None] | None = None,
        feed: MinibatchStreamer | None = None,
    ) -> dict[int, Any]:
        """Give workers, which are prepared, their commands and wait for all answers.

        Args:
            commands: by worker.
            on_progress: called now and then with how far the last stage is.
            feed: provides what the workers read while they are waited for; the time that it
                takes counts for no timeout.

        Raises:
            RunFailure: a worker was lost, failed, or did not answer; none is left after that.
        """
        self.check_open()
        try:
            self._raise_if_ended(self._events(0))
            for worker, command in commands.items():
                self.ask(worker, methodcaller("send", worker, command))
            self.ask_all(lambda host: host.finish_send())
            return self._wait_for_answers(commands, on_progress, feed)
        except BaseException as error:
            self.kill()
            # A host that is cut off may be why nobody answers; killing its workers tells.
            if isinstance(error, TrialTimeout) and self.lost is not None:
                raise self.lost from None
            raise

    def execute(self, commands: Mapping[int, Command], **options: Any) -> dict[int, Any]:
        """Do the same for commands that count as running, not as deploying."""
        begin = time.perf_counter()
        answers = self.command(commands, **options)
        self.spent.running_seconds += time.perf_counter() - begin
        return answers

    def _patience(self, commands: Mapping[int, Command]) -> float:
        """Return the seconds of silence of all workers after which the commands count as hung."""
        given, first = self.time_limits.answer_seconds, self.time_limits.first_answer_seconds
        kinds = set(map(type, commands.values()))
        if Load in kinds:
            return max(first, given or 0.0)
        if any(isinstance(one, Deploy) and one.method.compiled for one in commands.values()):
            return max(TimeLimits.compiling_seconds, given or 0.0)
        if given is not None:
            return given
        usual = max(_USUAL_SILENCES * self.longest_silence_seconds, TimeLimits.least_answer_seconds)
        # Of a file nobody hears until all is written, however much it is.
        return usual if self.spent.running_seconds and Collect not in kinds else max(usual, first)

    def _wait_for_answers(
        self,
        commands: Mapping[int, Command],
        on_progress: Callable[[Progress], None] | None,
        feed: MinibatchStreamer | None,
    ) -> dict[int, Any]:
        waiting, patience = set(commands), self._patience(commands)
        answers: dict[int, Any] = {}
        while waiting:
            fed = feed is not None and feed.advance()
            events = self._events(0 if fed else patience)
            if not events and not fed:
                raise TrialTimeout(
                    f"workers {sorted(waiting)} did not answer within {patience:.0f} s; if "
                    "they need longer, give a longer time limit (--timeout, timeout_seconds)"
                )
            for event in events:
                match event:
                    case (_, DRLPPError() as failed):
                        # A worker that is lost makes others fail, and may be noticed after them.
                        self._raise_if_one_is_lost(events)
                        # So does a host that is lost, whose workers can say nothing any more.
                        self.ask_all(lambda host: host.check())
                        raise failed
                    case (_, Progress() as progress):
                        if on_progress:
                            on_progress(progress)
                    case (worker, Reading() as reading):
                        assert feed is not None
                        feed.on_request(worker, reading)
                    case (worker, answer) if not isinstance(answer, Working | Ended):
                        answers[worker] = answer
                        waiting.discard(worker)
            if waiting:
                self._raise_if_ended(events)
        return answers

    def _events(self, patience: float) -> list[Event]:
        """Return what has happened on the hosts; nothing if nothing has in ``patience`` seconds.

        While this process is stopped, and its workers with it, nobody waits: that counts as no
        silence.
        """
        left = patience
        while True:
            waitables = list(chain(*self.ask_all(lambda host: host.waitables())))
            seconds = max(0.0, min(left, _LOOK_SECONDS))
            begin = time.monotonic()
            ready = mp_connection.wait(waitables, seconds)
            waited = time.monotonic() - begin
            if waited > seconds + TimeLimits.stopped_seconds:
                self.stops += 1
                waited = seconds
            left -= waited
            events = list(chain(*self.ask_all(methodcaller("events", ready))))
            if events:
                self.longest_silence_seconds = max(self.longest_silence_seconds, patience - left)
            if events or left <= 0:
                return events

    def _raise_if_one_is_lost(self, events: Sequence[Event]) -> None:
        end = time.monotonic() + TimeLimits.other_failure_seconds
        while events:
            self._raise_if_ended(events)
            for event in events:
                match event:
                    case (_, WorkerLost() as lost) if lost.workers:
                        raise lost
            events = self._events(end - time.monotonic())

    def _raise_if_ended(self, events: Sequence[Event]) -> None:
        for worker, what in events:
            if isinstance(what, Ended):
                raise WorkerLost(f"{self._description_of(worker)} {what.how}", [worker])

    def _description_of(self, worker: int) -> str:
        facts = [f"stage {self.stages[worker]}"] if worker in self.stages else []
        if len({host.name for host in self.hosts}) > 1:
            facts.append(f"on {self.of_worker[worker].name}")
        return f"worker {worker} ({', '.join(facts)})" if facts else f"worker {worker}"

    def new_group(self, purpose: str, workers: Iterable[int], **connected: Any) -> GroupSpec:
        """Return a new group of workers, with the routes or replicas of :class:`GroupSpec`."""
        members = tuple(workers)
        return GroupSpec(self.new_name(purpose), members, self.transport(members), **connected)

    def new_link(self, *ends: int) -> GroupSpec:
        """Return a new group of the two ends of a link."""
        return self.new_group("link", ends, routes=(ends, ends[::-1]))

    def transport(self, workers: Iterable[int]) -> Transport:
        """Return how these workers exchange tensors."""
        return transport_of(self.devices[worker] for worker in workers)


def _telling_of_temporary_files() -> AbstractContextManager[None]:
    """Report storage errors of the session's own files; an observer's files have their own."""
    return reporting_disk_errors(Path(tempfile.gettempdir()))
