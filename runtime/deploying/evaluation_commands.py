"""Evaluating the deployed weights: the commands for the workers, and the results."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.runtime.deploying.deployment import Deployment
from drlpp.runtime.deploying.stage_cutting import stages_in_shapes
from drlpp.runtime.ipc.protocol import Run, RunResult, Stream
from drlpp.runtime.stage.generated_sources import discarded_fx_sources
from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.kinds.forward_only import FORWARD_ONLY
from drlpp.schedule.schedule import build_schedule


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
    deployment: Deployment,
    minibatches: int,
    order: Tensor | None,
    stream: Stream | None,
) -> dict[int, Run]:
    """Return the command for every worker.

    Args:
        captured: the model, for whole minibatches.
        deployment: whose weights are evaluated.
        minibatches: how many.
        order: which samples make which minibatch.
        stream: where minibatches come from instead.
    """
    schedule = build_schedule(deployment.pipeline, minibatches, FORWARD_ONLY.name)
    stages = stages_in_shapes(captured, deployment.placement, evaluation=True)
    pipeline = deployment.pipeline
    in_flight = deployment.plan.in_flight
    commands: dict[int, Run] = {}
    for stage, workers in enumerate(pipeline.stages):
        held = pipeline.stages_of(workers[0])
        if stage != held[0]:
            continue
        evaluation = pickle.dumps([stages[k] for k in held])
        for worker in workers:
            commands[worker] = Run(
                actions=schedule.actions[worker],
                plans=(),
                order=order,
                first_minibatch=0,
                microbatches=1,
                posted=in_flight[stage] + 2,
                stream=stream,
                evaluation=evaluation,
            )
    return commands
