"""A worker process: holds one stage of a placement and does what the controller tells it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.errors import InvalidInput, ModelError, OutOfMemory, RunFailure
from drlpp.runtime.agreement import check_agreement
from drlpp.runtime.channel import Channel
from drlpp.runtime.commands import (
    Answer,
    Collect,
    Command,
    Deploy,
    Done,
    Failed,
    LoadModel,
    LoadSamples,
    ProfileOperators,
    Progress,
    Ready,
    Run,
    RunResult,
    Stop,
    TimeLink,
)
from drlpp.runtime.communication import Mailbox, build_group
from drlpp.runtime.connections import Connections
from drlpp.runtime.devices import (
    Accelerator,
    Processor,
    accelerator_of,
    is_out_of_memory,
    moved,
)
from drlpp.runtime.emulation import computing_on
from drlpp.runtime.evaluation_runner import EvaluationRunner
from drlpp.runtime.executor import Executor
from drlpp.runtime.links import answer_messages, time_messages
from drlpp.runtime.minibatches import Minibatches
from drlpp.runtime.profiling import time_operators
from drlpp.runtime.retargeting import retarget
from drlpp.runtime.stage_runner import StageRunner
from drlpp.runtime.transport import (
    Backend,
    BuildGroup,
    build_links,
    build_nccl_group,
    build_sum_group,
)
from drlpp.schedule import Message

_PROGRESS_INTERVAL_SECONDS = 0.25
_PROCESSOR = torch.device("cpu")


def worker_main(
    worker: int, channel: Channel, store_port: int, speed: float, core: int | None
) -> None:
    """Entry point of a worker process; returns when told to, or when the controller is gone."""
    # Ctrl-C reaches the whole process group; the controller decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_controller, daemon=True).start()
    torch.set_num_threads(1)
    _keep_freed_memory()
    store = dist.TCPStore("127.0.0.1", store_port, is_master=False)
    state = Worker(worker, channel, store, speed, core)
    with suppress(EOFError):
        while not isinstance(command := channel.receive(), Stop):
            channel.send(state.answer(command))
    # Gloo's threads may still hold operations of an abandoned trial; ordinary exit would abort.
    os._exit(0)


def _end_with_controller() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _keep_freed_memory() -> None:
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


class Worker:
    """The state of a worker between commands."""

    def __init__(
        self,
        worker: int,
        channel: Channel,
        store: dist.Store,
        speed: float,
        core: int | None,
    ) -> None:
        self._worker = worker
        self._speed = speed
        self._core = core
        self._channel = channel
        self._folder = Path(channel.folder)
        self._store = store
        self._state: dict[str, Tensor] = {}
        self._samples: tuple[Tensor, ...] = ()
        self._labels = torch.empty(0)
        self._deployed: Deploy | None = None
        self._runner: StageRunner | None = None
        self._accelerator: Accelerator = Processor()
        self._connections: Connections | None = None
        self._inbox: dict[Message, list[Tensor]] = {}
        self._restored: dict[str, Any] | None = None

    def answer(self, command: Command) -> Answer:
        """Carry out a command; what goes wrong becomes an answer."""
        try:
            return self._carry_out(command)
        except RunFailure as error:
            return Failed(type(error).__name__, str(error))
        except InvalidInput as error:
            return Failed(type(error).__name__, f"worker {self._worker}: {error}")
        except Exception as error:
            kind = OutOfMemory if is_out_of_memory(error) else ModelError
            summary = " ".join(str(error).split())[:500]
            return Failed(
                kind.__name__, f"worker {self._worker}: {type(error).__name__}: {summary}"
            )

    def _carry_out(self, command: Command) -> Answer:
        match command:
            case LoadModel(state_file, samples_file, device):
                self._accelerator = accelerator_of(device, self._worker)
                self._state = self._load(state_file)
                self._load_samples(samples_file)
                return Ready(self._accelerator.facts)
            case LoadSamples(samples_file):
                self._load_samples(samples_file)
            case Deploy():
                self._deploy(command)
            case Run():
                return self._run(command)
            case Collect(file, in_flight):
                self._collect(file, in_flight=in_flight)
            case ProfileOperators():
                together = None
                if len(command.workers) > 1:
                    together = build_sum_group(
                        command.transport,
                        command.name,
                        command.workers,
                        self._accelerator.device,
                        self._group_builder(60),
                    )
                with computing_on(self._core):
                    return time_operators(
                        command,
                        self._state,
                        Minibatches(self._samples, self._labels),
                        self._accelerator,
                        self._speed,
                        together,
                    )
            case TimeLink():
                return self._time_link(command)
        return Done()

    def _load(self, file: str) -> Any:
        return torch.load(self._folder / file, mmap=True, weights_only=True)

    def _load_samples(self, file: str) -> None:
        samples, labels = self._load(file)
        self._samples, self._labels = tuple(samples), labels

    def _deploy(self, command: Deploy) -> None:
        # The old stage first: two stages of a large model may not fit.
        if self._connections is not None:
            self._connections.close()
        self._runner = self._connections = None
        self._inbox, self._restored = {}, None
        self._accelerator.give_back_memory()
        device = self._accelerator.device
        program, loss = pickle.loads(command.stage)
        retarget(program.function, device)
        retarget(loss, device)
        state, optimizer_state = self._state, {}
        if command.checkpoint_file:
            checkpoint = self._load(command.checkpoint_file)
            optimizer_state = checkpoint["optimizer"]
            if command.in_flight:
                self._restored = checkpoint["in_flight"][self._worker]
            # Running statistics are a replica's own.
            state = checkpoint["model"] | (self._restored["buffers"] if self._restored else {})
        build = self._group_builder(command.timeout_seconds)
        connections = Connections.build(command, program.stage, self._worker, device, build)
        self._connections = connections
        self._runner = StageRunner(
            program=program,
            state=state,
            method=command.method,
            optimizer=command.optimizer,
            delay=command.delay,
            loss=loss,
            minibatches=Minibatches(self._samples, self._labels),
            sum_over_replicas=connections.start_sum if connections.replicas else None,
            counts_for_norm=self._worker == command.replicas[0],
            seed=command.seed,
            optimizer_state=optimizer_state,
            device=device,
        )
        self._deployed = command

    def _group_builder(self, timeout_seconds: float) -> BuildGroup:
        def build(name: str, workers: Sequence[int], backend: Backend) -> dist.ProcessGroup:
            build = build_nccl_group if backend == "nccl" else build_group
            return build(self._store, name, workers, self._worker, timeout_seconds)

        return build

    def _run(self, command: Run) -> RunResult:
        assert self._runner is not None
        assert self._connections is not None
        assert self._deployed is not None
        device = self._accelerator.device
        runner: StageRunner | EvaluationRunner = self._runner
        minibatches = Minibatches(
            self._samples, self._labels, command.order, command.microbatches
        ).on(device)
        if command.evaluation:
            program, score = pickle.loads(command.evaluation)
            retarget(program.function, device)
            retarget(score, device)
            self._connections.share_buffers(self._runner.buffers.values())
            runner = EvaluationRunner(program, self._runner, score, minibatches)
        else:
            self._runner.minibatches = minibatches
            self._runner.first_minibatch = command.first_minibatch
            self._begin(command)
        check_agreement(
            self._connections.everyone,
            self._deployed.workers,
            self._worker,
            runner.program,
            command.actions,
        )
        self._accelerator.forget_peak_memory()
        mailbox = Mailbox(self._connections.links, runner.program, command.actions, command.posted)
        inbox = {} if command.evaluation else self._inbox
        clock = self._accelerator.new_clock()
        executor = Executor(
            runner,
            mailbox,
            self._connections.everyone,
            clock,
            self._progress_report(),
            self._speed,
            inbox,
        )
        with computing_on(self._core):
            times = executor.run(command.actions)
        return RunResult(
            times=times,
            losses=self._runner.losses.take(),
            scores=moved(runner.scores, _PROCESSOR) if isinstance(runner, EvaluationRunner) else {},
            peak_memory_bytes=self._accelerator.peak_memory_bytes(),
            bytes_sent=mailbox.bytes_sent,
            message_bytes=mailbox.message_bytes,
            bucket_bytes=self._runner.bucket_bytes if self._connections.replicas else 0,
            weight_bytes=self._runner.weight_bytes,
            peak_weight_bytes=self._runner.peak_weight_bytes,
            predictions=[] if command.evaluation else clock.read(self._runner.policy.predictions),
        )

    def _time_link(self, command: TimeLink) -> Answer:
        ends = (command.sender, command.receiver)
        if command.name is not None:
            build = self._group_builder(60)
            links = build_links(
                command.transport,
                command.name,
                build(command.name, ends, "gloo"),
                ends,
                (ends, ends[::-1]),
                self._worker,
                self._accelerator.device,
                build,
            )
        else:
            assert self._connections is not None
            links = self._connections.links
        if self._worker == command.sender:
            return time_messages(links, command.receiver, command.sizes_bytes, command.repeats)
        answer_messages(links, command.sender, command.sizes_bytes)
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
            inbox = moved(restored["inbox"], self._accelerator.device)
            self._inbox = {Message(*key): tensors for key, tensors in inbox}
            self._runner.load_in_flight_state(restored["stage"], command.plan)

    def _progress_report(self) -> Callable[[int], None]:
        """A function that tells the controller, from time to time, how far the last stage is."""
        assert self._deployed is not None
        assert self._runner is not None
        reports = self._runner.loss is not None and self._worker == self._deployed.replicas[0]
        last = time.monotonic()

        def report(through: int) -> None:
            nonlocal last
            if reports and time.monotonic() - last > _PROGRESS_INTERVAL_SECONDS:
                last = time.monotonic()
                self._channel.send(Progress(through))

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
        torch.save(moved(stage, _PROCESSOR), self._folder / file)
