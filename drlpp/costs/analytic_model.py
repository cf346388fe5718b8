"""Predicting a placement by formula: what each stage costs and needs, and which one rules.

The numbers are those of :mod:`drlpp.costs.placed_stages`, those of memory follow
:mod:`drlpp.costs.memory`. They are a bound: no schedule beats them in steady state. What keeps a
pipeline from reaching it (filling, round trips of messages, replicas that wait for each other) is
what the simulator plays.
"""

from __future__ import annotations

from collections.abc import Iterator

from drlpp.costs.memory import DEFAULT_MEMORY, MemoryModel
from drlpp.costs.placed_stages import PlacedSeconds, PlacedStages, PlacementRule
from drlpp.costs.stage_cost import CostModel
from drlpp.costs.workload import Workload
from drlpp.io.documents import Record
from drlpp.placement.placement import Placement
from drlpp.schedule.pipeline import Pipeline
from drlpp.specs.cluster import Cluster


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
    placed = PlacedStages(workload, placement)
    seconds = PlacementRule(cluster, costs).seconds(placed)
    of_stages, total = seconds.stages, seconds.stages.total(costs)
    in_flight, needed = placed.in_flight(memory.in_flight_per_link), placed.memory_bytes(memory)
    held = placed.on_accelerators(needed)
    stages = []
    for index, accelerators in enumerate(placed.holders):
        limits = [cluster.memory_bytes[accelerator] for accelerator in accelerators]
        smallest = min((limit for limit in limits if limit is not None), default=None)
        stages.append(
            StagePrediction(
                accelerators=accelerators,
                compute_seconds=float(of_stages.compute[index]),
                all_reduce_seconds=float(of_stages.all_reduce[index]),
                all_reduce_left_seconds=float(of_stages.left[index]),
                message_seconds=float(of_stages.messages[index]),
                seconds=float(total[index]),
                in_flight=int(in_flight[index]),
                memory_bytes=float(needed[index]),
                spare_bytes=None if smallest is None else smallest - float(held[index]),
            )
        )
    slowest = max(_parts(placed, seconds, costs), key=lambda part: part[0])
    return Prediction(seconds_per_minibatch=slowest[0], stages=tuple(stages), bottleneck=slowest[1])


def _parts(
    placed: PlacedStages, seconds: PlacedSeconds, costs: CostModel
) -> Iterator[tuple[float, str]]:
    """Yield what each part of a placement takes, and its name."""
    stages = len(placed.holders)
    found = seconds.accelerators
    for index in range(stages // 2 if placed.placement.is_folded else stages):
        replicas = int(placed.replicas[index])
        where = f"stage {index}" + (f" ({replicas} replicas)" if replicas > 1 else "")
        if placed.placement.is_folded:
            where = f"stages {index} and {stages - 1 - index}"
        if costs == "serial":
            yield float(found.total(costs)[index]), where
            continue
        left = found.left[index]
        summing = "and all-reduce " if left else ""
        yield float(found.compute[index] + left), f"compute {summing}of {where}"
        yield float(found.messages[index]), f"messages of {where}"
    for name, held in seconds.shared.items():
        yield held, f"messages {name}"


def pipeline_of(workload: Workload, placement: Placement) -> Pipeline:
    """Return the shape of a placement: its stages' accelerators, and their exchange of tensors."""
    return PlacedStages(workload, placement).pipeline
