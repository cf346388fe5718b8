"""What every planner gets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from drlpp.costs.analytic_model import Prediction, predict
from drlpp.costs.memory import DEFAULT_MEMORY, MemoryModel
from drlpp.costs.profile import Profile
from drlpp.costs.stage_cost import CostModel
from drlpp.costs.workload import Workload
from drlpp.errors import NothingFits
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster
from drlpp.specs.optimizer_spec import OptimizerSpec


@dataclass(frozen=True)
class PlanningProblem:
    """A workload to place on a cluster.

    Attributes:
        workload: operators with costs.
        cluster: accelerators with speeds, memories and links.
        costs: the rule to minimise (:mod:`drlpp.costs.stage_cost`).
        replicate: whether a stage may stand on several accelerators.
        memory: what a stage keeps, for clusters that limit it.
        seed: of planners that draw at random.
        time_limit_seconds: of planners that search until the optimum is proven.
    """

    workload: Workload
    cluster: Cluster
    costs: CostModel = "overlapped"
    replicate: bool = True
    memory: MemoryModel = DEFAULT_MEMORY
    seed: int = 0
    time_limit_seconds: float = 60.0

    @classmethod
    def profiled(
        cls, profile: Profile, cluster: Cluster, method: Method, optimizer: OptimizerSpec
    ) -> PlanningProblem:
        """Return the problem of a profile on a cluster, with the memory of a method."""
        memory = MemoryModel.of(method, optimizer)
        return cls(Workload.of(profile, method), cluster, memory=memory)

    def with_seed(self, seed: int) -> PlanningProblem:
        """Return a copy with another seed."""
        return replace(self, seed=seed)

    def predict(self, placement: Placement) -> Prediction:
        """Predict what a placement costs by this problem's rule."""
        return predict(self.workload, self.cluster, placement, self.costs, self.memory)


def memory_shortage(problem: PlanningProblem, placement: Placement) -> NothingFits:
    """Return the error that tells how the placement that comes closest misses the memory limit."""
    prediction = problem.predict(placement)
    index = prediction.worst_memory
    stage = prediction.stages[index]
    operators = placement.stages[index].operators
    names = problem.workload.names
    limit = stage.memory_bytes + (stage.spare_bytes or 0.0)
    return NothingFits(
        f"no placement of {problem.workload.model} that was looked at fits into memory. The "
        f"closest, {placement.configuration}, misses {prediction.missing_bytes:,.0f} bytes: its "
        f"stage {index} ({names[operators[0]]} to "
        f"{names[operators[-1]]}) needs {stage.memory_bytes:,.0f} bytes with {stage.in_flight} "
        f"in flight, and its accelerators have {limit:,.0f}"
    )
