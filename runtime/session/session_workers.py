"""The workers of a session, with the model, samples and files that they all need."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput
from drlpp.io.disk_errors import telling_of_storage
from drlpp.runtime.comm.transport import Transport, transport_of
from drlpp.runtime.deploying.run_commands import RunOptions
from drlpp.runtime.device.devices import DeviceFacts
from drlpp.runtime.device.emulation import cores_for
from drlpp.runtime.hosts.session_hosts import hosts_for, release_hosts
from drlpp.runtime.ipc.commands import (
    Collect,
    Command,
    LoadModel,
    LoadSamples,
    Progress,
    Ready,
    Stream,
)
from drlpp.runtime.ipc.session_folder import SessionFolder
from drlpp.runtime.ipc.tensor_file import write_tree
from drlpp.runtime.loading.loaders import loader_processes_may_die
from drlpp.runtime.session.feed import Feed, chunk_minibatches
from drlpp.runtime.session.pool import WorkerPool
from drlpp.schedule.method import DeviceChoice
from drlpp.schedule.pipeline import Pipeline

_FIRST_TIMEOUT_SECONDS = 120.0
_LEAST_TIMEOUT_SECONDS = 20.0
_MODEL_FILE, _SAMPLES_FILE = "model.safetensors", "samples.safetensors"


@dataclass
class TimeSpent:
    """Where a session's time went, in seconds: preparing trials, and running them."""

    deploying_seconds: float = 0.0
    running_seconds: float = 0.0


class SessionWorkers:
    """Workers that are started and replaced where that is necessary, and then know the model.

    Args:
        captured: the model.
        speeds: of every worker.
        device: what they compute on.
        timeout_seconds: without a word from any worker, after which a trial counts as hung; None
            to go by what was seen so far.

    Attributes:
        hosts: where the workers run.
        devices: of every worker, once they have been prepared.
        folder: of the session on this host.
        spent: where the time went.
    """

    def __init__(
        self,
        captured: CapturedModel,
        speeds: Sequence[float],
        device: DeviceChoice,
        timeout_seconds: float | None,
    ) -> None:
        self._captured = captured
        self._device = device
        self._timeout_seconds = timeout_seconds
        self._names = 0
        self._closed = False
        with _telling_of_temporary_files():
            self._files = SessionFolder()
        self.folder = Path(self._files.name)
        self.hosts = hosts_for(len(speeds), self.folder)
        self.devices: list[DeviceFacts] = []
        self.spent = TimeSpent()
        cores = cores_for(speeds, self.hosts.machines)
        self._pool = WorkerPool(self.hosts.hosts, speeds, cores, self.folder)
        self._informed_generation = 0
        self._samples = (captured.task.inputs, captured.task.targets)
        try:
            self._publish(_MODEL_FILE, captured.state | captured.constants)
            self._publish(_SAMPLES_FILE, self._samples)
        except BaseException:
            self.close()
            raise

    @property
    def process_ids(self) -> list[int]:
        """Of the workers that run now."""
        return self._pool.process_ids

    @property
    def generation(self) -> int:
        """Of the workers that run now; it grows when they are replaced."""
        return self._pool.generation

    @property
    def stops(self) -> int:
        """How often this process was stopped while it waited for workers, and continued."""
        return self._pool.stops

    def close(self) -> None:
        """End the workers and remove the files; another session may have the hosts after that."""
        if self._closed:
            return
        self._closed = True
        try:
            self._pool.close()
        finally:
            release_hosts()
            self._files.cleanup()

    def check_open(self) -> None:
        """Raise an error if the session has been closed."""
        if self._closed:
            raise InvalidInput("this session is closed; begin another one")

    # Commands

    def prepare(self) -> None:
        """Start or replace workers where that is necessary, and know their devices."""
        self.check_open()
        self._start()
        self._inform()

    def command(
        self,
        commands: Mapping[int, Command],
        on_progress: Callable[[Progress], None] | None = None,
        feed: Feed | None = None,
    ) -> dict[int, Any]:
        """Give workers their commands and wait for their answers.

        Raises:
            RunFailure: if the workers fail.
        """
        if not self._pool.process_ids:
            self._start()
        self._inform()
        return self._pool.command(commands, self._patience(commands), on_progress, feed)

    def execute(
        self,
        commands: Mapping[int, Command],
        on_progress: Callable[[Progress], None] | None = None,
        feed: Feed | None = None,
    ) -> dict[int, Any]:
        """The same for commands that count as running, not as deploying."""
        begin = time.perf_counter()
        answers = self.command(commands, on_progress, feed)
        self.spent.running_seconds += time.perf_counter() - begin
        return answers

    def _start(self) -> None:
        with _telling_of_temporary_files():
            self._pool.start()

    def _inform(self) -> None:
        """Give new workers the model."""
        if self._informed_generation != self._pool.generation:
            load = LoadModel(_MODEL_FILE, _SAMPLES_FILE, self._device)
            patience = max(_FIRST_TIMEOUT_SECONDS, self._timeout_seconds or 0)
            answers = self._pool.command(dict.fromkeys(self._all, load), patience)
            ready = (answers[worker] for worker in self._all)
            self.devices = [answer.device for answer in ready if isinstance(answer, Ready)]
            self._informed_generation = self._pool.generation

    @property
    def _all(self) -> range:
        return range(self._pool.size)

    def _patience(self, commands: Mapping[int, Command]) -> float:
        if self._timeout_seconds is not None:
            return self._timeout_seconds
        usual = max(_LEAST_TIMEOUT_SECONDS, 20 * self._pool.longest_silence_seconds)
        # Of these nobody hears until all is read or written, however much it is.
        silent = any(isinstance(command, Collect | LoadSamples) for command in commands.values())
        first = silent or not self.spent.running_seconds
        return max(usual, _FIRST_TIMEOUT_SECONDS) if first else usual

    def transport(self, workers: Iterable[int]) -> Transport:
        """How these workers exchange tensors."""
        return transport_of(self.devices[worker] for worker in workers)

    def note_stages(self, pipeline: Pipeline) -> None:
        """Which stages the workers hold from now on, for what is said of one that is lost."""
        self._pool.note_stages({worker: pipeline.stage_of(worker) for worker in pipeline.workers})

    def new_name(self, purpose: str) -> str:
        """A name that the session never uses again."""
        self._names += 1
        return f"{purpose}-{self._names}"

    # Samples and files

    def use_samples(self, inputs: Sequence[Tensor], targets: Tensor) -> None:
        """Give all workers, and those that replace them, samples to work on."""
        self.check_open()
        self._samples = (tuple(inputs), targets)
        self._publish(_SAMPLES_FILE, self._samples)
        if self._informed_generation == self._pool.generation:
            self.command(dict.fromkeys(self._all, LoadSamples(_SAMPLES_FILE)))

    @property
    def example_order(self) -> Tensor | None:
        """Makes minibatches of the model's batch size out of the samples; None if they are one."""
        batch = self._captured.task.batch_size
        return None if len(self._samples[0][0]) == batch else torch.arange(batch).unsqueeze(0)

    @contextmanager
    def feeding(
        self, options: RunOptions, pipeline: Pipeline, minibatches: int, first: int
    ) -> Iterator[Feed | None]:
        """The feed of a run whose minibatches are loaded while it goes on."""
        if options.loaded is None:
            yield None
            return
        task = self._captured.task
        assert task.targets is not None
        bytes_ = sum(tensor.nbytes for tensor in (*task.inputs, task.targets))
        stream = Stream(self.new_name("stream"), chunk_minibatches(bytes_), first)
        feed = Feed(
            stream,
            options.loaded,
            minibatches - first,
            pipeline.workers,
            self.folder,
            self._pool.publish,
            self._pool.remove,
        )
        with loader_processes_may_die(), closing(feed):
            yield feed

    def lend(self, path: Path) -> str:
        """The name of a file of the user in the session's folder."""
        file = self.new_name("checkpoint")
        with _telling_of_temporary_files():
            (self.folder / file).symlink_to(path.absolute())
            self._pool.publish(file)
        return file

    def remove(self, file: str) -> None:
        """Remove a file on every host; who has it mapped can go on reading it."""
        self._pool.remove(file)

    def fetch(self, worker: int, file: str) -> Path:
        """The file that a worker wrote into the folder of its host."""
        with _telling_of_temporary_files():
            return self._pool.fetch(worker, file)

    def _publish(self, file: str, content: object) -> None:
        path = self.folder / file
        # Workers may still have the old file mapped, which has to stay as it is.
        with _telling_of_temporary_files():
            path.unlink(missing_ok=True)
            write_tree(path, content)
            self._pool.publish(file)


def _telling_of_temporary_files() -> AbstractContextManager[None]:
    """For what the session itself writes: whoever is told how it goes has errors of his own."""
    return telling_of_storage(Path(tempfile.gettempdir()))
