"""What every worker is given: its stage and weight policy, what a run does, what it evaluates."""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.ipc.protocol import (
    Deploy,
    GroupSpec,
    Run,
    RunPlan,
    RunResult,
    Stream,
    WeightPlan,
)
from drlpp.runtime.stage.graph_code import discarded_fx_sources
from drlpp.runtime.stage.stages import StageProgram
from drlpp.runtime.stage.weight_group import OWN
from drlpp.schedule.actions import Action, AllReduce, MicrobatchId, Recompute
from drlpp.schedule.analysis.messages_ahead import ahead_of
from drlpp.schedule.analysis.weight_versions import update_rates
from drlpp.schedule.kinds.forward_only import FORWARD_ONLY
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule
from drlpp.schedule.ties import Tie, is_update
from drlpp.specs.data import Samples
from drlpp.specs.optimizer_spec import OptimizerSpec, settled


@dataclass(frozen=True)
class Deployment:
    """A candidate that the workers hold, ready to run.

    ``seconds`` is how long deploying took; ``uncompiled`` says which stages are not compiled though
    the method asks for it, and why.
    """

    plan: ExecutionPlan
    optimizer: OptimizerSpec
    seconds: float
    uncompiled: Mapping[int, str]

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first worker of every stage, none twice."""
        return tuple(sorted({workers[0] for workers in self.plan.pipeline.stages}))


@discarded_fx_sources()
def deployment_commands(
    captured: CapturedModel,
    plan: ExecutionPlan,
    optimizer: OptimizerSpec,
    group: GroupSpec,
    *,
    seed: int,
    checkpoint: str | None,
) -> dict[int, Deploy]:
    """Return the command for every worker of ``plan``; see :class:`Deploy` for the arguments.

    The model is captured for one microbatch of the method.

    Raises:
        InvalidInput: if a group of parameters matches none.
    """
    pipeline = plan.pipeline
    optimizer = settled(optimizer, captured.trained, captured.aliases)
    stages = cut_stages(captured, plan.placement)
    pickled = _pickled(stages, pipeline)
    return {
        worker: Deploy(
            group=replace(group, replicas=pipeline.stages[held[0]]),
            stages=pickled[held],
            method=plan.method,
            optimizer=optimizer,
            delays=tuple(_delays_of(k, plan) for k in held),
            seed=seed,
            checkpoint_file=checkpoint,
        )
        for worker, held in pipeline.stages_by_worker.items()
    }


def _pickled(stages: Sequence[StageProgram], pipeline: Pipeline) -> dict[tuple[int, ...], bytes]:
    """Return what is held together by any worker, once for all replicas."""
    together = dict.fromkeys(pipeline.stages_by_worker.values())
    return {held: pickle.dumps([stages[k] for k in held]) for held in together}


def _delays_of(stage: int, plan: ExecutionPlan) -> dict[int, int]:
    """Return s of the weights that a stage alone holds, and of its copies of others, by tie."""
    tied = zip(plan.ties, plan.tied_delays, strict=True)
    return {OWN: plan.delays[stage]} | {t.number: delay for t, delay in tied if stage in t.stages}


def merge_stages(
    stages: Iterable[Mapping[str, Any]],
    initial: Mapping[str, Tensor],
    names: Iterable[str],
    aliases: Mapping[str, str],
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Merge what the workers of all stages hold into the whole model's state.

    Args:
        stages: what they hold.
        initial: weights and buffers, of which no stage may have some.
        names: of all, as in the model's ``state_dict``.
        aliases: further names of shared parameters.

    Returns:
        Weights and buffers by name, and the optimizer's state by parameter.
    """
    model, optimizer = dict(initial), dict[str, Any]()
    for stage in stages:
        model |= stage["model"]
        optimizer |= stage["optimizer"]
    model |= {alias: model[name] for alias, name in aliases.items()}
    # A stage also holds constants, which no state_dict of the model has.
    return {name: model[name] for name in names}, optimizer


@dataclass(frozen=True)
class RunOptions:
    """How a schedule is run, in addition to what it says itself.

    Attributes:
        order: indices of the samples of every minibatch, (minibatches, batch size); None to
            repeat all samples.
        loaded: gives the minibatches one by one instead.
        rates: the learning rate of every minibatch, and as many behind the last as are known;
            None for the optimizer's own.
        first_minibatch: how many minibatches this training had before; dropout continues there.
        asynchronous_before: how many of them ran asynchronously.
        synchronous: flush before every update whatever the method (PipeMare's warm-up, W).
        finite: stop at a loss that is infinite or not a number. A measurement continues: it is
            about time, and the weights may run away when a minibatch is repeated.
    """

    order: Tensor | None = None
    loaded: Generator[Samples] | None = None
    rates: Sequence[float] | None = None
    first_minibatch: int = 0
    asynchronous_before: int = 0
    synchronous: bool = False
    finite: bool = False


def run_commands(
    plan: ExecutionPlan,
    minibatches: int,
    rate: float,
    options: RunOptions,
    stream: Stream | None = None,
) -> dict[int, Run]:
    """Return the command of every worker for a training run.

    Args:
        plan: whose schedule is run.
        minibatches: of the run.
        rate: the optimizer's own learning rate.
        options: how it is run.
        stream: where minibatches come from, if not from samples in memory.

    Raises:
        InvalidInput: if the schedule does not suit the method.
    """
    schedule = plan.schedule(minibatches)
    # Without a schedule of learning rates, and without T1, the list would be a number many times.
    known = options.rates or [rate]

    def weight_plan(worker: int, tie: Tie | None) -> WeightPlan:
        return WeightPlan(
            uses=plan.weight_uses(minibatches, tie)[worker],
            rates=update_rates(
                schedule,
                worker,
                plan.method,
                known,
                asynchronous_before=options.asynchronous_before,
                tie=tie,
            ),
            shared=_several_contribute(schedule.actions[worker], tie),
            root=tie.root if tie else None,
            others=tie.others if tie else (),
        )

    def run_plan(worker: int, chunk: int, stage: int) -> RunPlan:
        ties = (tie for tie in plan.ties if stage in tie.stages)
        return RunPlan(
            weights={OWN: weight_plan(worker, None)}
            | {tie.number: weight_plan(worker, tie) for tie in ties},
            recomputed=frozenset(
                action.part
                for action in schedule.actions[worker]
                if isinstance(action, Recompute) and action.chunk == chunk
            ),
            finite=options.finite,
        )

    return {
        worker: Run(
            actions=actions,
            plans=tuple(
                run_plan(worker, chunk, stage)
                for chunk, stage in enumerate(schedule.pipeline.stages_of(worker))
            ),
            order=options.order,
            first_minibatch=options.first_minibatch,
            microbatches=schedule.microbatches,
            ahead=ahead_of(plan.pipeline, plan.in_flight, plan.ties, worker),
            stream=stream,
        )
        for worker, actions in schedule.actions.items()
    }


def _several_contribute(actions: Sequence[Action], tie: Tie | None) -> bool:
    """Return whether an update has several contributions, or any is summed over replicas."""
    return any(
        (is_update(action, tie) and action.contributions > 1)
        or (isinstance(action, AllReduce) and action.content == "gradients")
        for action in actions
    )


@dataclass(frozen=True)
class Evaluation:
    """The loss of every minibatch, and where the task has a score, that of each of its samples."""

    losses: tuple[float, ...]
    scores: tuple[Tensor, ...] | None

    @classmethod
    def of(cls, results: Iterable[RunResult], minibatches: int) -> Evaluation:
        """Build the evaluation from what all workers saw."""
        losses: dict[MicrobatchId, float] = {}
        scores: dict[MicrobatchId, Tensor] = {}
        for result in results:
            losses |= result.losses
            scores |= result.scores
        parts = [(minibatch, 0) for minibatch in range(minibatches)]
        return cls(
            losses=tuple(losses[part] for part in parts),
            scores=tuple(scores[part] for part in parts) if scores else None,
        )


@discarded_fx_sources()
def evaluation_commands(
    captured: CapturedModel,
    plan: ExecutionPlan,
    minibatches: int,
    order: Tensor | None,
    stream: Stream | None,
) -> dict[int, Run]:
    """Return the commands that evaluate the deployed weights on whole minibatches."""
    schedule = build_schedule(plan.pipeline, minibatches, FORWARD_ONLY.name)
    stages = cut_stages(captured, plan.placement, evaluation=True)
    pickled = _pickled(stages, plan.pipeline)
    return {
        worker: Run(
            actions=schedule.actions[worker],
            plans=(),
            order=order,
            first_minibatch=0,
            microbatches=1,
            ahead=ahead_of(plan.pipeline, plan.in_flight, (), worker),
            stream=stream,
            evaluation=pickled[held],
        )
        for worker, held in plan.pipeline.stages_by_worker.items()
    }
