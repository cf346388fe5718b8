"""The nearest candidate that a format can express, and in words what it cannot.

All formats have a chain of single workers, and empty the pipeline before every update.
"""

from __future__ import annotations

from dataclasses import dataclass

from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.schedule.kinds.alternating import FLUSHED_1F1B
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SYNC


@dataclass(frozen=True)
class Unit:
    """Modules that stay together, and the operators that they own."""

    modules: tuple[str, ...]
    operators: tuple[int, ...]


@dataclass(frozen=True)
class Nearest:
    """What is exported.

    Attributes:
        candidate: that the format expresses.
        notes: a sentence for everything of the original that it does not.
        units: of every stage, in formats that divide a model's modules.
    """

    candidate: Candidate
    notes: tuple[str, ...]
    units: tuple[tuple[Unit, ...], ...] = ()


def nearest_chain(
    plan: ExecutionPlan, batch_size: int, *, trains_itself: bool = False, only_1f1b: bool = False
) -> Nearest:
    """Return the same stages in a chain, one worker each, with a schedule that flushes.

    In 32 bits, without recomputation, with backwards in one piece. In place of an asynchronous
    schedule there are as many microbatches as divide a minibatch, up to two for each stage.

    Args:
        plan: of the placement.
        batch_size: samples of a minibatch.
        trains_itself: whether the format is of a program with passes of its own.
        only_1f1b: whether the format has no other order than flushed 1F1B.

    Raises:
        InvalidInput: accelerators hold two stages each.
    """
    placement, method = plan.placement, plan.method
    if method.schedule_kind.stages_held > 1:
        raise InvalidInput(
            f"schedule {method.schedule} has two stages on every accelerator, and a rank of an "
            f"export has one; plan for {FLUSHED_1F1B.name} (--method-option schedule=…)"
        )
    notes = [
        f"stage {index} has {len(held)} replicas; a stage of the export has one worker, here "
        f"accelerator {held[0]}"
        for index, held in enumerate(placement.holders)
        if len(held) > 1
    ]
    single = Placement.of(
        (stage.operators for stage in placement.stages), (held[:1] for held in placement.holders)
    )
    apart = {
        "recompute": method.recompute,
        f"precision {method.precision}": method.precision != "float32",
        "compiled stages": method.compiled,
    }
    notes += [f"{what}: to be set there" for what, there in apart.items() if there]
    method = method.model_copy(
        update={"recompute": False, "precision": "float32", "loss_scale": None, "compiled": False}
    )
    assert plan.graph is not None
    if trains_itself:
        for stages, shared in single.ties(plan.graph).items():
            names = ", ".join(one.name for one in shared)
            notes.append(
                f"stages {' and '.join(map(str, stages))} share {names}; the program there has to "
                "keep the copies the same"
            )
    pipeline = single.pipeline(plan.graph)
    notes += [
        f"stages {stage - 1} and {stage} compute side by side; in the export they follow each other"
        for stage in range(1, len(pipeline.stages))
        if not any(edge.source == stage - 1 for edge in pipeline.incoming(stage))
    ]
    if not method.flushes:
        most = 2 * len(single.stages)
        parts = max(count for count in range(1, most + 1) if batch_size % count == 0)
        notes.append(
            f"{method}: the pipeline is emptied before every update there, with microbatches: "
            f"{parts}"
        )
        method = Method(
            schedule=FLUSHED_1F1B.name,
            policy=SYNC.name,
            microbatches=parts,
            accumulate=method.accumulate,
            clip_norm=method.clip_norm,
        )
    halves = method.schedule_kind.splits_backward
    if method.schedule != FLUSHED_1F1B.name and (only_1f1b or halves):
        why = "backwards are made in one piece" if halves else "the order is 1F1B"
        notes.append(f"schedule {method.schedule}: {why} there")
        method = method.model_copy(update={"schedule": FLUSHED_1F1B.name})
    return Nearest(Candidate(single, method), tuple(notes))


def ranks(nearest: Nearest, hosts: tuple[str, ...]) -> str | None:
    """Return a sentence that says which accelerator is which rank; None if they are in order.

    Args:
        nearest: what is exported.
        hosts: the name of every accelerator's host.
    """
    order = [held[0] for held in nearest.candidate.placement.holders]
    if order == list(range(len(order))) and len(set(hosts)) == 1:
        return None
    places = ", ".join(f"rank {k} on accelerator {a} of {hosts[a]}" for k, a in enumerate(order))
    return f"start ranks in the order of the stages: {places}"
