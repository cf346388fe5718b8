"""Stages as links of a chain, and their schedule as torch.distributed.pipelining reads it.

Messages pass between neighbours only: what a stage sends to a later one than the next travels
through those in between. Stage 0 of this placement is read by stages 1 and 2, so stage 1 hands
``a`` on::

    0 ──a──▶ 1 ──b──▶ 2        0 ──a──▶ 1 ──a,b──▶ 2
    └────────a───────▲

The schedule is a CSV with a row for every rank. A cell is an action of a stage on a part of the
step, ``1F3``. A step is an update; torch adds the messages by its own lowering: in the order of
drlpp's workers, which send without waiting, ranks would wait for each other for ever where a send
ends when its receive begins (NCCL).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from drlpp.capturing.capture import CapturedModel
from drlpp.capturing.graph import TensorSpec
from drlpp.errors import InvalidInput
from drlpp.runtime.stage.stages import Argument, ModelInput, StageOutput, StageProgram
from drlpp.schedule.actions import (
    Action,
    AllReduce,
    Backward,
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
from drlpp.specs.batches import tensors_in


@dataclass(frozen=True)
class Link:
    """One stage of a chain.

    Attributes:
        program: what it computes.
        arrives: what the stage before hands it, in order.
        leaves: what it hands to the next, in order; of the last stage what the model returns.
        arriving, leaving: their shapes and types for one microbatch.
    """

    program: StageProgram
    arrives: tuple[StageOutput, ...]
    leaves: tuple[Argument, ...]
    arriving: tuple[TensorSpec, ...]
    leaving: tuple[TensorSpec, ...]


def chained(programs: Sequence[StageProgram], captured: CapturedModel) -> tuple[Link, ...]:
    """Return the stages as a chain.

    Args:
        programs: all stages, in order.
        captured: the model, for one microbatch.
    """
    specs = _specs(programs)
    inputs = [TensorSpec.of(value) for value in tensors_in(captured.task.inputs)]
    last = len(programs) - 1
    read_last: dict[StageOutput, int] = {}
    for program in programs:
        for value in (*program.arguments, *program.results):
            if isinstance(value, StageOutput):
                read_last[value] = max(program.stage, read_last.get(value, 0))
    borders = [
        sorted(
            (v for v, reader in read_last.items() if v.stage <= k < reader),
            key=lambda v: (v.stage, v.index),
        )
        for k in range(last)
    ]
    links = []
    for k, program in enumerate(programs):
        arrives = tuple(borders[k - 1]) if k else ()
        leaves: tuple[Argument, ...] = tuple(borders[k]) if k < last else program.results
        leaving = [
            inputs[value.index] if isinstance(value, ModelInput) else specs[value]
            for value in leaves
        ]
        links.append(
            Link(program, arrives, leaves, tuple(specs[v] for v in arrives), tuple(leaving))
        )
    return tuple(links)


def _specs(programs: Sequence[StageProgram]) -> dict[Argument, TensorSpec]:
    """Return shape and type of every output of every stage."""
    found: dict[Argument, TensorSpec] = {}
    for program in programs:
        outputs = program.function.graph.output_node().args[0]
        assert isinstance(outputs, tuple)
        for index, node in enumerate(outputs):
            assert isinstance(node, fx.Node)
            found[StageOutput(program.stage, index)] = TensorSpec.of(node.meta["val"])
    return found


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
        case Send() | Receive() | AllReduce() | Recompute() | Update():
            return None
    raise InvalidInput(
        f"the schedule has the action {type(action).__name__}, which an export for torch cannot "
        "express yet; choose another schedule (--method-option schedule=…)"
    )


def csv_text(rows: Rows) -> str:
    """Return the content of a file."""
    return "".join(f"{','.join(row)}\n" for row in rows)
