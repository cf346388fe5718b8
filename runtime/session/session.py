"""A cluster session: workers that stay alive and run placement after placement."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import methodcaller
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.profile import Profile
from drlpp.costs.ways_of_training import LOCAL_STEPS, WAYS
from drlpp.errors import InvalidInput, ModelNote, WorkerLost
from drlpp.models.model_reference import Model
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Outcome
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.deployment import (
    Deployment,
    Evaluation,
    RunOptions,
    deployment_commands,
    evaluation_commands,
    merge_stages,
    run_commands,
)
from drlpp.runtime.device.devices import choice_for, known_choice
from drlpp.runtime.device.emulation import checked_links, checked_speeds
from drlpp.runtime.hosts.session_hosts import (
    check_workers,
    default_num_workers,
    hosts_for,
    memory_of,
)
from drlpp.runtime.ipc.protocol import (
    Collect,
    ParallelStint,
    ParallelTraining,
    ParallelWay,
    ParallelWork,
    Progress,
    Release,
    RunResult,
    held_file,
)
from drlpp.runtime.ipc.tensor_file import read_checkpoint
from drlpp.runtime.ipc.time_limits import TimeLimits, time_limits_of
from drlpp.runtime.session.measuring import (
    measure_once,
    measured_parallel,
    train_in_parallel,
    tried,
)
from drlpp.runtime.session.minibatch_streamer import feeding
from drlpp.runtime.session.profiling import profiled
from drlpp.runtime.session.worker_group import WorkerGroup
from drlpp.schedule.analysis.window import Window
from drlpp.schedule.method import Method
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import TimedAction
from drlpp.specs.cluster import Cluster, DeviceChoice
from drlpp.specs.optimizer_spec import OptimizerSpec, settled

Placed = Placement | Candidate | ExecutionPlan


class ClusterSession(WorkerGroup):
    """Worker processes that hold one model and take placement after placement.

    Use it as a context manager, or call :meth:`close`::

        with ClusterSession("alexnet", workers=4) as session:
            outcome = session.measure(placement)

    A trial that runs out of memory, raises, hangs or loses a worker ends as a failed measurement
    with its reason; the workers are replaced and the next trial runs. One that loses a worker is
    measured once more before it counts as failed.

    Args:
        model: a :class:`~drlpp.Task`, a factory that returns one, a reference to such a factory or
            its name (of the zoo's, the small size), or a captured model.
        workers: how many processes; each is one accelerator, with one thread. By default 4, or all
            accelerators of the Ray cluster or the hosts that are named.
        method: schedule and weight policy of measurements that name none.
        optimizer: updates the weights.
        seed: of the model's weights and of dropout.
        timeout_seconds: without a word from any worker, after which a trial counts as hung; by
            default 120 s for the first trial, later 20 times the longest silence so far, and at
            least 20 s.
        time_limits: all limits of waiting, of which ``timeout_seconds`` is one.
        speeds: of every worker, at most 1, to emulate accelerators: a worker of speed 0.5 takes
            twice the processor time that a pass needs, and sleeps the rest of it. So several
            workers can share a core and still take their time in parallel. 1 each by default.
        links: a cluster of as many accelerators, whose links are emulated: messages and sums take
            as long as on these, and a stage that needs more memory than an accelerator of it has
            fails. With ``speeds`` of its proportions it emulates that cluster.
        device: what workers compute on: ``cpu``; ``cuda``, ``xpu`` or ``mps`` for the host's GPUs
            in turns; or ``auto`` for GPUs where there are any, unless workers are to be slower.
        cluster: a Ray cluster whose hosts the workers run on, instead of this machine: ``auto`` for
            the one that this machine belongs to, or ``HOST:PORT`` of its head. Its accelerators
            belong to the session until it is closed.
        hosts: of the cluster that are wanted, as ``cluster.yaml`` describes them; by default those
            that it has, the controller's first, as long as there are workers left for them.
        least: of the workers to begin with, if hosts are missing, or others use them: those are as
            if given up, until :meth:`take_back` finds them. By default all have to be there.
        note: called with a line if a measurement loses a worker and is made once more, or a stage
            cannot be compiled; warns by default.

    Attributes, besides those of ``WorkerGroup``:
        captured, graph: the model, and its operator graph.
        speeds, links, note: as in the arguments.
        accelerators: how many workers there are.
        ray_address: of the Ray cluster that the workers run on, if they do.
        timeline, window: of the last measurement.
    """

    def __init__(
        self,
        model: CapturedModel | Model,
        workers: int | None = None,
        *,
        method: Method | None = None,
        optimizer: OptimizerSpec | None = None,
        seed: int = 0,
        timeout_seconds: float | None = None,
        time_limits: TimeLimits | None = None,
        speeds: Sequence[float] | None = None,
        links: Cluster | None = None,
        device: str = DeviceChoice.AUTO,
        cluster: str | None = None,
        hosts: Cluster | None = None,
        least: int | None = None,
        note: Callable[[str], None] = lambda note: warnings.warn(note, ModelNote, 3),
    ) -> None:
        if workers is None:
            gpus = known_choice(device) is not DeviceChoice.CPU and speeds is None
            workers = default_num_workers(cluster=cluster, hosts=hosts, gpus=gpus)
        check_workers(workers, cluster, hosts, least)
        emulated = checked_speeds(speeds, workers)
        links = checked_links(links, workers, cluster)
        chosen = choice_for(device, emulated)
        captured = model if isinstance(model, CapturedModel) else capture(model, seed=seed)
        self.graph = captured.graph
        self.accelerators = workers
        self.method = method or Method()
        self.optimizer = optimizer or OptimizerSpec()
        # Patterns that match no parameter are found before any worker starts.
        settled(self.optimizer, captured.trained, captured.aliases)
        self.timeline: tuple[TimedAction, ...] = ()
        self.window: Window | None = None
        self.seed = seed
        self.note = note
        self._noted: set[str] = set()
        self._held: Deployment | None = None
        self.ray_address = cluster
        gpus = chosen is not DeviceChoice.CPU
        super().__init__(
            captured,
            emulated,
            device=chosen,
            time_limits=time_limits_of(time_limits, timeout_seconds),
            place=partial(hosts_for, cluster=cluster, hosts=hosts, least=least, gpus=gpus),
            links=links,
            memory_bytes=memory_of(links or hosts, workers),
        )

    def __deepcopy__(self, _memo: object) -> Self:
        """Return itself: Gymnasium copies an environment's arguments; workers cannot be copied."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def plan(self, placement: Placed, method: Method | None = None) -> ExecutionPlan:
        """Return the execution plan of a placement with a method, by default the session's.

        Raises:
            InvalidInput: it cannot be run with this model, workers and method.
        """
        if method is not None and not isinstance(placement, Placement):
            raise InvalidInput(
                f"method {method} was given for a candidate, which has one of its own; give either "
                "a placement with a method, or a candidate"
            )
        return ExecutionPlan.taken(placement, self.graph, self.accelerators, method or self.method)

    def deploy(
        self,
        placement: Placed,
        method: Method | None = None,
        optimizer: OptimizerSpec | None = None,
        checkpoint: Path | None = None,
    ) -> Deployment:
        """Give every worker its stage, with the model's initial weights or a checkpoint's.

        Raises:
            InvalidInput: the placement cannot be run with this model, workers and method.
            RunFailure: if the workers fail.
        """
        begin = time.perf_counter()
        optimizer = optimizer or self.optimizer
        optimizer.check()
        plan = self.plan(placement, method)
        self.check_present(plan.pipeline.workers, "the placement")
        pipeline = plan.pipeline
        self.prepare()
        lent = None
        if checkpoint:
            source = checkpoint.absolute()
            lent = self.publish(self.new_name("checkpoint"), lambda path: path.symlink_to(source))
        group = self.new_group("deployment", pipeline.workers, routes=pipeline.routes)
        commands = deployment_commands(
            self.captured.microbatch(plan.method.microbatches),
            plan,
            optimizer,
            group,
            seed=self.seed,
            checkpoint=lent,
        )
        self._held, idle = None, self.stages.keys() - commands.keys()
        self.stages = {worker: pipeline.stage_of(worker) for worker in pipeline.workers}
        answers = self.command({**commands, **dict.fromkeys(idle, Release())})
        if lent:
            # Workers have it mapped as long as they need it.
            self.remove_file(lent)
        seconds = time.perf_counter() - begin
        self.deploying_seconds += seconds
        uncompiled = {
            stage: why for reasons in answers.values() if reasons for stage, why in reasons.items()
        }
        for why in {*uncompiled.values()} - self._noted:
            self._noted.add(why)
            self.note(f"a stage is not compiled and runs as it is: {why}")
        self._held = Deployment(plan, optimizer, seconds, uncompiled)
        return self._held

    def run(
        self,
        deployment: Deployment,
        minibatches: int,
        options: RunOptions | None = None,
        *,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> tuple[Schedule, dict[int, RunResult]]:
        """Train on ``minibatches`` minibatches; the pipeline is empty before and after.

        Args:
            deployment: what :meth:`deploy` returned last.
            minibatches: how many.
            options: which samples, learning rates and so on.
            on_progress: called now and then with how far the last stage is.

        Returns:
            The schedule, and what every worker saw.

        Raises:
            RunFailure: if the workers fail.
            InvalidInput: another placement was deployed since; or what ``options.loaded`` raises.
        """
        self._check_held(deployment)
        options = options or RunOptions()
        plan = deployment.plan.synchronous if options.synchronous else deployment.plan
        with feeding(self, plan, options, minibatches) as (feed, stream):
            commands = run_commands(plan, minibatches, deployment.optimizer.rate, options, stream)
            results = self.execute(commands, on_progress=on_progress, feed=feed)
        return plan.schedule(minibatches), results

    def evaluate(self, deployment: Deployment, minibatches: int, options: RunOptions) -> Evaluation:
        """Return loss and score of minibatches by the deployed weights, in evaluation mode.

        Raises:
            RunFailure: if the workers fail.
        """
        self._check_held(deployment)
        plan, order = deployment.plan, options.order
        with feeding(self, plan, options, minibatches) as (feed, stream):
            commands = evaluation_commands(self.captured, plan, minibatches, order, stream)
            results = self.execute(commands, feed=feed)
        return Evaluation.of(results.values(), minibatches)

    def collect(self, deployment: Deployment) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the model's weights and buffers by name, and the optimizer's state by parameter.

        Buffers (running statistics) are those of a stage's first replica.
        """
        self._check_held(deployment)
        state, held = self.captured.state, self.stages_of(deployment.leaders).values()
        return merge_stages(held, state, state, self.captured.aliases)

    def stages_of(self, workers: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return what workers hold of their stages."""
        self.command(dict.fromkeys(workers, Collect()))
        return self._files_of(workers)

    def _files_of(self, workers: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return what workers have written, and remove it."""
        found = {}
        for file, worker in zip(map(held_file, workers), workers, strict=True):
            host = self.of_worker[worker]
            found[worker] = read_checkpoint(self.ask(host, methodcaller("fetch", file)))
            self.remove_file(file)
        return found

    def write_parts(self, deployment: Deployment, storage: str, folder: str) -> None:
        """Let the deployment's leaders store what :meth:`collect` returns, all at the same time.

        ``storage`` is reached by all hosts, as a folder's path or a URL; ``folder`` there is empty.

        Raises:
            RunFailure: if the workers fail.
            NotFinite: weights are not finite.
        """
        self._check_held(deployment)
        self.command(dict.fromkeys(deployment.leaders, Collect(storage, folder)))

    def _check_held(self, deployment: Deployment) -> None:
        """Check that the workers hold this deployment: it is the last, and none was replaced."""
        self.check_open()
        if deployment is not self._held:
            raise InvalidInput(
                "the workers do not hold this placement, "
                f"{deployment.plan.placement.configuration}, any more: another one was deployed or "
                "measured since; deploy this one again"
            )
        if not (self._runs and self.stages):
            raise WorkerLost(
                "a worker ended after the placement was deployed, and its stage with it"
            )

    # Measuring

    def measure(
        self,
        placement: Placed,
        minibatches: int = 30,
        method: Method | None = None,
    ) -> Outcome:
        """Deploy a placement and measure its seconds per minibatch in steady state.

        Where workers get further ahead of others while they are measured, the pipeline was not
        steady yet: it runs again, and is measured later, up to three times. What the last says
        counts, and how steady it was. Then, while nothing else is sent, messages are timed between
        all workers that exchange any.

        A worker may be killed for what the placement has nothing to do with, such as another
        program's want of memory: only a placement that loses a worker twice in a row has failed.

        Raises:
            InvalidInput: the placement cannot be run with this model, workers and method.
            HostLost: a host cannot be reached any more. :meth:`give_up` its workers (``workers`` of
                the error has their numbers) to measure on the others, until :meth:`take_back` finds
                that they have returned.
            CannotStart: likewise of a worker that ends twice as soon as it is started.
            StorageFailure: there is no room for the session's files.
        """
        if minibatches < 1:
            raise InvalidInput(f"minibatches is {minibatches}; at least 1 is needed")
        self.timeline = ()
        plan = self.plan(placement, method)
        what = f"its placement, {plan.placement.configuration},"
        return tried(self, what, lambda: measure_once(self, plan, minibatches))

    def measure_parallel(
        self,
        way: ParallelWay,
        workers: int,
        minibatches: int = 30,
        method: Method | None = None,
        every: int = LOCAL_STEPS[0],
    ) -> Outcome:
        """Measure torch's own data parallelism on the fastest workers, as :meth:`measure` does.

        Each of them computes an equal part of every minibatch. Of the method, precision, clipping
        and accumulation count; nothing is compiled.

        Args:
            way: of training (:mod:`drlpp.runtime.worker.parallel_loop`).
            workers: how many, whose number divides the minibatch.
            minibatches: of the window that is measured, or more, to make whole updates.
            method: by default the session's.
            every: so many updates local SGD and DiLoCo average the weights.

        Raises:
            InvalidInput: there are not so many workers, or they do not divide the minibatch.
            HostLost, CannotStart, StorageFailure: as of :meth:`measure`.
        """
        every = every if WAYS[way].local else 1
        training = ParallelTraining(way, method or self.method, self.optimizer, self.seed, every)
        return measured_parallel(self, training, self._fastest(workers), minibatches)

    def train_parallel(
        self, training: ParallelTraining, workers: int, work: ParallelWork
    ) -> ParallelStint:
        """Train by torch's own data parallelism on the fastest workers.

        Args:
            training: how.
            workers: how many, whose number divides the minibatch.
            work: what on, with the states of :class:`ParallelStint` before, or none.

        Raises:
            InvalidInput: there are not so many workers, or they do not divide the minibatch.
            RunFailure: if the workers fail.
        """
        ranks = self._fastest(workers)
        results = train_in_parallel(self, training, ranks, work)
        held = self._files_of(ranks)
        moments = [*chain(*chain(*(result.times for result in results.values())))]
        states = [held[rank]["state"] for rank in ranks]
        return ParallelStint(max(moments) - min(moments), states, held[ranks[0]]["model"])

    def _fastest(self, workers: int) -> list[int]:
        """Return the workers of data parallelism, among which a minibatch is divided."""
        if not 0 < workers <= len(self.present):
            raise InvalidInput(f"{workers} workers are wanted; there are {len(self.present)}")
        if (size := self.captured.task.batch_size) % workers:
            raise InvalidInput(f"a minibatch of {size} cannot be divided among {workers} workers")
        self.timeline, self._held = (), None
        return sorted(sorted(self.present, key=lambda worker: -self.speeds[worker])[:workers])

    def profile(self, repeats: int = 20) -> tuple[Profile, Cluster]:
        """Time every operator, and links within a host and between hosts.

        Of blocks that repeat, such as a decoder's layers, only a few are timed
        (:mod:`drlpp.capturing.blocks`).

        As many workers measure together as compute at the same time when they train. Then these run
        a few short pipelines, which tell what operators by themselves do not
        (:mod:`drlpp.costs.short_runs`).

        Of ``repeats`` timed passes there are fewer, but five, if they take more than a second.

        Raises:
            HostLost: a host cannot be reached any more; see :meth:`measure`.
            RunFailure: if the workers fail.
        """
        self.check_present(range(self.accelerators), "a profile")
        return profiled(self, repeats)
