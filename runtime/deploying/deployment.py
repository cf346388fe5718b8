"""What every worker is given: its stage and weight policy, or its stage to evaluate."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.ipc.protocol import Deploy, GroupSpec, Run, RunResult, Stream, Uncompiled
from drlpp.runtime.stage.graph_code import discarded_fx_sources
from drlpp.runtime.stage.stages import StageProgram
from drlpp.runtime.stage.weight_group import OWN
from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.kinds.forward_only import FORWARD_ONLY
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule
from drlpp.specs.optimizer_spec import OptimizerSpec, settled


@dataclass(frozen=True)
class Deployment:
    """A candidate that the workers hold, ready to run.

    ``generation`` says which workers; ``seconds`` how long deploying took; ``uncompiled`` which
    stages are not compiled though the method asks for it, and why.
    """

    plan: ExecutionPlan
    optimizer: OptimizerSpec
    generation: int
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
    in_flight: bool,
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
            in_flight=in_flight,
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


def uncompiled_stages(answers: Iterable[object]) -> dict[int, str]:
    """Return which stages are not compiled, and why, from the answers to :class:`Deploy`."""
    told = [answer.reasons for answer in answers if isinstance(answer, Uncompiled)]
    return {stage: why for reasons in told for stage, why in sorted(reasons.items())}


def merge_stages(
    captured: CapturedModel, stages: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Merge what the workers of all stages collected into the whole model's state.

    Returns:
        Weights and buffers by name, as in the model's ``state_dict``, and the optimizer's state by
        parameter.
    """
    model = dict(captured.state)
    optimizer: dict[str, Any] = {}
    for stage in stages:
        # A stage also holds constants, which no state_dict of the model has.
        model |= {n: value for n, value in stage["model"].items() if n in model}
        optimizer.update(stage["optimizer"])
    for alias, name in captured.aliases.items():
        model[alias] = model[name]
    return model, optimizer


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
            posted=plan.in_flight[held[0]] + 2,
            stream=stream,
            evaluation=pickled[held],
        )
        for worker, held in plan.pipeline.stages_by_worker.items()
    }
