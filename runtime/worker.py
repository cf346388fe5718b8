"""A worker process: holds one stage of a placement and does what the controller tells it."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple
from itertools import islice
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.errors import ModelError, OutOfMemory, RunFailure, StorageFailure
from drlpp.runtime.channel import Channel
from drlpp.runtime.checkpoint_file import in_memory, read_checkpoint, write_tree
from drlpp.runtime.commands import (
    Answer,
    Collect,
    Command,
    Deploy,
    Deployed,
    Done,
    Failed,
    LoadModel,
    LoadSamples,
    ProfileOperators,
    Progress,
    Run,
    RunResult,
    Stop,
    TimeLink,
)
from drlpp.runtime.communication import Mailbox, build_group
from drlpp.runtime.emulation import computing_on
from drlpp.runtime.evaluation_runner import EvaluationRunner
from drlpp.runtime.executor import Executor
from drlpp.runtime.feed import NOTHING_READ
from drlpp.runtime.generated_sources import sources_forgotten
from drlpp.runtime.hosts import Post
from drlpp.runtime.links import answer_messages, time_messages
from drlpp.runtime.minibatches import Minibatches, MinibatchSource
from drlpp.runtime.profiling import time_operators
from drlpp.runtime.session_folder import remove_files_of_dead_controller
from drlpp.runtime.stage_runner import StageRunner
from drlpp.runtime.store import join_store
from drlpp.runtime.streaming import StreamedMinibatches
from drlpp.schedule import Message

_PROGRESS_INTERVAL_SECONDS = 0.25
_OUT_OF_MEMORY_SIGNS = ("DefaultCPUAllocator", "out of memory", "Cannot allocate memory")


def worker_main(post: Post, channel: Channel) -> None:
    """Entry point of a worker process; returns when told to, or when the controller is gone."""
    # What was imported lives as long as the worker: collections need not look at it again.
    gc.freeze()
    # Ctrl-C reaches the whole process group; the controller decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _wake_up_when_orphaned()
    watch = threading.Thread(target=_end_with_controller, args=(Path(channel.folder),), daemon=True)
    watch.start()
    torch.set_num_threads(1)
    keep_freed_memory()
    store = join_store(post.store.address, post.store.port, post.store.token)
    state = Worker(post, channel, store)
    try:
        while not isinstance(command := channel.receive(), Stop):
            try:
                channel.send(state.answer(command))
            except StorageFailure as error:
                channel.send(state.failed(error))
    except (EOFError, ConnectionError):
        # The controller is gone; the other thread removes what it has left, and ends us.
        watch.join()
    # Gloo's threads may still hold operations of an abandoned trial; ordinary exit would abort.
    os._exit(0)


def _end_with_controller(folder: Path) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    remove_files_of_dead_controller(folder)
    os._exit(1)


def _wake_up_when_orphaned() -> None:
    """Have the system continue this process, should it be stopped, when the fork server ends.

    A stopped worker would not see that the controller is gone, and stay for ever. The server ends
    when nobody holds the pipe any more that it watches; workers get a copy to start processes of
    their own, which they never do.
    """
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    pr_set_pdeathsig = 1
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").prctl(pr_set_pdeathsig, signal.SIGCONT)


def keep_freed_memory() -> None:
    """Let malloc reuse big blocks instead of giving them back to the system after every use.

    Otherwise every activation is a fresh mapping, and its page faults cost about as much as
    the operators of a small model.
    """
    m_trim_threshold, m_mmap_threshold = -1, -3
    largest_mmap_threshold = 32 * 1024 * 1024
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(m_mmap_threshold, largest_mmap_threshold)
        libc.mallopt(m_trim_threshold, 1024 * 1024 * 1024)


def _give_back_freed_memory() -> None:
    """Begin every placement with the same memory, or its peak would tell of the one before."""
    # Graphs and autograd's hooks refer to themselves.
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class Worker:
    """The state of a worker between commands."""

    def __init__(self, post: Post, channel: Channel, store: dist.Store) -> None:
        self._worker = post.worker
        self._address = post.address
        self._speed = post.speed
        self._core = post.core
        self._channel = channel
        self._folder = Path(channel.folder)
        self._store = store
        self._state: dict[str, Tensor] = {}
        self._samples: tuple[Tensor, ...] = ()
        self._labels = torch.empty(0)
        self._deployed: Deploy | None = None
        self._runner: StageRunner | None = None
        self._group: dist.ProcessGroup | None = None
        self._replicas: dist.ProcessGroup | None = None
        self._inbox: dict[Message, list[Tensor]] = {}
        self._restored: dict[str, Any] | None = None
        self._streamed: StreamedMinibatches | None = None

    def answer(self, command: Command) -> Answer:
        """Carry out a command; what goes wrong becomes an answer."""
        try:
            return self._carry_out(command)
        except Exception as error:
            return self.failed(error)

    def failed(self, error: Exception) -> Failed:
        """The answer that tells of an error."""
        summary = " ".join(str(error).split())[:500]
        if isinstance(error, RunFailure):
            return Failed(type(error).__name__, f"worker {self._worker}: {summary}")
        kind = OutOfMemory if _is_out_of_memory(error) else ModelError
        return Failed(kind.__name__, f"worker {self._worker}: {type(error).__name__}: {summary}")

    def _carry_out(self, command: Command) -> Answer:
        match command:
            case LoadModel(state_file, samples_file):
                self._state = self._load(state_file)
                self._load_samples(samples_file)
            case LoadSamples(samples_file):
                self._load_samples(samples_file)
            case Deploy():
                return self._deploy(command)
            case Run():
                return self._run(command)
            case Collect(file, in_flight):
                self._collect(file, in_flight=in_flight)
            case ProfileOperators():
                data = Minibatches(self._samples, self._labels)
                together = None
                if len(command.workers) > 1:
                    together = self._build_group(command.name, command.workers, 60)
                with computing_on(self._core):
                    return time_operators(command, self._state, data, self._speed, together)
            case TimeLink():
                return self._time_link(command)
        return Done()

    def _load(self, file: str) -> Any:
        return read_checkpoint(self._folder / file)

    def _load_samples(self, file: str) -> None:
        samples, labels = self._load(file)
        self._samples, self._labels = tuple(samples), labels

    def _deploy(self, command: Deploy) -> Deployed:
        begin = time.perf_counter()
        # The old stage first: two stages of a large model may not fit.
        self._runner = self._group = self._replicas = None
        self._forget_addresses()
        self._inbox, self._restored = {}, None
        _give_back_freed_memory()
        with sources_forgotten():
            program, loss = pickle.loads(command.stage)
        state, optimizer_state = self._state, {}
        if command.checkpoint_file:
            checkpoint = self._load(command.checkpoint_file)
            optimizer_state = checkpoint["optimizer"]
            if command.in_flight:
                self._restored = in_memory(checkpoint["in_flight"][self._worker])
            # Running statistics are a replica's own.
            state = checkpoint["model"] | (self._restored["buffers"] if self._restored else {})
        timeout = command.timeout_seconds
        loaded = time.perf_counter()
        self._group = self._build_group(f"{command.name}/all", command.workers, timeout)
        if len(command.replicas) > 1:
            self._replicas = self._build_group(
                f"{command.name}/stage-{program.stage}", command.replicas, timeout
            )
        connected = time.perf_counter()
        self._runner = StageRunner(
            program=program,
            state=state,
            method=command.method,
            optimizer=command.optimizer,
            delay=command.delay,
            loss=loss,
            minibatches=Minibatches(self._samples, self._labels),
            sum_over_replicas=self._sum_over_replicas if self._replicas else None,
            counts_for_norm=self._worker == command.replicas[0],
            seed=command.seed,
            optimizer_state=optimizer_state,
        )
        self._deployed = command
        return Deployed(loaded - begin, connected - loaded, time.perf_counter() - connected)

    def _forget_addresses(self) -> None:
        """Those that the workers of the old placement told each other; all of them have met."""
        if self._deployed is not None and self._worker == self._deployed.workers[0]:
            told = dist.PrefixStore(self._deployed.name, self._store)
            for key in told.list_keys():
                told.delete_key(key)

    def _build_group(
        self, name: str, workers: Sequence[int], timeout_seconds: float
    ) -> dist.ProcessGroup:
        return build_group(self._store, name, workers, self._worker, self._address, timeout_seconds)

    def _run(self, command: Run) -> RunResult:
        assert self._runner is not None
        assert self._group is not None
        assert self._deployed is not None
        runner: StageRunner | EvaluationRunner = self._runner
        minibatches = self._minibatches(command)
        if command.evaluation:
            with sources_forgotten():
                program, loss, score = pickle.loads(command.evaluation)
            self._share_buffers()
            runner = EvaluationRunner(program, self._runner, loss, score, minibatches)
        else:
            self._runner.minibatches = minibatches
            self._runner.first_minibatch = command.first_minibatch
            self._begin(command)
        _forget_peak_memory()
        mailbox = Mailbox(
            self._group, self._deployed.workers, runner.program, command.actions, command.posted
        )
        inbox = {} if command.evaluation else self._inbox
        executor = Executor(runner, mailbox, self._group, self._after_update(), self._speed, inbox)
        with computing_on(self._core):
            times = executor.run(command.actions)
        losses, runner.losses = runner.losses, {}
        return RunResult(
            times=times,
            processor_seconds=executor.processor_seconds,
            losses=losses,
            scores=runner.scores if isinstance(runner, EvaluationRunner) else {},
            peak_memory_bytes=_peak_memory_bytes(),
            bytes_sent=mailbox.bytes_sent,
            message_bytes=mailbox.message_bytes,
            bucket_bytes=self._runner.bucket_bytes if self._replicas else 0,
            weight_bytes=self._runner.weight_bytes,
            peak_weight_bytes=self._runner.peak_weight_bytes,
            predictions=[] if command.evaluation else self._runner.policy.predictions,
        )

    def _minibatches(self, command: Run) -> MinibatchSource:
        """What this run works on; a stream goes on where the run before left it."""
        if command.stream is None:
            return Minibatches(self._samples, self._labels, command.order, command.microbatches)
        if self._streamed is None or self._streamed.stream != command.stream:
            self._streamed = StreamedMinibatches(
                command.stream, self._folder, command.microbatches, self._channel.send
            )
            assert self._runner is not None
            if not self._runner.reads_data:
                self._channel.send(NOTHING_READ)
        return self._streamed

    def _time_link(self, command: TimeLink) -> Answer:
        ends = (command.sender, command.receiver)
        if command.name is not None:
            group = self._build_group(command.name, ends, 60)
            sender, receiver = 0, 1
        else:
            assert self._group is not None
            assert self._deployed is not None
            group = self._group
            sender, receiver = map(self._deployed.workers.index, ends)
        if self._worker == command.sender:
            return time_messages(group, receiver, command.sizes_bytes, command.repeats)
        answer_messages(group, sender, command.sizes_bytes)
        return Done()

    def _begin(self, command: Run) -> None:
        """Prepare the runner for a run, which may go on with what is in flight."""
        assert self._runner is not None
        restored, self._restored = self._restored, None
        if not command.goes_on:
            self._inbox = {}
            self._runner.begin(command.plan)
        elif restored is None:
            self._runner.begin(command.plan)
        else:
            self._inbox = {Message(*key): tensors for key, tensors in restored["inbox"]}
            self._runner.load_in_flight_state(restored["stage"], command.plan)

    def _sum_over_replicas(self, tensor: Tensor) -> dist.Work:
        assert self._replicas is not None
        return self._replicas.allreduce([tensor])

    def _share_buffers(self) -> None:
        """Give all replicas the running statistics of the first, as data parallelism does."""
        if self._replicas is not None:
            assert self._runner is not None
            for buffer in self._runner.buffers.values():
                self._replicas.broadcast([buffer]).wait()

    def _after_update(self) -> Callable[[int], None]:
        """What follows an update: from time to time the controller is told how far this is."""
        assert self._deployed is not None
        assert self._runner is not None
        runner = self._runner
        reports = runner.loss is not None and self._worker == self._deployed.replicas[0]
        last, told = time.monotonic(), 0

        def report(through: int) -> None:
            nonlocal last, told
            runner.minibatches.passed(through)
            if reports and time.monotonic() - last > _PROGRESS_INTERVAL_SECONDS:
                last = time.monotonic()
                losses = list(islice(runner.losses.values(), told, None))
                told += len(losses)
                self._channel.send(Progress(through, sum(losses) / len(losses)))

        return report

    def _collect(self, file: str, *, in_flight: bool) -> None:
        assert self._runner is not None
        stage: dict[str, Any] = {
            "model": self._runner.weights_and_buffers(),
            "optimizer": self._runner.named_optimizer_state(),
        }
        if in_flight:
            stage["in_flight"] = {
                "stage": self._runner.in_flight_state(),
                "inbox": [(astuple(message), tensors) for message, tensors in self._inbox.items()],
                "buffers": self._runner.buffers,
            }
        write_tree(self._folder / file, stage)


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(sign in text for sign in _OUT_OF_MEMORY_SIGNS)
    )


def _forget_peak_memory() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory_bytes() -> int:
    """The largest resident size since :func:`_forget_peak_memory`; 0 where Linux does not tell."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
