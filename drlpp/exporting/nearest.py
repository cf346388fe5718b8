"""The nearest candidate that a format can express, and in words what it cannot.

All formats have a chain of single workers, and empty the pipeline before every update.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from drlpp.capturing.graph import OpGraph
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.schedule.kinds.alternating import FLUSHED_1F1B
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.weight_policies import SYNC

_KNOWN_OPTIONS = {
    "schedule",
    "policy",
    "microbatches",
    "accumulate",
    "in_flight_per_link",
    "recompute",
    "precision",
    "loss_scale",
    "clip_norm",
    "annealing_minibatches",
    "correction_decay",
}


@dataclass(frozen=True)
class Nearest:
    """What is exported.

    Attributes:
        candidate: that the format expresses.
        notes: a sentence for everything of the original that it does not.
    """

    candidate: Candidate
    notes: tuple[str, ...]


def nearest_chain(plan: ExecutionPlan, *, trains_itself: bool = False) -> Nearest:
    """Return the same stages in a chain, one worker each, in 32 bits and without recomputation.

    Args:
        plan: of the placement.
        trains_itself: whether the format is of a program with schedules and passes of its own.

    Raises:
        InvalidInput: the method has an option that no export knows.
    """
    _check_options(plan.method)
    placement, method = plan.placement, plan.method
    notes: list[str] = []
    for index, stage in enumerate(placement.stages):
        if len(stage.accelerators) > 1:
            notes.append(
                f"stage {index} has {len(stage.accelerators)} replicas; a stage of the export has "
                f"one worker, here accelerator {stage.accelerators[0]}"
            )
    single = Placement(
        stages=tuple(
            stage.model_copy(update={"accelerators": stage.accelerators[:1]})
            for stage in placement.stages
        )
    )
    if method.recompute:
        instead = "activations are kept from the forward to the backward instead"
        notes.append(f"recompute: {'is to be set there' if trains_itself else instead}")
        method = method.model_copy(update={"recompute": False})
    if method.precision != "float32":
        instead = (
            "is to be set there" if trains_itself else "passes run in the types of the weights"
        )
        notes.append(f"precision {method.precision}: {instead}")
        method = method.model_copy(update={"precision": "float32", "loss_scale": None})
    assert plan.graph is not None
    pipeline = single.pipeline(plan.graph)
    if trains_itself:
        notes += _ties(single, plan.graph)
    notes += [f"{one}; in the export they follow each other" for one in _branches(pipeline)]
    notes += _relays(pipeline)
    return Nearest(Candidate(single, method), tuple(notes))


def flushing(nearest: Nearest, batch_size: int, *, only_1f1b: bool) -> Nearest:
    """Return the same with a schedule that flushes and makes backwards in one piece.

    In place of an asynchronous one, with as many microbatches as divide a minibatch, up to two for
    each stage.

    Args:
        nearest: a chain of single workers.
        batch_size: samples of a minibatch.
        only_1f1b: whether the format has no other order than flushed 1F1B.
    """
    candidate = nearest.candidate
    method = candidate.method
    if method.flushes:
        halves = method.schedule_kind.splits_backward
        if method.schedule == FLUSHED_1F1B.name or not (only_1f1b or halves):
            return nearest
        chosen = method.model_copy(update={"schedule": FLUSHED_1F1B.name})
        why = "backwards are made in one piece" if halves else "the order is 1F1B"
        note = f"schedule {method.schedule}: {why} there"
    else:
        most = 2 * len(candidate.placement.stages)
        parts = max(count for count in range(1, most + 1) if batch_size % count == 0)
        chosen = Method(
            schedule=FLUSHED_1F1B.name,
            policy=SYNC.name,
            microbatches=parts,
            accumulate=method.accumulate,
            clip_norm=method.clip_norm,
        )
        note = (
            f"{method}: the pipeline is emptied before every update there, with microbatches: "
            f"{parts}"
        )
    return Nearest(replace(candidate, method=chosen), (*nearest.notes, note))


def _ties(placement: Placement, graph: OpGraph) -> Iterator[str]:
    """Yield a sentence for the parameters that several stages share."""
    for stages, shared in placement.ties(graph).items():
        names = f"{' and '.join(map(str, stages))} share {', '.join(one.name for one in shared)}"
        yield f"stages {names}; the program there has to keep the copies the same"


def ranks(nearest: Nearest, hosts: tuple[str, ...]) -> str | None:
    """Return a sentence that says which accelerator is which rank; None if they are in order.

    Args:
        nearest: what is exported.
        hosts: the name of every accelerator's host.
    """
    order = [stage.accelerators[0] for stage in nearest.candidate.placement.stages]
    if order == list(range(len(order))) and len(set(hosts)) == 1:
        return None
    places = ", ".join(f"rank {k} on accelerator {a} of {hosts[a]}" for k, a in enumerate(order))
    return f"start ranks in the order of the stages: {places}"


def _check_options(method: Method) -> None:
    for name, field in Method.model_fields.items():
        if name not in _KNOWN_OPTIONS and getattr(method, name) != field.default:
            raise InvalidInput(
                f"the method has {name}={getattr(method, name)}, which no export can express yet; "
                f"leave it out (--method-option {name}={field.default})"
            )


def _branches(pipeline: Pipeline) -> list[str]:
    """Return a sentence for every pair of neighbours that do not read from each other."""
    return [
        f"stages {stage - 1} and {stage} compute side by side"
        for stage in range(1, len(pipeline.stages))
        if not any(edge.source == stage - 1 for edge in pipeline.incoming(stage))
    ]


def _relays(pipeline: Pipeline) -> Iterator[str]:
    for edge in pipeline.edges:
        if edge.target > edge.source + 1:
            between = [str(stage) for stage in range(edge.source + 1, edge.target)]
            yield (
                f"stage {edge.source} sends to stage {edge.target}; in the export that passes "
                f"through {'stages' if len(between) > 1 else 'stage'} {', '.join(between)}"
            )
