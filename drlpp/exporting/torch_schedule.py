"""A schedule as the CSV of torch.distributed.pipelining: a row for every rank.

A cell is an action of a stage on a part of the step, ``1F3``; ``1I3`` and ``1W3`` are halves of a
backward. A step is an update; torch adds the messages by its own lowering: in the order of drlpp's
workers, which send without waiting, ranks would wait for each other for ever where a send ends when
its receive begins (NCCL).
"""

from __future__ import annotations

from drlpp.errors import InvalidInput
from drlpp.schedule.actions import (
    Action,
    AllReduce,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Receive,
    Recompute,
    Send,
    Update,
)
from drlpp.schedule.kinds.registry import names_to_suggest
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule

Rows = list[list[str]]


def chain_schedule(stages: int, method: Method, minibatches: int) -> Schedule:
    """Return the schedule of a chain of ``stages`` stages, one worker each.

    Raises:
        InvalidInput: the schedule has several stages on each.
    """
    kind = method.schedule_kind
    if kind.stages_held > 1:
        able = names_to_suggest(lambda other: other.flushes and other.stages_held == 1)
        raise InvalidInput(
            f"schedule {kind.name} has {kind.stages_held} stages on every accelerator, and a rank "
            f"of an export has one; plan with {able} (--method-option schedule=…)"
        )
    return method.schedule_for(Pipeline.straight(*[1] * stages), minibatches)


def computations(schedule: Schedule) -> Rows:
    """Return the cells of every stage of a chain of single workers, without messages, updates.

    Raises:
        InvalidInput: the schedule has an action that no cell expresses.
    """
    return [
        [
            cell
            for action in schedule.actions[worker]
            if (cell := _cell(action, stage, schedule.microbatches))
        ]
        for stage, (worker,) in enumerate(schedule.pipeline.stages)
    ]


def _cell(action: Action, stage: int, microbatches: int) -> str | None:
    match action:
        case Forward(minibatch, microbatch):
            return f"{stage}F{minibatch * microbatches + microbatch}"
        case Backward(minibatch, microbatch):
            return f"{stage}B{minibatch * microbatches + microbatch}"
        case BackwardInput(minibatch, microbatch):
            return f"{stage}I{minibatch * microbatches + microbatch}"
        case BackwardWeight(minibatch, microbatch):
            return f"{stage}W{minibatch * microbatches + microbatch}"
        case Send() | Receive() | AllReduce() | Recompute() | Update():
            return None
    raise InvalidInput(
        f"the schedule has the action {type(action).__name__}, which an export for torch cannot "
        "express yet; choose another schedule (--method-option schedule=…)"
    )


def csv_text(rows: Rows) -> str:
    """Return the content of a file."""
    return "".join(f"{','.join(row)}\n" for row in rows)
