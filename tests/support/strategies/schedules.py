"""Schedules of every kind on pipelines of every shape."""

from __future__ import annotations

from hypothesis import strategies as st

from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.schedule import Schedule, build_schedule
from tests.support.schedule_texts import folded
from tests.support.strategies.graphs import depths, pipelines, recomputing


@st.composite
def scheduled(draw: st.DrawFn) -> tuple[Schedule, tuple[int, ...]]:
    """A schedule, and for every stage the parts that it has in flight."""
    kind = SCHEDULE_KINDS[draw(st.sampled_from(list(SCHEDULE_KINDS)))]
    pipeline = draw(pipelines()) if kind.stages_held == 1 else folded(draw(st.integers(2, 4)))
    stages = len(pipeline.stages)
    per_link = 0 if kind.flushes else draw(depths(stages))
    schedule = build_schedule(
        pipeline,
        draw(st.integers(1, 12)),
        kind.name,
        draw(st.integers(1, 4)) if kind.trains else 1,
        accumulate=draw(st.integers(1, 4)),
        in_flight_per_link=per_link,
        recompute=draw(recomputing(stages)),
        share_norm=kind.flushes and draw(st.booleans()),
    )
    return schedule, pipeline.in_flight(per_link)


def any_schedule() -> st.SearchStrategy[Schedule]:
    """A schedule."""
    return scheduled().map(lambda found: found[0])
