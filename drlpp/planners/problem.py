"""What planners are given, and what they minimise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from drlpp.costs.memory import DEFAULT_MEMORY, MemoryModel
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.placement_rule import Prediction, predict
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, NothingFits
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.schedule.analysis.staleness import samples_factor
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster
from drlpp.specs.optimizer_spec import OptimizerSpec

OBJECTIVES = ("seconds", "dollars", "loss")


def objective_for(method: Method, given: str | None = None) -> str:
    """Return what a search minimises: by default the time to a loss, if that can be judged.

    Raises:
        InvalidInput: there is no such objective, or the loss cannot be judged.
    """
    if given is None:
        return "loss" if method.accumulate == 1 else "seconds"
    if given not in OBJECTIVES:
        raise InvalidInput(f"objective {given!r} is unknown; there are {', '.join(OBJECTIVES)}")
    if given == "loss" and method.accumulate > 1:
        raise InvalidInput(
            f"objective loss: updates of several minibatches (accumulate={method.accumulate}) are "
            "not judged by it; leave out one of the two"
        )
    return given


@dataclass(frozen=True)
class PlanningProblem:
    """A workload to place on a cluster.

    Attributes:
        workload: operators with costs.
        cluster: accelerators with speeds, memories and links.
        replicate: whether a stage may stand on several accelerators.
        memory: what a stage keeps, for clusters that limit it.
        seed: of planners that draw at random.
        objective: what the search minimises for a minibatch: ``seconds``, the ``dollars`` that the
            accelerators of the placement cost meanwhile, or the seconds to a ``loss``, times the
            samples that late weights need for each of plain PyTorch's.
        optimizer: which may tolerate lateness; None counts as AdamW.
    """

    workload: Workload
    cluster: Cluster
    replicate: bool = True
    memory: MemoryModel = DEFAULT_MEMORY
    seed: int = 0
    objective: str = "seconds"
    optimizer: OptimizerSpec | None = None

    def __post_init__(self) -> None:
        if self.objective == "dollars" and None in self.cluster.prices:
            raise InvalidInput(
                "objective dollars needs the price of every host in the cluster file, in dollars "
                "an hour of an accelerator"
            )

    def per_second(self, candidate: Candidate, placed: PlacedStages | None = None) -> float:
        """Return how much of its objective a second of a candidate takes; stages may be known.

        To a loss that is infinite where an update is made of several minibatches: what larger ones
        delay is not known.
        """
        if self.objective == "dollars":
            prices = self.cluster.prices
            return sum(prices[one] or 0.0 for one in candidate.placement.accelerators) / 3600
        if self.objective == "loss":
            pipeline = (placed or PlacedStages(self.workload, candidate.placement)).pipeline
            if candidate.method.minibatches_together(pipeline) > 1:
                return math.inf
            return samples_factor(pipeline, candidate.method, self.optimizer)
        return 1.0

    @classmethod
    def profiled(
        cls, profile: Profile, cluster: Cluster, method: Method, optimizer: OptimizerSpec
    ) -> PlanningProblem:
        """Return the problem of a profile on a cluster, with the memory of a method."""
        memory = MemoryModel.of(method, optimizer)
        workload = Workload.of(profile, method)
        return cls(workload, cluster, memory=memory, optimizer=optimizer)

    def predict(self, placement: Placement) -> Prediction:
        """Predict what a placement costs by this problem's rule."""
        return predict(self.workload, self.cluster, placement, self.memory)


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
