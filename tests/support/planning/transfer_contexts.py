"""Problems for the tests of the transferable policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    returned: Iterable[int] = (),
    bandwidth: float = 1e9,
) -> PlanningProblem:
    """``returned`` are operators whose outputs the loss reads as well."""
    link = Link(bandwidth_bytes_per_second=bandwidth, latency_seconds=1e-4)
    profile = generate(family, operators, seed)
    outputs = {*profile.graph.outputs, *((operator, 0) for operator in returned)}
    graph = profile.graph.model_copy(update={"outputs": tuple(sorted(outputs))})
    workload = Workload.of(profile.model_copy(update={"graph": graph}))
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
    operators = draw(st.integers(1, 14))
    return problem_of(
        draw(st.sampled_from(list(FAMILIES))),
        operators,
        accelerators,
        speeds,
        draw(st.integers(0, 99)),
        draw(st.sets(st.integers(0, operators - 1), max_size=3)),
        # At the slower one, messages decide.
        draw(st.sampled_from([1e9, 1e6])),
    )
