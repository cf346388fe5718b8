"""Problems for the tests of the transferable policy."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from drlpp.agents import PlacementContext
from drlpp.costs.synthetic_profiles import FAMILIES, generate
from drlpp.costs.workload import Workload
from drlpp.planners import PlanningProblem
from drlpp.specs.cluster import Link, local_cluster


def problem_of(
    family: str = "layered",
    operators: int = 12,
    accelerators: int = 3,
    speeds: Sequence[float] | None = None,
    seed: int = 0,
) -> PlanningProblem:
    link = Link(bandwidth_bytes_per_second=1e9, latency_seconds=1e-4)
    workload = Workload.of(generate(family, operators, seed))
    return PlanningProblem(workload, local_cluster(accelerators, link, speeds))


def context_of(problem: PlanningProblem) -> PlacementContext:
    return PlacementContext.of_workload(problem.workload, problem.cluster)


@st.composite
def problems(draw: st.DrawFn) -> PlanningProblem:
    accelerators = draw(st.integers(1, 5))
    speeds = draw(
        st.none()
        | st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=accelerators, max_size=accelerators)
    )
    return problem_of(
        draw(st.sampled_from(list(FAMILIES))),
        draw(st.integers(1, 14)),
        accelerators,
        speeds,
        draw(st.integers(0, 99)),
    )
