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
from drlpp.runtime.stage.stages import Argument, ModelInput, StageOutput, StageProgram
from drlpp.schedule.actions import Backward, Forward
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
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


def schedule_csv(stages: int, method: Method) -> str:
    """Return the schedule of a step: a row for each stage of a chain, without messages, updates.

    Args:
        stages: one worker each.
        method: flushes, and makes backwards in one piece.
    """
    schedule = method.schedule_for(Pipeline.straight(*[1] * stages), method.accumulate)

    def cell(stage: int, action: Forward | Backward) -> str:
        part = action.minibatch * method.microbatches + action.microbatch
        return f"{stage}{'F' if isinstance(action, Forward) else 'B'}{part}"

    rows = (
        [cell(stage, action) for action in actions if isinstance(action, Forward | Backward)]
        for stage, actions in sorted(schedule.actions.items())
    )
    return "".join(f"{','.join(row)}\n" for row in rows)
