"""Every pipeline that PipeDream's planner may choose from, and what it costs, one by one.

A pipeline on a level is a tuple of shares, a share the layers ``begin`` to ``end`` on ``replicas``
components with a pipeline of the level below in each; on level 0 it is ``None``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise, product
from typing import Any, NamedTuple

from drlpp.costs.memory import MemoryModel
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.pipedream.pipedream import Level

Layers = tuple[tuple[int, ...], ...]


class Share(NamedTuple):
    begin: int
    end: int
    replicas: int
    inner: Any


def every_pipeline(
    levels: tuple[Level, ...], begin: int, end: int, replicate: bool
) -> Iterator[tuple[Share, ...] | None]:
    if not levels:
        yield None
        return
    *below, level = levels
    for count in range(1, min(end - begin, level.components) + 1):
        for inner_cuts in combinations(range(begin + 1, end), count - 1):
            spans = list(pairwise((begin, *inner_cuts, end)))
            inner = [list(every_pipeline(tuple(below), *span, replicate)) for span in spans]
            for replicas in _replicas(level.components, count, replicate):
                for chosen in product(*inner):
                    yield tuple(
                        Share(*span, m, pipeline)
                        for span, m, pipeline in zip(spans, replicas, chosen, strict=True)
                    )


def _replicas(components: int, stages: int, replicate: bool) -> Iterator[tuple[int, ...]]:
    if not replicate:
        yield (1,) * stages
        return
    for ends in combinations(range(1, components), stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *ends, components)))


def placement_of(
    pipeline: tuple[Share, ...], levels: tuple[Level, ...], layers: Layers
) -> Placement:
    return Placement(
        stages=tuple(
            Stage(
                operators=tuple(sorted(op for layer in layers[begin:end] for op in layer)),
                accelerators=tuple(accelerators),
            )
            for begin, end, accelerators in _flat(pipeline, levels)
        )
    )


def _flat(
    pipeline: tuple[Share, ...], levels: tuple[Level, ...]
) -> Iterator[tuple[int, int, list[int]]]:
    *below, level = levels
    used = 0
    for share in pipeline:
        components = range(used, used + share.replicas)
        used += share.replicas
        if share.inner is None:
            yield share.begin, share.end, list(components)
            continue
        for begin, end, accelerators in _flat(share.inner, tuple(below)):
            yield begin, end, [c * level.size + a for c in components for a in accelerators]


class Costs:
    """The formula of ``drlpp.planners.pipedream.pipedream``, for one pipeline."""

    def __init__(self, workload: Workload, layers: Layers) -> None:
        self.workload = workload
        self.layers = layers

    def seconds(self, begin: int, end: int) -> float:
        return sum(self.workload.seconds[op] for layer in self.layers[begin:end] for op in layer)

    def weights(self, begin: int, end: int) -> float:
        sizes = self.workload.parameter_bytes
        return sum(sizes[op] for layer in self.layers[begin:end] for op in layer)

    def cut(self, at: int) -> float:
        """Both ways, what somebody before layer ``at`` and somebody behind it have to do with."""
        before = {operator for layer in self.layers[:at] for operator in layer}
        if at == len(self.layers):
            return 0.0
        return sum(
            transfer.forward_bytes + transfer.backward_bytes
            for transfer in self.workload.transfers
            if before & set(transfer.members) and set(transfer.members) - before
        )

    def paper(self, pipeline: tuple[Share, ...], levels: tuple[Level, ...]) -> float:
        *below, level = levels
        parts = []
        for begin, end, m, inner in pipeline:
            seconds = self.seconds(begin, end)
            if inner is not None:
                seconds = self.paper(inner, tuple(below))
            volume = 4 / m * (m - 1) * self.weights(begin, end)
            parts.append(max(seconds, volume / level.bandwidth) / m)
            if begin > pipeline[0].begin:
                parts.append(self.cut(begin) / level.bandwidth)
        return max(parts)

    def stage_bytes(self, placement: Placement, memory: MemoryModel) -> list[float]:
        """As the runtime has the stages: what each needs on an accelerator."""
        pipeline = PlacedStages(self.workload, placement).pipeline
        in_flight = pipeline.in_flight(memory.method.in_flight_per_link)
        last = len(placement.stages) - 1
        return [
            float(memory.stage_bytes(self.workload.stage(s.operators, last=k == last), n))
            for k, (s, n) in enumerate(zip(placement.stages, in_flight, strict=True))
        ]
