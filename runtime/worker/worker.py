"""What a worker does: holds one stage of a placement, or two, and carries out commands."""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from drlpp.runtime.comm.agreement import verify_message_plan
from drlpp.runtime.comm.connections import Connections, Member
from drlpp.runtime.comm.link_timing import exchange
from drlpp.runtime.comm.mailbox import Mailbox
from drlpp.runtime.device.devices import CPU, Accelerator, accelerator_of, to_device
from drlpp.runtime.device.emulation import computing_on
from drlpp.runtime.device.retargeting import move_graph_to_device
from drlpp.runtime.ipc.protocol import (
    NOTHING_READ,
    Answer,
    Channel,
    Collect,
    Command,
    Deploy,
    Deployed,
    Done,
    LoadModel,
    LoadSamples,
    ProfileOperators,
    Progress,
    Ready,
    Release,
    Run,
    RunResult,
    TimeLink,
    WorkerSpec,
)
from drlpp.runtime.ipc.tensor_file import in_memory, read_checkpoint, write_tree
from drlpp.runtime.stage.data.minibatches import Minibatches, MinibatchSource
from drlpp.runtime.stage.data.streaming import StreamedMinibatches
from drlpp.runtime.stage.evaluation_runner import EvaluationRunner
from drlpp.runtime.stage.finite_weights import check_finite
from drlpp.runtime.stage.generated_sources import discarded_fx_sources
from drlpp.runtime.stage.stage_runner import StageRunner
from drlpp.runtime.weights.optimizers import OptimizerState
from drlpp.runtime.worker.executor import Executor, Runner
from drlpp.runtime.worker.operator_timing import time_operators
from drlpp.schedule.actions import Action, Message
from drlpp.torch_versions import forget_keys

_PROGRESS_INTERVAL_SECONDS = 0.25

_STAGES = ("stage", "second_stage")
"""What a worker holds, as checkpoints name it."""


class Worker:
    """The state of a worker between commands."""

    def __init__(self, spec: WorkerSpec, channel: Channel, store: dist.Store) -> None:
        self._spec = spec
        self._worker = spec.worker
        self._channel = channel
        self._folder = Path(channel.folder)
        self._store = store
        self._state: dict[str, Tensor] = {}
        self._samples: tuple[Tensor, ...] = ()
        self._labels: tuple[Tensor, ...] = ()
        self._deployed: Deploy | None = None
        self._runners: list[StageRunner] = []
        self._accelerator = Accelerator()
        self._connections: Connections | None = None
        self._inbox: dict[Message, list[Tensor]] = {}
        self._restored: dict[str, Any] | None = None
        self._streamed: StreamedMinibatches | None = None

    def carry_out(self, command: Command) -> Answer:
        """Carry out a command; raise what goes wrong."""
        match command:
            case LoadModel(state_file, samples_file, device):
                self._accelerator = accelerator_of(
                    device, self._spec.place, on_one_host=self._spec.on_one_host
                )
                self._state = self._load(state_file)
                self._load_samples(samples_file)
                return Ready(self._accelerator.facts)
            case LoadSamples(samples_file):
                self._load_samples(samples_file)
            case Deploy():
                return self._deploy(command)
            case Run(evaluation=None):
                return self._train(command)
            case Run():
                return self._evaluate(command)
            case Collect():
                self._collect(command)
            case Release():
                self._release()
            case ProfileOperators():
                return self._profile(command)
            case TimeLink():
                return self._time_link(command)
        return Done()

    def _profile(self, command: ProfileOperators) -> Answer:
        member = self._member(self._spec.limits.group_seconds)
        with member.replicas_of_profile(command) as replicas, computing_on(self._spec.core):
            return time_operators(
                command,
                self._state,
                Minibatches(self._samples, self._labels),
                self._accelerator,
                self._spec.speed,
                replicas,
                self._channel.send,
            )

    def _load(self, file: str) -> Any:
        return read_checkpoint(self._folder / file)

    def _load_samples(self, file: str) -> None:
        samples, labels = self._load(file)
        self._samples, self._labels = tuple(samples), tuple(labels)

    def _on_device(self, stages: bytes) -> Any:
        """Return stages whose graphs compute on the worker's device."""
        with discarded_fx_sources():
            loaded = pickle.loads(stages)
            for graph in (graph for stage in loaded for graph in stage.graphs):
                move_graph_to_device(graph, self._accelerator.device)
        return loaded

    def _release(self) -> None:
        """Give up the stage, with all memory and connections."""
        if self._connections is not None:
            self._connections.close()
        self._runners, self._connections = [], None
        self._forget_addresses()
        self._deployed = None
        self._inbox, self._restored = {}, None
        # Graphs and autograd's hooks refer to themselves.
        gc.collect()
        self._accelerator.empty_cache()

    def _deploy(self, command: Deploy) -> Deployed:
        begin = time.perf_counter()
        # The old stage first: two stages of a large model may not fit.
        self._release()
        device = self._accelerator.device
        stages = self._on_device(command.stages)
        state, optimizer_state = self._state, {}
        if command.checkpoint_file:
            checkpoint = self._load(command.checkpoint_file)
            optimizer_state = checkpoint["optimizer"]
            if command.in_flight:
                self._restored = in_memory(checkpoint["in_flight"][self._worker])
            # Running statistics are a replica's own.
            state = checkpoint["model"] | (self._restored["buffers"] if self._restored else {})
        loaded = time.perf_counter()
        member = self._member(self._spec.limits.group_seconds)
        self._connections = connections = Connections.build(command, stages[0].stage, member)
        connected = time.perf_counter()
        held = [self._held_state(name, state, optimizer_state) for name in _STAGES[: len(stages)]]
        self._runners = [
            StageRunner(
                program=program,
                state=state,
                ties=ties,
                method=command.method,
                optimizer=command.optimizer,
                delay=command.delay,
                minibatches=Minibatches(self._samples, self._labels),
                sum_over_replicas=connections.start_sum if connections.replicas else None,
                counts_for_norm=self._worker == command.replicas[0],
                seed=command.seed,
                optimizer_state=optimizer_state,
                device=device,
            )
            for program, ties, (state, optimizer_state) in zip(
                stages, command.ties, held, strict=True
            )
        ]
        self._deployed = command
        return Deployed(loaded - begin, connected - loaded, time.perf_counter() - connected)

    def _held_state(
        self, name: str, state: Mapping[str, Tensor], optimizer_state: OptimizerState
    ) -> tuple[Mapping[str, Tensor], OptimizerState]:
        """Return weights and what updates them, with copies of tied weights as they were here.

        With parts in flight they are behind those of the whole model.
        """
        copies = self._restored[name].get("tied", {}).values() if self._restored else ()
        for copy in copies:
            state, optimizer_state = state | copy["model"], optimizer_state | copy["optimizer"]
        return state, optimizer_state

    def _forget_addresses(self) -> None:
        """Forget the addresses that the old placement's workers exchanged; all of them have met."""
        if self._deployed is not None and self._worker == self._deployed.workers[0]:
            forget_keys(dist.PrefixStore(self._deployed.name, self._store))

    def _member(self, timeout_seconds: float) -> Member:
        address, device = self._spec.address, self._accelerator.device
        return Member(self._store, self._worker, address, device, timeout_seconds)

    def _train(self, command: Run) -> RunResult:
        assert self._connections is not None
        minibatches = self._minibatches(command)
        for runner in self._runners:
            runner.minibatches = minibatches
            runner.first_minibatch = command.first_minibatch
        self._begin(command)
        executor = self._executor(command, self._runners)
        executor.everyone, executor.received = self._connections.everyone, self._inbox
        return replace(
            self._executed(executor, command.actions),
            predictions=sorted(
                executor.clock.read(
                    [
                        moment
                        for runner in self._runners
                        for policy in runner.weights.policies
                        for moment in policy.predictions
                    ]
                )
            ),
            # On stages of one worker the same updates: those of a schedule that flushes.
            skipped_updates=max(runner.skipped_updates for runner in self._runners),
        )

    def _evaluate(self, command: Run) -> RunResult:
        assert self._connections is not None
        assert command.evaluation is not None
        stages = self._on_device(command.evaluation)
        for trained in self._runners:
            self._connections.share_buffers(trained.buffers.values())
        minibatches = self._minibatches(command)
        runners = [
            EvaluationRunner(stage, trained, minibatches, passes_last=trained is self._runners[-1])
            for stage, trained in zip(stages, self._runners, strict=True)
        ]
        executor = self._executor(command, runners)
        found = self._executed(executor, command.actions)
        # The last of the stages is the model's last, if any is.
        return replace(found, scores=to_device(runners[-1].scores, CPU))

    def _executor(self, command: Run, runners: Sequence[Runner]) -> Executor:
        """Build the executor of a run whose messages all workers agree on."""
        assert self._connections is not None
        assert self._deployed is not None
        workers, everyone = self._deployed.workers, self._connections.everyone
        programs = [runner.program for runner in runners]
        verify_message_plan(everyone, workers, self._worker, programs, command.actions)
        return Executor(
            runners=runners,
            mailbox=Mailbox(self._connections.links, programs, command.actions, command.posted),
            clock=self._accelerator.new_clock(),
            on_progress=self._progress_of(runners),
            speed=self._spec.speed,
        )

    def _executed(self, executor: Executor, actions: Sequence[Action]) -> RunResult:
        assert self._connections is not None
        self._accelerator.reset_peak_memory()
        with computing_on(self._spec.core):
            times = executor.run(actions)
        return RunResult(
            times=times,
            processor_seconds=executor.processor_seconds,
            losses=executor.runners[-1].losses.take(),
            scores={},
            peak_memory_bytes=self._accelerator.peak_memory_bytes(),
            bytes_sent=executor.mailbox.bytes_sent,
            message_bytes=executor.mailbox.message_bytes,
            bucket_bytes=self._runners[0].weights.bucket_bytes if self._connections.replicas else 0,
            weight_bytes=sum(runner.weight_bytes for runner in self._runners),
            peak_weight_bytes=sum(runner.peak_weight_bytes for runner in self._runners),
        )

    def _minibatches(self, command: Run) -> MinibatchSource:
        """Return what this run works on; a stream continues where the run before left it."""
        if command.stream is None:
            in_memory = Minibatches(
                self._samples, self._labels, command.order, command.microbatches
            )
            return in_memory.on(self._accelerator.device)
        if self._streamed is None or self._streamed.stream != command.stream:
            self._streamed = StreamedMinibatches(
                command.stream,
                self._folder,
                command.microbatches,
                self._accelerator.device,
                self._channel.send,
            )
            if not any(runner.program.reads_data for runner in self._runners):
                self._channel.send(NOTHING_READ)
        return self._streamed

    def _time_link(self, command: TimeLink) -> Answer:
        if command.name is None:
            assert self._connections is not None
            return exchange(self._connections.links, self._worker, command)
        member = self._member(self._spec.limits.link_seconds)
        with member.links_of_two(command, command.name) as links:
            return exchange(links, self._worker, command)

    def _collect(self, command: Collect) -> None:
        """Write weights, the optimizer's state and what is in flight into a file or a storage."""
        held: dict[str, Any] = {"model": {}, "optimizer": {}}
        buffers: dict[str, Tensor] = {}
        for runner in self._runners:
            if command.weights:
                model, optimizer = runner.saved()
                held["model"] |= model
                held["optimizer"] |= optimizer
            buffers |= runner.buffers
        if command.in_flight:
            inbox = [(astuple(message), tensors) for message, tensors in self._inbox.items()]
            held["in_flight"] = {"inbox": inbox, "buffers": buffers}
            for name, runner in zip(_STAGES, self._runners, strict=False):
                held["in_flight"][name] = runner.in_flight_state()
        path, held = self._folder / command.file, to_device(held, CPU)
        if not command.storage:
            write_tree(path, held)
            return
        # Most trainings keep their checkpoints in files, and begin sooner without it.
        from drlpp.runtime.ipc.shared_storage import storage_at

        check_finite(held["model"], self._state)
        try:
            write_tree(path, held)
            storage_at(command.storage).put(path, command.name)
        finally:
            path.unlink(missing_ok=True)

    def _begin(self, command: Run) -> None:
        """Prepare the runners for a run, which may resume what is in flight."""
        restored, self._restored = self._restored, None
        if not command.goes_on:
            self._inbox = {}
        elif restored is not None:
            inbox = to_device(restored["inbox"], self._accelerator.device)
            self._inbox = {Message(*key): tensors for key, tensors in inbox}
        for name, runner, plan in zip(_STAGES, self._runners, command.plans, strict=False):
            if command.goes_on and restored is not None:
                runner.load_in_flight_state(restored[name], plan)
            else:
                runner.begin(plan)

    def _progress_of(self, runners: Sequence[Runner]) -> Callable[[int], None]:
        """Return what is called during a run: from time to time it reports to the controller."""
        assert self._deployed is not None
        runner = runners[-1]
        reports = runner.program.loss is not None and self._worker == self._deployed.replicas[0]
        last = time.monotonic()

        def report(through: int) -> None:
            nonlocal last
            runner.minibatches.passed(through)
            if reports and time.monotonic() - last > _PROGRESS_INTERVAL_SECONDS:
                last = time.monotonic()
                if losses := runner.losses.new():
                    self._channel.send(Progress(through, losses))

        return report
