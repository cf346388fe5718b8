"""The problems, which do not change: a row that somebody adds later stands beside the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy

from drlpp.costs.profile import Profile
from drlpp.costs.synthetic_profiles import generate
from drlpp.costs.workload import Workload
from drlpp.envs import CostPrior, MeasurementMemory
from drlpp.planners import PlanningProblem, best_simulated
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Cluster, Link, local_cluster

VERSION = 1
"""Of the set; results of another are not compared."""

METHOD = Method()
MINIBATCHES = 30


@dataclass(frozen=True)
class Problem:
    """A made-up model on simulated accelerators, and what an agent is told of it.

    Attributes:
        family, operators: of the model (:mod:`drlpp.costs.synthetic_profiles`).
        accelerators: how many.
        bandwidth: of all links, in bytes per second.
        speeds: of the accelerators, which no agent is told.
        cost_error: standard deviation of the logarithm of what costs are declared wrongly by.
    """

    family: str
    operators: int
    accelerators: int
    bandwidth: float
    speeds: tuple[float, ...] = ()
    cost_error: float = 0.0

    @property
    def name(self) -> str:
        """Its name in tables."""
        told = "slow accelerators" * bool(self.speeds) or "wrong costs" * bool(self.cost_error)
        links = f"{self.bandwidth / 1e6:g} MB/s"
        return f"{self.family} {self.operators}, {self.accelerators} × {links}, {told or 'known'}"

    @cached_property
    def profile(self) -> Profile:
        """What operators cost."""
        return generate(self.family, self.operators, seed=0)

    @cached_property
    def cluster(self) -> Cluster:
        """The accelerators as they are."""
        return local_cluster(self.accelerators, self._link, self.speeds or None)

    @cached_property
    def declared(self) -> CostPrior:
        """What an agent is told."""
        draw = numpy.random.default_rng(0)
        factors = numpy.exp(draw.normal(0, self.cost_error, self.operators))
        operators = tuple(
            cost.model_copy(
                update={
                    "forward_seconds": cost.forward_seconds * factor,
                    "backward_seconds": cost.backward_seconds * factor,
                }
            )
            for cost, factor in zip(self.profile.operators, factors.tolist(), strict=True)
        )
        declared = self.profile.model_copy(update={"operators": operators})
        return CostPrior.of(declared, local_cluster(self.accelerators, self._link), METHOD)

    @property
    def measurer(self) -> SimulatedCluster:
        """What measures placements."""
        return SimulatedCluster(self.profile, self.cluster, method=METHOD)

    def memory(self) -> MeasurementMemory:
        """Return a memory in which nothing is known."""
        return MeasurementMemory(self.measurer, MINIBATCHES)

    @cached_property
    def reference_seconds(self) -> float:
        """What ``drlpp plan`` finds if it is told everything as it is."""
        problem = PlanningProblem(Workload.of(self.profile, METHOD), self.cluster)
        return best_simulated(problem, METHOD, deepen=False).best.seconds_per_minibatch

    @property
    def _link(self) -> Link:
        return Link(bandwidth_bytes_per_second=self.bandwidth)


PROBLEMS = (
    Problem("chain", 16, 4, 1.25e9),
    Problem("blocks", 24, 4, 1.25e9),
    Problem("residual", 32, 4, 1.25e8),
    Problem("towers", 20, 4, 1.25e9, speeds=(1.0, 1.0, 0.5, 0.25)),
    Problem("encoder-decoder", 24, 4, 1.25e9, speeds=(0.5, 1.0, 1.0, 1.0)),
    Problem("blocks", 32, 8, 1.25e9, cost_error=0.5),
    Problem("layered", 32, 8, 1.25e8, cost_error=0.5),
    Problem("chain", 40, 8, 1.25e9, speeds=(1.0,) * 4 + (0.5,) * 4),
)
