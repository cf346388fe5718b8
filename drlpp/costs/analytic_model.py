"""Predicting a placement by formula: what each stage costs and needs, and which one rules.

The formulas are in :mod:`drlpp.costs.stage_cost`, those of messages in
:mod:`drlpp.costs.message_load`, those of memory in :mod:`drlpp.costs.memory`. They are a bound: no
schedule beats them in steady state. What keeps a pipeline from reaching it (filling, round trips
of messages, replicas that wait for each other) is what the simulator plays.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from drlpp.costs.memory import DEFAULT_MEMORY, MemoryModel
from drlpp.costs.message_load import MessageLoad, stage_bytes
from drlpp.costs.stage_cost import CostModel, Group, StageSeconds
from drlpp.costs.tied_sums import TiedSums
from drlpp.costs.workload import Workload
from drlpp.io.documents import Record
from drlpp.placement.placement import Placement
from drlpp.schedule.pipeline import Pipeline
from drlpp.specs.cluster import Cluster, Link


class StagePrediction(Record):
    """Seconds per minibatch that a stage needs, and the memory of each of its accelerators.

    ``all_reduce_left_seconds`` is what of the all-reduce no backward hides.
    ``spare_bytes`` is what the smallest of them has left, negative if the stage does not fit.
    """

    accelerators: tuple[int, ...]
    compute_seconds: float
    all_reduce_seconds: float
    all_reduce_left_seconds: float
    message_seconds: float
    seconds: float
    in_flight: int
    memory_bytes: float
    spare_bytes: float | None


class Prediction(Record):
    """Predicted seconds per minibatch of a placement, its stages, and the part that rules."""

    seconds_per_minibatch: float
    stages: tuple[StagePrediction, ...]
    bottleneck: str

    @property
    def worst_memory(self) -> int:
        """The stage that needs the most memory, or misses it by the most."""
        return max(
            range(len(self.stages)),
            key=lambda index: (
                -(self.stages[index].spare_bytes or 0.0),
                self.stages[index].memory_bytes,
            ),
        )

    @property
    def missing_bytes(self) -> float:
        """What the stage with the least room misses, 0 if all fit."""
        return max(0.0, *(-(stage.spare_bytes or 0.0) for stage in self.stages))


@dataclass(frozen=True)
class _Part:
    seconds: float
    name: str


def predict(
    workload: Workload,
    cluster: Cluster,
    placement: Placement,
    costs: CostModel = "overlapped",
    memory: MemoryModel = DEFAULT_MEMORY,
) -> Prediction:
    """Predict the steady state of a valid placement.

    Args:
        workload: what has to be computed and sent.
        cluster: the accelerators, their speeds and their links.
        placement: of the workload's operators on them.
        costs: whether compute and communication overlap.
        memory: what a stage keeps, and of how many minibatches.
    """
    pipeline = pipeline_of(workload, placement)
    in_flight = pipeline.in_flight(memory.in_flight_per_link)
    if pipeline.is_folded:
        # Such schedules flush, and no more than a minibatch is in flight.
        in_flight = (1,) * len(in_flight)
    last = len(placement.stages) - 1
    stage_of = placement.stage_of_operator(len(workload))
    works = [
        workload.stage(stage.operators, last=index == last)
        for index, stage in enumerate(placement.stages)
    ]
    if pipeline.is_folded:
        working = workload.working_bytes_in(placement)
        works = [
            replace(work, working_bytes=bytes_) for work, bytes_ in zip(works, working, strict=True)
        ]
    tied = TiedSums.of(
        workload, works[0], stage_of, [len(stage.accelerators) for stage in placement.stages]
    )
    load = None
    if costs == "overlapped":
        load = MessageLoad.of(
            cluster,
            [stage.accelerators for stage in placement.stages],
            stage_bytes(workload, stage_of, len(placement.stages)),
            tied.bytes_,
        )
    stages, parts = [], []
    for index, stage in enumerate(placement.stages):
        work = works[index]
        if load is not None:
            work = tied.applied(work, index)
        partners = {edge.source for edge in pipeline.incoming(index)}
        partners |= {edge.target for edge in pipeline.outgoing(index)}
        partners |= {k for tied in pipeline.ties if index in tied for k in tied} - {index}
        others = [a for partner in partners for a in placement.stages[partner].accelerators]
        group = group_of(cluster, stage.accelerators, others)
        seconds = StageSeconds.of(work, group, costs)
        if load is not None:
            seconds = replace(seconds, messages=load.stages[index])
        replicas = len(stage.accelerators)
        needed = float(memory.stage_bytes(work, in_flight[index], replicas, index))
        limits = [cluster.memory_bytes[accelerator] for accelerator in stage.accelerators]
        smallest = min((limit for limit in limits if limit is not None), default=None)
        stages.append(
            StagePrediction(
                accelerators=stage.accelerators,
                compute_seconds=float(seconds.compute),
                all_reduce_seconds=float(seconds.all_reduce),
                all_reduce_left_seconds=float(seconds.left),
                message_seconds=float(seconds.messages),
                seconds=float(seconds.total(costs)),
                in_flight=in_flight[index],
                memory_bytes=needed,
                spare_bytes=None if smallest is None else smallest - needed,
            )
        )
        parts.append(_ruling_part(index, stages[-1], costs))
    if pipeline.is_folded:
        stages, parts = _together(stages, costs)
    if load is not None:
        parts += [_Part(held, f"messages {name}") for name, held in load.shared.items()]
    slowest = max(parts, key=lambda part: part.seconds)
    return Prediction(
        seconds_per_minibatch=slowest.seconds,
        stages=tuple(stages),
        bottleneck=slowest.name,
    )


def _together(
    stages: Sequence[StagePrediction], costs: CostModel
) -> tuple[list[StagePrediction], list[_Part]]:
    """Return stages whose accelerators hold two of them, and what each accelerator takes for both.

    What an accelerator has to spare is what both leave.
    """
    pairs = list(zip(stages, reversed(stages), strict=True))
    found = [
        one.model_copy(
            update={
                "spare_bytes": None
                if one.spare_bytes is None
                else one.spare_bytes - other.memory_bytes
            }
        )
        for one, other in pairs
    ]
    parts = [
        _ruling_part(
            index,
            one.model_copy(
                update={
                    name: getattr(one, name) + getattr(other, name)
                    for name in ("compute_seconds", "seconds")
                }
            ),
            costs,
            where=f"stages {index} and {len(stages) - 1 - index}",
        )
        for index, (one, other) in enumerate(pairs[: len(pairs) // 2])
    ]
    return found, parts


def _ruling_part(
    index: int, stage: StagePrediction, costs: CostModel, where: str | None = None
) -> _Part:
    replicas = len(stage.accelerators)
    where = where or f"stage {index}" + (f" ({replicas} replicas)" if replicas > 1 else "")
    if costs == "serial":
        return _Part(stage.seconds, where)
    left = stage.all_reduce_left_seconds
    return max(
        (
            _Part(
                stage.compute_seconds + left,
                f"compute {'and all-reduce ' if left else ''}of {where}",
            ),
            _Part(stage.message_seconds, f"messages of {where}"),
        ),
        key=lambda part: part.seconds,
    )


def group_of(cluster: Cluster, accelerators: Sequence[int], others: Sequence[int]) -> Group:
    """Return what costs depend on for a stage on ``accelerators`` that talks to ``others``."""
    return Group(
        replicas=len(accelerators),
        speed=min(cluster.speeds[accelerator] for accelerator in accelerators),
        ring=_slowest(cluster.ring(accelerators), cluster),
        link=_slowest(cluster.links_between(accelerators, others), cluster),
    )


def _slowest(links: Collection[Link], cluster: Cluster) -> Link:
    found = cluster.within_host
    for number, link in enumerate(links):
        found = found.slower(link) if number else link
    return found


def pipeline_of(workload: Workload, placement: Placement) -> Pipeline:
    """Return the shape of a placement: its stages' accelerators, and their exchange of tensors."""
    stage_of = placement.stage_of_operator(len(workload))
    # Tensors of other projects' problems may also lead back.
    crossing = [
        (min(source, target), max(source, target), transfer.backward_bytes > 0 or source > target)
        for _, transfer, source, target in workload.crossing(stage_of, len(placement.stages))
    ]
    ties = workload.ties_between(stage_of)
    return Pipeline.connecting((stage.accelerators for stage in placement.stages), crossing, ties)
