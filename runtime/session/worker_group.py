"""The workers of a session on all hosts: starting, informing, commanding and replacing them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import HostLost, InvalidInput, TrialTimeout, WorkerLost
from drlpp.runtime.device.device_failures import without_their_gpu
from drlpp.runtime.device.devices import DeviceFacts
from drlpp.runtime.device.emulation import cores_for
from drlpp.runtime.hosts.host import Answered, Ended, Event
from drlpp.runtime.hosts.session_hosts import Hosts, PlaceWorkers, hosts_for
from drlpp.runtime.ipc.protocol import (
    Collect,
    Command,
    Failed,
    LoadModel,
    LoadSamples,
    Progress,
    Reading,
    Transport,
    WorkerSpec,
    Working,
    transport_of,
)
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.runtime.session.minibatch_streamer import MinibatchStreamer
from drlpp.runtime.session.present_hosts import PresentHosts, telling_of_temporary_files
from drlpp.schedule.pipeline import Pipeline
from drlpp.specs.batches import Batch, arranged_like, tensors_in
from drlpp.specs.device_choice import DeviceChoice

_USUAL_SILENCES = 20
"""A trial has hung when nobody says anything for this many times the longest silence so far."""

_MODEL_FILE, _SAMPLES_FILE = "model.safetensors", "samples.safetensors"


@dataclass
class TimeSpent:
    """Where a session's time went, in seconds: preparing trials, and running them."""

    deploying_seconds: float = 0.0
    running_seconds: float = 0.0


class WorkerGroup:
    """Workers on any number of hosts, numbered from 0, which all know the model.

    They are started where that is necessary. After any failure all of them are replaced, because a
    communication group cannot be repaired. A host that is lost ends everything, unless its workers
    are given up (``present``).

    Args:
        captured: the model.
        speeds: of every worker, relative to this machine's; slower ones sleep after every pass.
        device: what they compute on.
        limits: how long to wait for them; may be replaced between commands.
        place: says where the workers run: by default on this machine.

    Attributes:
        captured: the model.
        present: the hosts with workers that were not given up, and the session's files there.
        devices: of every worker that has been prepared.
        spent: where the time went.
        generation: how many sets of workers there have been.
    """

    def __init__(
        self,
        captured: CapturedModel,
        speeds: Sequence[float],
        device: DeviceChoice = DeviceChoice.CPU,
        limits: TimeLimits = DEFAULT_TIME_LIMITS,
        place: PlaceWorkers = hosts_for,
    ) -> None:
        self.limits = limits
        self.devices: dict[int, DeviceFacts] = {}
        self.spent = TimeSpent()
        self.generation = 0
        self.captured = captured
        self._speeds = speeds
        self._device = device
        self._samples = (tensors_in(captured.task.inputs), tensors_in(captured.task.targets))
        self._names = 0
        self._closed = False
        self._informed_generation = 0
        self._stages: Mapping[int, int] = {}
        self.present = PresentHosts(place, len(speeds), limits)
        try:
            self.present.write(_MODEL_FILE, captured.state | captured.constants)
            self.present.write(_SAMPLES_FILE, self._samples)
        except BaseException:
            self.close()
            raise

    @property
    def hosts(self) -> Hosts:
        """Where workers run, those that were given up included."""
        return self.present.all

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers that run now."""
        return [process for host in self.hosts.hosts for process in host.process_ids]

    def check_open(self) -> None:
        """Raise an error if the session has been closed."""
        if self._closed:
            raise InvalidInput("this session is closed; begin another one")

    # Beginning and end

    def prepare(self) -> None:
        """Start or replace workers where that is necessary, and know their devices.

        Raises:
            HostLost: a host does not answer.
        """
        self.check_open()
        self._start()
        self._inform()

    def _start(self) -> None:
        present, ask = self.present, self.present.ask
        with telling_of_temporary_files():
            if all(ask(host, host.is_whole) for host in present.hosts):
                return
            self._kill()
            store = ask(present.hosts[0], present.hosts[0].open_store)
            # A host that has returned may be another machine, with other cores.
            cores = cores_for(self._speeds, self.hosts.places.machines)
            places: Counter[str] = Counter()
            on_one_host = len({host.name for host in self.hosts.hosts}) == 1
            specs: dict[int, WorkerSpec] = {}
            for host in self.hosts.hosts:
                for worker in host.workers:
                    specs[worker] = WorkerSpec(
                        worker=worker,
                        place=places[host.name],
                        address=host.address,
                        store=store,
                        limits=self.limits,
                        speed=self._speeds[worker],
                        core=cores[worker],
                        on_one_host=on_one_host,
                    )
                    places[host.name] += 1
            for host in present.hosts:
                ask(host, host.start, [specs[worker] for worker in present.of(host)])
            for host in present.hosts:
                ask(host, host.finish_start)
            self.generation += 1
            self._stages = {}

    def _inform(self) -> None:
        """Give new workers the model."""
        if self._informed_generation == self.generation:
            return
        load = LoadModel(_MODEL_FILE, _SAMPLES_FILE, self._device)
        commands = dict.fromkeys(self.present.workers, load)
        if self._device is DeviceChoice.CUDA:
            # One that has had a GPU tells that it finds none; the others fail.
            again = replace(load, device=DeviceChoice.AUTO)
            commands |= dict.fromkeys(self.devices.keys() & commands.keys(), again)
        patience = max(self.limits.first_answer_seconds, self.limits.answer_seconds or 0)
        answers = self._carry_out(commands, patience)
        devices = {worker: answer.device for worker, answer in answers.items()}
        if lost := without_their_gpu(self.devices, devices):
            self._kill()
            whose = ", ".join(map(self._description_of, lost))
            self.present.lost = HostLost(f"there is no GPU any more for {whose}", lost)
            raise self.present.lost
        self.devices |= devices
        self._informed_generation = self.generation

    def close(self) -> None:
        """End the workers and remove the files; another session may have the hosts after that."""
        if not self._closed:
            self._closed = True
            self.present.close()

    def _kill(self) -> None:
        self.present.end(self.present.hosts, methodcaller("kill"))

    def take_back(self) -> tuple[int, ...]:
        """Count on the workers again that were given up and can be started; return their numbers.

        Those of a host that was there only for a moment are not among them.
        """
        return self.present.take_back((_MODEL_FILE, _SAMPLES_FILE))

    # Commands

    def command(
        self,
        commands: Mapping[int, Command],
        on_progress: Callable[[Progress], None] | None = None,
        feed: MinibatchStreamer | None = None,
    ) -> dict[int, Any]:
        """Give workers their commands and wait for all answers.

        Args:
            commands: by worker.
            on_progress: called now and then with how far the last stage is.
            feed: provides what the workers read while they are waited for; the time that it
                takes counts for no timeout.

        Raises:
            RunFailure: a worker was lost, failed, or did not answer; none is left after that.
        """
        if not self.process_ids:
            self._start()
        self._inform()
        return self._carry_out(commands, self._patience(commands), on_progress, feed)

    def execute(
        self,
        commands: Mapping[int, Command],
        on_progress: Callable[[Progress], None] | None = None,
        feed: MinibatchStreamer | None = None,
    ) -> dict[int, Any]:
        """Do the same for commands that count as running, not as deploying."""
        begin = time.perf_counter()
        answers = self.command(commands, on_progress, feed)
        self.spent.running_seconds += time.perf_counter() - begin
        return answers

    def _patience(self, commands: Mapping[int, Command]) -> float:
        """Return the seconds of silence of all workers after which the commands count as hung."""
        if self.limits.answer_seconds is not None:
            return self.limits.answer_seconds
        usual = _USUAL_SILENCES * self.present.longest_silence_seconds
        # Of these nobody hears until all is read or written, however much it is.
        silent = any(isinstance(command, Collect | LoadSamples) for command in commands.values())
        first = silent or not self.spent.running_seconds
        least = self.limits.first_answer_seconds if first else 0.0
        return max(usual, TimeLimits.least_answer_seconds, least)

    def _carry_out(
        self,
        commands: Mapping[int, Command],
        patience: float,
        on_progress: Callable[[Progress], None] | None = None,
        feed: MinibatchStreamer | None = None,
    ) -> dict[int, Any]:
        try:
            self._raise_if_ended(self.present.events(0))
            for worker, command in commands.items():
                host = self.hosts.of_worker[worker]
                self.present.ask(host, host.send, worker, command)
            return self._wait_for_answers(set(commands), patience, on_progress, feed)
        except BaseException as error:
            self._kill()
            # A host that is cut off may be why nobody answers; killing its workers tells.
            if isinstance(error, TrialTimeout) and self.present.lost is not None:
                raise self.present.lost from None
            raise

    def _wait_for_answers(
        self,
        waiting: set[int],
        patience: float,
        on_progress: Callable[[Progress], None] | None,
        feed: MinibatchStreamer | None,
    ) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        self.present.forget_silence()
        while waiting:
            fed = feed is not None and feed.advance()
            if fed:
                self.present.forget_silence()
            events = self.present.events(0 if fed else patience)
            if not events:
                if fed:
                    continue
                raise TrialTimeout(
                    f"workers {sorted(waiting)} did not answer within {patience:.0f} s; if "
                    "they need longer, give a longer time limit (--timeout, timeout_seconds)"
                )
            self.present.note_silence()
            for event in events:
                match event:
                    case Answered(_, Failed() as failed):
                        # A worker that is lost makes others fail, and may be noticed after them.
                        self._raise_if_one_is_lost(events)
                        # So does a host that is lost, whose workers can say nothing any more.
                        for host in self.present.hosts:
                            self.present.ask(host, host.check)
                        raise failed.error
                    case Answered(_, Progress() as progress):
                        if on_progress:
                            on_progress(progress)
                    case Answered(worker, Reading() as reading):
                        assert feed is not None
                        feed.on_request(worker, reading)
                    case Answered(worker, answer) if not isinstance(answer, Working):
                        answers[worker] = answer
                        waiting.discard(worker)
            if waiting:
                self._raise_if_ended(events)
        return answers

    def _raise_if_one_is_lost(self, events: Sequence[Event]) -> None:
        end = time.monotonic() + TimeLimits.other_failure_seconds
        while events:
            self._raise_if_ended(events)
            for event in events:
                match event:
                    case Answered(_, Failed(worker=int()) as failed):
                        raise failed.error
            events = self.present.events(end - time.monotonic())

    def _raise_if_ended(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Ended):
                raise WorkerLost(
                    f"{self._description_of(event.worker)} {event.how}", [event.worker]
                )

    def _description_of(self, worker: int) -> str:
        facts = [f"stage {self._stages[worker]}"] if worker in self._stages else []
        if len({host.name for host in self.hosts.hosts}) > 1:
            facts.append(f"on {self.hosts.of_worker[worker].name}")
        return f"worker {worker} ({', '.join(facts)})" if facts else f"worker {worker}"

    # Placements and samples

    def new_name(self, purpose: str) -> str:
        """Return a name that the session never uses again."""
        self._names += 1
        return f"{purpose}-{self._names}"

    def transport(self, workers: Iterable[int]) -> Transport:
        """Return how these workers exchange tensors."""
        return transport_of(self.devices[worker] for worker in workers)

    def note_stages(self, pipeline: Pipeline) -> None:
        """Note which stages the workers hold from now on, to name the stage of one that is lost."""
        self._stages = {worker: pipeline.stage_of(worker) for worker in pipeline.workers}

    def use_samples(self, inputs: Batch, targets: Batch) -> None:
        """Give all workers, and those that replace them, samples to work on."""
        self.check_open()
        task = self.captured.task
        self._samples = (
            tensors_in(arranged_like(task.inputs, inputs, "inputs")),
            tensors_in(arranged_like(task.targets, targets, "targets")),
        )
        self.present.write(_SAMPLES_FILE, self._samples)
        # Those that have not begun will read them with the model.
        if self.process_ids and self._informed_generation == self.generation:
            self.command(dict.fromkeys(self.present.workers, LoadSamples(_SAMPLES_FILE)))

    @property
    def example_order(self) -> Tensor | None:
        """The order that makes minibatches out of the samples; None if they are one minibatch."""
        batch = self.captured.task.batch_size
        return None if len(self._samples[0][0]) == batch else torch.arange(batch).unsqueeze(0)
