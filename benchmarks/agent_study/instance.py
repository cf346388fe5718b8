"""A model on simulated accelerators, what agents know of them, and what the best would be."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy

from drlpp.costs.profile import Profile
from drlpp.envs import CostPrior, MeasurementMemory
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS
from drlpp.planners.search.evolution import evolve
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Cluster, Link, local_cluster

MINIBATCHES = 30

_RESTARTS = 4
_THOROUGH = 2000


@dataclass(frozen=True)
class Instance:
    """Costs as they are, which measurements follow, and as they are declared.

    Attributes:
        name: for tables.
        profile: the costs as they are.
        cluster: the accelerators as they are.
        declared_profile: the costs that agents and planners know.
        declared_cluster: the accelerators as they know them.
        noise: standard deviation of the logarithm of measured seconds; those of a placement are
            always the same.
    """

    name: str
    profile: Profile
    cluster: Cluster
    declared_profile: Profile
    declared_cluster: Cluster
    noise: float = 0.0

    @classmethod
    def of(
        cls,
        name: str,
        profile: Profile,
        accelerators: int,
        link: Link,
        *,
        speeds: Sequence[float] | None = None,
        declared_profile: Profile | None = None,
        declared_link: Link | None = None,
        cores: int | None = None,
        noise: float = 0.0,
    ) -> Instance:
        """Make an instance on one host; ``speeds``, shared ``cores`` and noise are never declared.

        Raises:
            InvalidInput: if the declared profile is of another graph, or speeds do not fit.
        """
        declared = declared_profile or profile
        if declared.graph.fingerprint != profile.graph.fingerprint:
            raise InvalidInput(
                f"the declared profile is of {declared.graph.model} (graph "
                f"{declared.graph.fingerprint}), but the profile of {profile.graph.model} "
                f"({profile.graph.fingerprint}); both have to be of the same graph"
            )
        return cls(
            name=name,
            profile=profile,
            cluster=local_cluster(accelerators, link, speeds, cores=cores),
            declared_profile=declared,
            declared_cluster=local_cluster(accelerators, declared_link or link),
            noise=noise,
        )

    @cached_property
    def measurer(self) -> SimulatedCluster:
        """Plays placements with the costs as they are."""
        return SimulatedCluster(self.profile, self.cluster)

    @cached_property
    def declared(self) -> CostPrior:
        """What agents and planners know."""
        return CostPrior.of(self.declared_profile, self.declared_cluster)

    def memory(self) -> MeasurementMemory:
        """Return an empty memory of measurements."""
        measurer = self.measurer
        if self.noise:
            measurer = NoisyCluster(self.profile, self.cluster, self.noise)
        return MeasurementMemory(measurer, MINIBATCHES)

    def seconds(self, placement: Placement) -> float:
        """Return measured seconds per minibatch; infinite for what does not fit."""
        outcome = self.measurer.measure(placement, MINIBATCHES)
        return outcome.seconds_per_minibatch if isinstance(outcome, Measurement) else numpy.inf

    @cached_property
    def optimum(self) -> float:
        """Measured seconds of what the exact planner finds when it knows all costs."""
        told = CostPrior.of(self.profile, self.cluster)
        return self.seconds(PLANNERS["exact"](told.problem).placement)

    @cached_property
    def best_known(self) -> float:
        """Measured seconds of the best that thousands of measurements find, free of charge here."""
        told = CostPrior.of(self.profile, self.cluster).problem
        found = [self.optimum]
        for seed in range(_RESTARTS):
            problem = replace(told, seed=seed)
            start = [] if seed % 2 else [PLANNERS["exact"](problem).placement]
            found += evolve(problem, _THOROUGH, self.seconds, start).seconds
        return min(found)

    @cached_property
    def best_planner(self) -> float:
        """Measured seconds of the best that planners find with what is declared."""
        names = ("exact", "pipedream", "data-parallel")
        return min(self.seconds(PLANNERS[n](self.declared.problem).placement) for n in names)


class NoisyCluster(SimulatedCluster):
    """Measured seconds and busy times are off by noise, a placement's always by the same."""

    def __init__(self, profile: Profile, cluster: Cluster, noise: float) -> None:
        super().__init__(profile, cluster)
        self.noise = noise

    def measure(
        self, placement: Placement | Candidate | ExecutionPlan, minibatches: int = 30
    ) -> Outcome:
        """Play a candidate, and add noise."""
        plan = ExecutionPlan.taken(placement, self.graph, self.accelerators, self.method)
        outcome = super().measure(plan, minibatches)
        if not isinstance(outcome, Measurement):
            return outcome
        draw = numpy.random.default_rng(zlib.crc32(plan.placement.model_dump_json().encode()))
        return outcome.model_copy(
            update={
                "seconds_per_minibatch": outcome.seconds_per_minibatch
                * draw.lognormal(0.0, self.noise),
                "workers": tuple(
                    usage.model_copy(
                        update={
                            "busy_seconds": usage.busy_seconds * draw.lognormal(0.0, self.noise)
                        }
                    )
                    for usage in outcome.workers
                ),
            }
        )


def with_errors(profile: Profile, spread: float, seed: int) -> Profile:
    """Return the same model with operator times that are off by log-normal errors."""
    factors = numpy.random.default_rng(seed).lognormal(0.0, spread, len(profile.operators))
    return profile.model_copy(
        update={
            "operators": tuple(
                operator.model_copy(
                    update={
                        "forward_seconds": operator.forward_seconds * float(factor),
                        "backward_seconds": operator.backward_seconds * float(factor),
                    }
                )
                for operator, factor in zip(profile.operators, factors, strict=True)
            )
        }
    )
