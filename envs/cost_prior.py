"""What is known of a model and its accelerators before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from drlpp.capturing.graph import OpGraph
from drlpp.costs.memory import MemoryModel
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.placement.plan import Plan
from drlpp.planners.planning import baseline_plans
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search.space import Space
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.specs.cluster import Cluster, Link, local_cluster

_USUAL_LINK = Link(bandwidth_bytes_per_second=1e9, latency_seconds=5e-5)


@dataclass(frozen=True)
class CostPrior:
    """A planning problem that may be wrong, and how placements will be run.

    Attributes:
        problem: the workload and the cluster, as far as they are known.
        space: the methods that may be chosen with a placement; None for the placement alone.
    """

    problem: PlanningProblem
    space: Space | None = None

    @classmethod
    def of(cls, profile: Profile, cluster: Cluster, method: Method = DEFAULT_METHOD) -> Self:
        """Declare a profile and a cluster; memory is that of SGD with momentum."""
        workload = Workload.of(profile, method)
        return cls(PlanningProblem(workload, cluster, memory=MemoryModel(method)))

    def with_seed(self, seed: int) -> Self:
        """Return the same with a seed of planners that draw at random."""
        if seed == self.problem.seed:
            return self
        return replace(self, problem=replace(self.problem, seed=seed))

    @cached_property
    def planned(self) -> tuple[Plan, ...]:
        """What the baselines propose with the space's methods, the fastest first; found once.

        Raises:
            InvalidInput: nothing of it fits into memory, and can be run.
        """
        assert self.space is not None, "without a space it is not known what runs"
        return baseline_plans(self.problem, self.space)

    @classmethod
    def from_sizes(cls, graph: OpGraph, accelerators: int, method: Method = DEFAULT_METHOD) -> Self:
        """Declare a graph whose sizes stand for costs, and a number of accelerators."""
        cluster = local_cluster(accelerators, _USUAL_LINK)
        return cls.of(Profile.estimated(graph), cluster, method)
