"""What every planner gets, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass

from drlpp.cluster import Cluster
from drlpp.cost_model import CostModel
from drlpp.memory import DEFAULT_MEMORY, MemoryModel
from drlpp.placement import Placement
from drlpp.workload import Workload


@dataclass(frozen=True)
class PlanningProblem:
    """A workload to place on a cluster.

    Attributes:
        workload: operators with costs.
        cluster: accelerators with speeds, memories and links.
        costs: the rule to minimise (:mod:`drlpp.cost_model`).
        replicate: whether a stage may stand on several accelerators.
        memory: what a stage keeps, for clusters that limit it.
        seed: of planners that draw at random.
    """

    workload: Workload
    cluster: Cluster
    costs: CostModel = "overlapped"
    replicate: bool = True
    memory: MemoryModel = DEFAULT_MEMORY
    seed: int = 0


@dataclass(frozen=True)
class Solution:
    """What a planner found.

    Attributes:
        placement: of all operators, on all or some accelerators.
        lower_bound: seconds per minibatch that no placement can beat by the problem's rule, if the
            planner knows any.
        proven_optimal: whether none of the placements that the method looks for is better.
        own_seconds: seconds per minibatch by the planner's own formula, if it is not the problem's.
        note: how it was found, for those who ask.
    """

    placement: Placement
    lower_bound: float = 0.0
    proven_optimal: bool = False
    own_seconds: float | None = None
    note: str = ""
