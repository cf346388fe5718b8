"""What planners are given, and what they minimise."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import numpy

from drlpp.costs.buckets import SumsLeft
from drlpp.costs.memory import DEFAULT_MEMORY, MemoryModel
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.placement_rule import PlacementRule, Prediction, predict
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, NothingFits
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster
from drlpp.specs.optimizer_spec import OptimizerSpec

_UNREACHABLE_SECONDS = 1e12
"""More than any placement takes: what misses memory is above it."""


@dataclass(frozen=True)
class PlanningProblem:
    """A workload to place on a cluster.

    Attributes:
        workload: operators with costs.
        cluster: accelerators with speeds, memories and links.
        replicate: whether a stage may stand on several accelerators.
        memory: what a stage keeps, for clusters that limit it.
        seed: of planners that draw at random.
        objective: what the search minimises for a minibatch: ``seconds``, or the ``dollars`` that
            the accelerators of the placement cost meanwhile.
    """

    workload: Workload
    cluster: Cluster
    replicate: bool = True
    memory: MemoryModel = DEFAULT_MEMORY
    seed: int = 0
    objective: str = "seconds"

    def __post_init__(self) -> None:
        if self.objective not in ("seconds", "dollars"):
            raise InvalidInput(f"objective {self.objective!r} is unknown; use seconds or dollars")
        if self.objective == "dollars" and None in self.cluster.prices:
            raise InvalidInput(
                "objective dollars needs the price of every host in the cluster file, in dollars "
                "an hour of an accelerator"
            )

    def per_second(self, placement: Placement) -> float:
        """Return how much of its objective a second of a placement takes."""
        if self.objective == "seconds":
            return 1.0
        prices = self.cluster.prices
        return sum(prices[accelerator] or 0.0 for accelerator in placement.accelerators) / 3600

    @classmethod
    def profiled(
        cls, profile: Profile, cluster: Cluster, method: Method, optimizer: OptimizerSpec
    ) -> PlanningProblem:
        """Return the problem of a profile on a cluster, with the memory of a method."""
        memory = MemoryModel.of(method, optimizer)
        return cls(Workload.of(profile, method), cluster, memory=memory)

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


_Key = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""The operators and the accelerators of every stage."""


class AnalyticObjective:
    """The problem's rule; a placement that does not fit in memory is worse than all that do fit.

    What it misses is added on top of a time that no placement reaches, so that a search that starts
    outside the limits finds its way in.

    Attributes:
        problem: whose rule it is.
        sums: another lower bound, where replicas wait for the sums of their gradients.
    """

    def __init__(self, problem: PlanningProblem) -> None:
        cluster = problem.cluster
        self.problem = problem
        self.sums = SumsLeft(problem.workload, cluster)
        self._rule = PlacementRule(cluster)
        self._known: dict[_Key, tuple[float, PlacedStages | None]] = {}
        self._limits = numpy.array(
            [numpy.inf if limit is None else limit for limit in cluster.memory_bytes]
        )
        self._limited = bool(numpy.isfinite(self._limits).any())

    def with_memory(self, memory: MemoryModel) -> AnalyticObjective:
        """Return the rule of the same problem with another memory; both remember together."""
        other = copy(self)
        other.problem = replace(self.problem, memory=memory)
        return other

    def __call__(self, placement: Placement) -> float:
        """Return seconds per minibatch, with a penalty for missing memory."""
        # A search comes back to placements, also with other methods that only memory knows.
        key = tuple((stage.operators, stage.accelerators) for stage in placement.stages)
        found = self._known.get(key)
        if found is None:
            placed = PlacedStages(self.problem.workload, placement)
            found = self._rule.seconds(placed).slowest, placed if self._limited else None
            self._known[key] = found
        seconds, limited = found
        missing = 0.0 if limited is None else self._missing(limited)
        return seconds if missing == 0 else _UNREACHABLE_SECONDS * (1 + missing) + seconds

    def fits(self, value: float) -> bool:
        """Return whether a value of this objective belongs to a placement that fits in memory."""
        return value < _UNREACHABLE_SECONDS

    def _missing(self, placed: PlacedStages) -> float:
        """Return the missing bytes per byte of memory, added up over the stages."""
        limits = numpy.array([self._limits[list(held)].min() for held in placed.holders])
        needed = placed.on_accelerators(placed.memory_bytes(self.problem.memory))
        if placed.placement.is_folded:
            needed, limits = needed[: len(needed) // 2], limits[: len(limits) // 2]
        return float((numpy.maximum(needed - limits, 0) / limits).sum())
