"""What the stages of a placement do for a minibatch, all stages at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import or_

import numpy

from drlpp.buckets import BUCKET_BYTES
from drlpp.pipeline import Pipeline
from drlpp.placement import Placement
from drlpp.schedule import Payload
from drlpp.training_options import Method
from drlpp.workload import Array, StageWork, Workload

MessageKind = tuple[Payload, int, int]
"""(payload, source stage, target stage)."""


@dataclass(frozen=True)
class Bucket:
    """Gradients that replicas sum at once: their bytes, and when they are there.

    ``ready_seconds`` is since the backward pass began, which comes to the last operators first.
    """

    bytes_: float
    ready_seconds: float


@dataclass(frozen=True)
class DisplacedPasses:
    """Which stages move their weights for a pass, and back, to predict or to correct them."""

    forward: tuple[bool, ...]
    backward: tuple[bool, ...]

    @classmethod
    def of(cls, pipeline: Pipeline, method: Method) -> DisplacedPasses:
        """Those that look ahead or back in steady state (:func:`drlpp.versions.weight_uses`)."""
        stages = range(len(pipeline.stages))
        stale = tuple(pipeline.in_flight[stage] > 1 for stage in stages)
        none = (False,) * len(stale)
        match method.policy:
            case "pipeoptim":
                return cls(stale, none)
            case "spectrain" | "xpipe":
                again = tuple(pipeline.rank(stage) > 1 for stage in stages)
                return cls(tuple(map(or_, stale, again)), again)
            case "pipemare" if method.correction_decay:
                return cls(none, stale)
        return cls(none, none)


@dataclass(frozen=True)
class PlacedWork:
    """The work of every stage at speed 1; arrays have shape ``(stages,)``.

    Attributes:
        forward_seconds, backward_seconds, update_seconds: of the stages.
        memory: what their memory follows from, as ``Workload.stage`` gives it for one stage.
        message_bytes: of a minibatch, by payload and edge of the stage graph.
    """

    forward_seconds: Array
    backward_seconds: Array
    update_seconds: Array
    memory: StageWork
    message_bytes: dict[MessageKind, float]

    @classmethod
    def of(
        cls,
        workload: Workload,
        placement: Placement,
        displaced: DisplacedPasses | None = None,
    ) -> PlacedWork:
        """Add up operators and tensors, with what every pass costs besides.

        Args:
            workload: what has to be computed and sent.
            placement: of its operators.
            displaced: the passes that use other weights than the newest; none if left out.
        """
        stages = len(placement.stages)
        stage_of = placement.stage_of_operator(len(workload))

        def total(values: Array) -> Array:
            return numpy.bincount(stage_of, values, stages).astype(numpy.float64)

        incoming, outgoing = [0.0] * stages, [0.0] * stages
        message_bytes: dict[MessageKind, float] = {}
        # The loss is computed with the last stage.
        for transfer in workload.transfers:
            source, *readers = (
                stage_of[member] if member < len(workload) else stages - 1
                for member in transfer.members
            )
            targets = {target for target in readers if target != source}
            if not targets:
                continue
            forward, backward = transfer.forward_bytes, transfer.backward_bytes
            outgoing[source] += forward
            incoming[source] += backward
            for target in targets:
                incoming[target] += forward
                outgoing[target] += backward
                there: MessageKind = ("activation", source, target)
                back: MessageKind = ("gradient", target, source)
                # Tensors of a backward pass lead back; what is returned for them leads forward.
                if source > target:
                    there, back = ("gradient", source, target), ("activation", target, source)
                message_bytes[there] = message_bytes.get(there, 0.0) + forward
                message_bytes[back] = message_bytes.get(back, 0.0) + backward
        forward_seconds = total(workload.forward_seconds) + workload.forward_overhead_seconds
        backward_seconds = total(workload.backward_seconds) + workload.backward_overhead_seconds
        if displaced is not None and workload.prediction_seconds_per_byte:
            displacing = total(workload.prediction_seconds)
            forward_seconds += displacing * displaced.forward
            backward_seconds += displacing * displaced.backward
        update_seconds = total(workload.update_seconds)
        memory = StageWork(
            seconds=forward_seconds + backward_seconds,
            update_seconds=update_seconds,
            parameter_bytes=total(workload.parameter_bytes),
            kept_bytes=total(workload.kept_bytes),
            incoming_bytes=numpy.array(incoming),
            outgoing_bytes=numpy.array(outgoing),
        )
        return cls(forward_seconds, backward_seconds, update_seconds, memory, message_bytes)


def buckets_of(workload: Workload, operators: tuple[int, ...]) -> list[Bucket]:
    """The buckets of a replicated stage, in the order in which they are summed.

    They are filled as the runtime fills them, but for its telling weights apart: an operator's go
    into one bucket together.
    """
    return list(_fill(workload, operators))


def _fill(workload: Workload, operators: tuple[int, ...]) -> Iterator[Bucket]:
    bytes_ = passed = ready = 0.0
    for operator in sorted(operators, reverse=True):
        passed += float(workload.backward_seconds[operator])
        added = float(workload.parameter_bytes[operator])
        if not added:
            continue
        if bytes_ and bytes_ + added > BUCKET_BYTES:
            yield Bucket(bytes_, ready)
            bytes_ = 0.0
        bytes_ += added
        ready = passed
    if bytes_:
        yield Bucket(bytes_, ready)
