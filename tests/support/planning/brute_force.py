"""Every placement of a tiny workload: what planners are held against."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement, Stage


def every_placement(workload: Workload, accelerators: int, replicate: bool) -> Iterator[Placement]:
    """All valid placements, each once; with or without replicas, some accelerators may be idle.

    Stages that do not depend on each other come in every order: which of them is the last, and so
    has the loss, makes a difference.
    """
    for stages in range(1, min(len(workload), accelerators) + 1):
        for stage_of in every_partition(workload, stages):
            for holders in every_sharing(accelerators, stages, replicate):
                yield placement_of(stage_of, holders)


def every_partition(workload: Workload, stages: int) -> Iterator[tuple[int, ...]]:
    """The stage of every operator: none is left empty, and no edge leads to an earlier one."""
    for stage_of in product(range(stages), repeat=len(workload)):
        if len(set(stage_of)) == stages and all(
            stage_of[source] <= stage_of[target] for source, target in workload.edges
        ):
            yield stage_of


def every_sharing(
    accelerators: int, stages: int, replicate: bool
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The accelerators of every stage, at least one each; the number ``stages`` is idleness."""
    for stage_of in product(range(stages + 1), repeat=accelerators):
        holders = tuple(
            tuple(a for a, held in enumerate(stage_of) if held == stage) for stage in range(stages)
        )
        if all(holders) and (replicate or all(len(held) == 1 for held in holders)):
            yield holders


def placement_of(
    stage_of: tuple[int, ...] | list[int], holders: tuple[tuple[int, ...], ...] | list[tuple[int]]
) -> Placement:
    return Placement(
        stages=tuple(
            Stage(
                operators=tuple(i for i, held in enumerate(stage_of) if held == stage),
                accelerators=held_by,
            )
            for stage, held_by in enumerate(holders)
        )
    )
