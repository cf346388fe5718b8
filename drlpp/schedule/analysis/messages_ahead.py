"""How many messages may be on their way to a worker, and from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.ties import Tie


class Ahead(NamedTuple):
    """How many receives a worker posts, and by how many sends it outruns each other worker."""

    receives: int
    sends: int


def ahead_of(
    pipeline: Pipeline, in_flight: Sequence[int], ties: Sequence[Tie], worker: int
) -> Ahead:
    """Return both for a worker of a pipeline.

    From a stage that is so many parts ahead of it, or behind, as many may be on their way, and the
    next is expected meanwhile. Where weights are shared, a worker is as far ahead of the stages
    that share them as any of these has in flight.
    """
    held = pipeline.stages_of(worker)
    if ties := [tie for tie in ties if {*held} & {*tie.stages}]:
        stages = {held[0], *(stage for tie in ties for stage in tie.stages)}
        most = (max(in_flight[stage] for stage in stages) + 2) * len(ties)
        return Ahead(most, most)
    parts = [count * len(of) for count, of in zip(in_flight, pipeline.stages, strict=True)]
    on_their_way = []
    for stage in held:
        returning = (edge for edge in pipeline.outgoing(stage) if edge.differentiable)
        for edge in (*pipeline.incoming(stage), *returning):
            apart = abs(parts[edge.source] - parts[edge.target])
            on_their_way.append(1 + -(-apart // len(pipeline.stages[stage])))
    most = in_flight[held[0]] + 2
    to_one = len(held) * max(on_their_way, default=1)
    return Ahead(min(max(sum(on_their_way), 1), most), min(to_one, most))
