"""What a worker does: holds one stage of a placement, or two, and carries out commands."""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.costs.memory_count import MemoryCount, repeats_after
from drlpp.runtime.comm.connections import Connections, Member
from drlpp.runtime.comm.link_timing import exchange
from drlpp.runtime.comm.messages import Mailbox, verify_message_plan
from drlpp.runtime.comm.pacing import Pace
from drlpp.runtime.device.compiling import why_not_compiled
from drlpp.runtime.device.devices import CPU, Accelerator, DeviceFacts, accelerator_of, to_device
from drlpp.runtime.device.emulation import computing_on
from drlpp.runtime.device.retargeting import move_graph_to_device
from drlpp.runtime.ipc.channel import Channel
from drlpp.runtime.ipc.protocol import (
    MODEL_FILE,
    NOTHING_READ,
    SAMPLES_FILE,
    Collect,
    Command,
    Deploy,
    GroupSpec,
    Load,
    Progress,
    Release,
    Run,
    RunResult,
    TimeLink,
    TimeTraining,
    TrainingTimes,
    TrainParallel,
    WorkerSpec,
    held_file,
)
from drlpp.runtime.ipc.tensor_file import read_checkpoint, write_tree
from drlpp.runtime.stage.graph_code import discarded_fx_sources
from drlpp.runtime.stage.minibatches import Minibatches, MinibatchSource, StreamedMinibatches
from drlpp.runtime.stage.stage_runner import EvaluationRunner, StageRunner
from drlpp.runtime.stage.stage_weights import check_finite
from drlpp.runtime.worker.executor import Executor, Runner
from drlpp.runtime.worker.operator_timing import time_training

_PROGRESS_INTERVAL_SECONDS = 0.25


@dataclass
class _Held:
    """What a worker holds of a deployment.

    Attributes:
        command: that it was deployed by.
        connections: to the other workers of the placement.
        runners: of its stages.
        memory: what counts the memory of its tensors, where that is limited and torch does not.
        counted: whether that has seen all that repeats itself.
    """

    command: Deploy
    connections: Connections
    runners: list[StageRunner]
    memory: MemoryCount | None
    counted: bool = False


class Worker:
    """The state of a worker between commands."""

    def __init__(self, spec: WorkerSpec, channel: Channel, store: dist.Store) -> None:
        self._spec = spec
        self._worker = spec.worker
        self._channel = channel
        self._folder = Path(channel.folder)
        self._store = store
        self._state: dict[str, Tensor] = {}
        self._samples = Minibatches((), ())
        self._accelerator = Accelerator()
        self._deployed: _Held | None = None
        self._pace = None if spec.links is None else Pace(spec.links)

    @property
    def _held(self) -> _Held:
        assert self._deployed is not None
        return self._deployed

    @property
    def _leads(self) -> bool:
        """Whether this is the first of the replicas of its stage."""
        return self._worker == self._held.command.group.replicas[0]

    def carry_out(self, command: Command) -> object:
        """Carry out a command; raise what goes wrong."""
        match command:
            case Load():
                return self._load()
            case Deploy():
                return self._deploy(command)
            case Run():
                return self._run(command)
            case Collect():
                self._collect(command)
            case Release():
                self._release()
            case TimeTraining():
                return self._time_training(command)
            case TimeLink():
                return self._time_link(command)
            case TrainParallel():
                return self._train_parallel(command)
        return None

    def _load(self) -> DeviceFacts:
        self._accelerator = accelerator_of(
            self._spec.device,
            self._spec.place,
            self._spec.memory_bytes,
            on_one_host=self._spec.on_one_host,
        )
        self._state = read_checkpoint(self._folder / MODEL_FILE)
        samples, labels = read_checkpoint(self._folder / SAMPLES_FILE)
        self._samples = Minibatches(tuple(samples), tuple(labels))
        return self._accelerator.facts

    def _time_training(self, command: TimeTraining) -> TrainingTimes:
        connections = None
        with ExitStack() as ending:
            if command.group is not None:
                connections = self._connect(command.group)
                ending.enter_context(closing(connections))
            ending.enter_context(computing_on(self._spec.core))
            return time_training(
                command,
                self._on_device(command.programs),
                self._state,
                self._samples,
                self._accelerator,
                self._spec.speed,
                connections,
                self._channel.send,
            )

    def _on_device(self, stages: bytes) -> Any:
        """Return stages whose graphs compute on the worker's device."""
        with discarded_fx_sources():
            loaded = pickle.loads(stages)
            for graph in (graph for stage in loaded for graph in stage.graphs):
                move_graph_to_device(graph, self._accelerator.device)
        return loaded

    def _connect(self, group: GroupSpec, pace: Pace | None = None) -> Connections:
        return Connections.build(self._member(pace), group)

    def _member(self, pace: Pace | None) -> Member:
        address, device = self._spec.address, self._accelerator.device
        return Member(self._store, self._worker, address, device, pace)

    def _train_parallel(self, command: TrainParallel) -> RunResult:
        # It takes a second to import, and only comparisons need it.
        from drlpp.runtime.worker.parallel_loop import train_parallel

        self._release()
        work = torch.load(self._folder / command.work_file, weights_only=False, mmap=True)
        member, kept_in = self._member(self._pace), self._folder / held_file(self._worker)
        accelerator, speed, tell = self._accelerator, self._spec.speed, self._channel.send
        try:
            with computing_on(self._spec.core):
                return train_parallel(command, work, member, accelerator, speed, tell, kept_in)
        finally:
            del work
            gc.collect()
            self._accelerator.empty_cache()

    def _release(self) -> None:
        """Give up the stage, with all memory and connections."""
        held, self._deployed = self._deployed, None
        if held is not None:
            held.connections.close()
            if self._worker == held.command.group.workers[0]:
                # The addresses that the workers exchanged; all of them have met.
                store = dist.PrefixStore(held.command.group.name, self._store)
                for key in store.list_keys():
                    store.delete_key(key)
        del held
        # Graphs and autograd's hooks refer to themselves.
        gc.collect()
        self._accelerator.empty_cache()

    def _deploy(self, command: Deploy) -> dict[int, str]:
        # The old stage first: two stages of a large model may not fit.
        self._release()
        stages = self._on_device(command.stages)
        numbers = " and ".join(str(program.stage) for program in stages)
        memory = self._accelerator.new_memory_count(f"worker {self._worker} (stage {numbers})")
        state, optimizer_state = self._state, {}
        if command.checkpoint_file:
            checkpoint = read_checkpoint(self._folder / command.checkpoint_file)
            state, optimizer_state = checkpoint["model"], checkpoint["optimizer"]
        connections = self._connect(command.group, self._pace)
        runners = []
        for program, delays in zip(stages, command.delays, strict=True):
            with memory or nullcontext():
                runner = StageRunner(
                    program=program,
                    state=state,
                    method=command.method,
                    optimizer=command.optimizer,
                    delays=delays,
                    minibatches=self._samples,
                    sum_over_replicas=connections.start_sum if connections.replicas else None,
                    seed=command.seed,
                    optimizer_state=optimizer_state,
                    device=self._accelerator.device,
                )
            runners.append(runner)
        self._deployed = _Held(command, connections, runners, memory)
        return self._compile(runners) if command.method.compiled else {}

    def _compile(self, runners: Sequence[StageRunner]) -> dict[int, str]:
        """Compile stages as far as that is possible."""
        if (reason := why_not_compiled(self._accelerator.device.type)) is not None:
            return {runner.program.stage: reason for runner in runners}
        # Placements that are not compiled are there sooner without it.
        from drlpp.runtime.stage.compiling import CannotBeCompiled

        reasons = {}
        for runner in runners:
            try:
                runner.compile()
            except CannotBeCompiled as error:
                reasons[runner.program.stage] = str(error)
        return reasons

    def _run(self, command: Run) -> RunResult:
        """Train, or evaluate; the memory of a training is counted until it repeats itself."""
        held = self._held
        if held.memory is None or held.counted or command.evaluation is not None:
            return self._perform(command)
        steady = repeats_after(command.actions)
        with ExitStack() as counting:
            counting.enter_context(held.memory)

            def on_progress(through: int) -> None:
                if through == steady:
                    held.counted = True
                    counting.close()

            return self._perform(command, on_progress)

    def _perform(
        self, command: Run, on_progress: Callable[[int], None] = lambda through: None
    ) -> RunResult:
        """Run after all workers have agreed on their messages."""
        held, trains = self._held, command.evaluation is None
        trained, everyone = held.runners, held.connections.everyone
        minibatches = self._minibatches(command)
        runners: Sequence[Runner] = trained
        # So replicas go on from a checkpoint, which has the first one's, as without one.
        for runner in trained:
            held.connections.share_buffers(runner.changed_buffers)
        if command.evaluation is None:
            for runner, plan in zip(trained, command.plans, strict=True):
                runner.minibatches = minibatches
                runner.first_minibatch = command.first_minibatch
                runner.begin(plan)
        else:
            runners = [
                EvaluationRunner(stage, runner, minibatches)
                for stage, runner in zip(self._on_device(command.evaluation), trained, strict=True)
            ]
        programs = [runner.program for runner in runners]
        verify_message_plan(
            everyone, held.command.group.workers, self._worker, programs, command.actions
        )
        executor = Executor(
            runners=runners,
            mailbox=Mailbox(held.connections.links, programs, command.actions, command.ahead),
            clock=self._accelerator.new_clock(),
            on_progress=self._progress_of(runners[-1], on_progress),
            everyone=everyone if trains else None,
            speed=self._spec.speed,
            leads=self._leads,
        )
        self._accelerator.reset_peak_memory()
        with computing_on(self._spec.core):
            times = executor.run(command.actions)
        bucket_bytes = [found.bucket_bytes for found in trained[0].weights.gradients.values()]
        last = runners[-1]
        return RunResult(
            times=times,
            losses=last.losses.take(),
            # The last of the stages is the model's last, if any is.
            scores=to_device(last.scores, CPU) if isinstance(last, EvaluationRunner) else {},
            peak_memory_bytes=(held.memory or self._accelerator).peak_memory_bytes(),
            message_bytes=executor.mailbox.message_bytes,
            bucket_bytes=max(bucket_bytes) if held.connections.replicas else 0,
            weight_bytes=sum(w.nbytes for runner in trained for w in runner.weights.newest),
            peak_weight_bytes=sum(runner.peak_weight_bytes for runner in trained),
            # On stages of one worker the same updates: those of a schedule that flushes.
            skipped_updates=max(runner.skipped_updates for runner in trained) if trains else 0,
        )

    def _minibatches(self, command: Run) -> MinibatchSource:
        """Return what this run works on."""
        device = self._accelerator.device
        if command.stream is None:
            read = replace(self._samples, order=command.order, microbatches=command.microbatches)
            return read.on(device)
        if not any(runner.program.reads_data for runner in self._held.runners):
            self._channel.send(NOTHING_READ)
        return StreamedMinibatches(
            command.stream, self._folder, command.microbatches, device, self._channel.send
        )

    def _progress_of(
        self, runner: Runner, on_progress: Callable[[int], None]
    ) -> Callable[[int], None]:
        """Return what is called during a run: from time to time it reports to the controller."""
        reports = runner.program.loss is not None and self._leads
        last = time.monotonic()

        def report(through: int) -> None:
            nonlocal last
            on_progress(through)
            runner.minibatches.passed(through)
            if reports and time.monotonic() - last > _PROGRESS_INTERVAL_SECONDS:
                last = time.monotonic()
                if losses := runner.losses.new():
                    self._channel.send(Progress(through, losses))

        return report

    def _time_link(self, command: TimeLink) -> dict[int, float] | None:
        if command.group is None:
            return exchange(self._held.connections.links, self._worker, command)
        with closing(self._connect(command.group)) as connections:
            return exchange(connections.links, self._worker, command)

    def _collect(self, command: Collect) -> None:
        """Write weights and the optimizer's state into a file or a storage."""
        held: dict[str, Any] = {"model": {}, "optimizer": {}}
        for runner in self._held.runners:
            model, optimizer = runner.saved()
            held["model"] |= model
            held["optimizer"] |= optimizer
        file = held_file(self._worker)
        path, held = self._folder / file, to_device(held, CPU)
        if not command.storage:
            write_tree(path, held)
            return
        # Most trainings keep their checkpoints in files, and begin sooner without it.
        from drlpp.runtime.ipc.shared_storage import storage_at

        check_finite(held["model"], self._state)
        try:
            write_tree(path, held)
            storage_at(command.storage).put(path, f"{command.folder}/{file}")
        finally:
            path.unlink(missing_ok=True)
