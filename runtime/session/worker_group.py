"""The workers of a session: starting, informing, commanding and replacing them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from multiprocessing import connection as mp_connection
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import (
    DRLPPError,
    HostLost,
    RunFailure,
    TrialTimeout,
    WorkerLost,
)
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
    TrainParallel,
    Transport,
    WorkerSpec,
    Working,
    transport_of,
)
from drlpp.runtime.ipc.tensor_file import write_tree
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.runtime.session.present_hosts import PresentHosts
from drlpp.specs.batches import Batch, arranged_like, tensors_in
from drlpp.specs.cluster import Cluster, DeviceChoice

if TYPE_CHECKING:
    from drlpp.runtime.session.minibatch_streamer import MinibatchStreamer

_USUAL_SILENCES = 20
"""A trial has hung when nobody says anything for this many times the longest silence so far."""

_LOOK_SECONDS = 1.0

_Answer = TypeVar("_Answer")


class WorkerGroup(PresentHosts):
    """Workers on any number of hosts, numbered from 0, which all know the model.

    They are started where that is necessary. After any failure all of them are replaced, because a
    communication group cannot be repaired.

    Args:
        captured: the model.
        memory_bytes: of every worker's accelerator, None for all that there is.
        place: says where the workers run: by default on this machine.
        speeds, device, links, time_limits: as in :class:`ClusterSession`; the limits may be
            replaced between commands.

    Attributes:
        devices: of every worker that has been prepared.
        stages: that the workers hold, to name that of one that is lost.
        deploying_seconds, running_seconds: where the time went: preparing trials, running them.
        lent: what the samples were made of that the workers hold, if whoever gave them noted it.
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
        self.deploying_seconds = self.running_seconds = 0.0
        self.lent: object = None
        self.longest_silence_seconds = 0.0
        self.stops = 0
        self._runs = self._informed = False
        self._store: object = None
        self._samples = (tensors_in(captured.task.inputs), tensors_in(captured.task.targets))
        super().__init__(len(speeds), place, time_limits)
        try:
            model = captured.state | captured.constants
            self.publish(MODEL_FILE, lambda path: write_tree(path, model))
            self._publish_samples()
        except BaseException:
            self.close()
            raise

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
        # One that has had a GPU tells that it finds none; the others fail.
        had_gpu = self.devices.keys() if self.device.demands_gpu else ()
        specs = {
            worker: WorkerSpec(
                worker=worker,
                place=names[:worker].count(names[worker]),
                address=hosts[worker].address,
                store=store,
                device=DeviceChoice.AUTO if worker in had_gpu else self.device,
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
        self.stages = {}

    def _end(self, hosts: Iterable[WorkerHost], how: Callable[[WorkerHost], None]) -> None:
        self._runs = False
        super()._end(hosts, how)
        # Not before: whoever begins to join it would wait, and not hear that it is to end.
        self._store = None

    def _inform(self) -> None:
        """Give new workers the model, and all of them other samples."""
        if self._informed:
            return
        devices = self.command(dict.fromkeys(self.present, Load()))
        if lost := without_their_gpu(self.devices, devices):
            self.kill()
            whose = ", ".join(map(self._description_of, lost))
            self.lost = HostLost(f"there is no GPU any more for {whose}", lost)
            raise self.lost
        self.devices |= devices
        self._informed = True

    def use_samples(self, inputs: Batch, targets: Batch) -> None:
        """Give all workers, and those that replace them, samples to work on from now on.

        ``order`` in :meth:`ClusterSession.run` refers to them.
        """
        self.check_open()
        self.lent = None
        task = self.captured.task
        self._samples = (
            tensors_in(arranged_like(task.inputs, inputs, "inputs")),
            tensors_in(arranged_like(task.targets, targets, "targets")),
        )
        self._publish_samples()
        # Those that have not begun will read them anyway.
        if self._runs and self._informed:
            self._informed = False
            self._inform()

    def _publish_samples(self) -> None:
        self.publish(SAMPLES_FILE, lambda path: write_tree(path, self._samples))

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
            hosts = self.of_worker
            for worker, command in commands.items():
                self.ask(hosts[worker], methodcaller("send", worker, command))
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
        self.running_seconds += time.perf_counter() - begin
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
        # Of a file nobody hears until all is written, however much it is; nor of torch's own data
        # parallelism, until it is imported.
        silent = not self.running_seconds or not kinds.isdisjoint({Collect, TrainParallel})
        return max(usual, first) if silent else usual

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
