"""What a candidate takes in steady state: by the rule, and where that does not rule it out, played.

The rule is a lower bound, takes a fraction of the simulator's time, and is mostly within a few
percent where there are enough minibatches in flight. So a search that says how slow a candidate may
be has most of them turned away without being played.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from copy import copy
from dataclasses import replace
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple, Self

import numpy

from drlpp.costs.buckets import SumsLeft
from drlpp.costs.memory import MemoryModel
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.placement_rule import PlacementRule
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search.space import Space
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.simulator.simulation import simulate_stages

_CLEARLY = 1.01
"""A candidate whose pace is above this many times the limit is not played until it is steady."""

_ROUGHLY = 1.0002
"""What is so little above the rule may as well be taken for steady, since it is never below."""


_UNREACHABLE_SECONDS = 1e12
"""More than any placement takes: what misses memory is above it."""


class _Known(IntEnum):
    """How well seconds are known: bounds, roughly, exactly; or how much memory is missing."""

    BOUND = 0
    ROUGH = 1
    EXACT = 2
    MISSING = 3


class _Bounds(NamedTuple):
    """What is known of placements by the rule, under methods that it takes for alike.

    Attributes:
        workload: under these methods.
        sums: another lower bound, where replicas wait for the sums of their gradients.
        known: stages and seconds of placements, by the operators and accelerators of each stage;
            of the latter the rule's, and those with the sums.
    """

    workload: Workload
    sums: SumsLeft
    known: dict[Hashable, tuple[PlacedStages, float, float]]


class Judge:
    """Seconds per minibatch of candidates, or another objective; each is played once at most.

    Args:
        problem: with the memory of the space's method.
        space: of the candidates.
        failed: those that were measured, and could not be run: infinite, whatever else is known.

    Attributes:
        played: how many were simulated.
        steps: of the schedules that were played, to which the time that it takes is proportional.
    """

    def __init__(
        self, problem: PlanningProblem, space: Space, failed: Iterable[Candidate] = ()
    ) -> None:
        self.problem = problem
        self.space = space
        self.played = 0
        self.steps = 0
        self._failed = {self.key(candidate): (math.inf, _Known.EXACT) for candidate in failed}
        self._seconds: dict[Hashable, tuple[float, _Known]] = dict(self._failed)
        self._problems: dict[Method, tuple[PlanningProblem, _Bounds]] = {}
        self._alike: dict[Method, _Bounds] = {}
        self._rule = PlacementRule(problem.cluster)
        limits = problem.cluster.memory_bytes
        self._limits = numpy.array([math.inf if most is None else most for most in limits])
        self._refused: dict[tuple[Pipeline, Method], bool] = {}
        self._factors: dict[Candidate, float] = {}

    def anew(self) -> Self:
        """Return one that has judged nothing yet, and says the same."""
        other = copy(self)
        other.played = other.steps = 0
        other._seconds = dict(self._failed)
        return other

    def __call__(self, candidate: Candidate, limit: float = math.inf) -> float:
        """Return seconds per minibatch, or something above ``limit`` if they clearly are.

        They are within 0.02% of the steady state. Infinite is what the weight policy refuses, or
        misses memory, or is too stale. What misses memory by the rule is finite and worse than
        everything that fits, the more the worse, so that a search that begins outside of the limits
        finds its way in; it is never played.
        """
        key, factor = self.key(candidate), self.factor(candidate)
        if math.isinf(factor):
            return math.inf
        found, limit = self._seconds.get(key), limit / factor
        if found is None:
            found = self._by_rule(candidate)
        seconds, known = found
        if known is _Known.BOUND and seconds <= limit:
            found = self._played(candidate, self._by_rule(candidate)[0], limit)
        self._seconds[key] = found
        return found[0] * factor

    def exactly(self, candidate: Candidate) -> float:
        """Return the same in steady state, without a limit."""
        key = self.key(candidate)
        found = self._seconds.get(key) or self._by_rule(candidate)
        if found[1] < _Known.EXACT:
            found = self._played(candidate)
        self._seconds[key] = found
        return found[0] * self.factor(candidate)

    def factor(self, candidate: Candidate) -> float:
        """Return the factor by which what is simulated is multiplied: what a second takes."""
        if self.problem.objective == "seconds":
            return 1.0
        if candidate not in self._factors:
            placed, *_ = self._placed(candidate)
            self._factors[candidate] = self.problem.per_second(candidate, placed)
        return self._factors[candidate]

    def known(self, candidate: Candidate) -> float | None:
        """Return the seconds of a candidate if it was played; infinite if it cannot be run."""
        seconds, known = self._seconds.get(self.key(candidate), (0.0, _Known.BOUND))
        if known is _Known.MISSING:
            return math.inf
        return None if known is _Known.BOUND else seconds * self.factor(candidate)

    def fits(self, candidate: Candidate, seconds: float) -> bool:
        """Return whether what a call gave is of a candidate that can be run and has room."""
        found = self._seconds.get(self.key(candidate))
        return math.isfinite(seconds) and (found is None or found[1] is not _Known.MISSING)

    @property
    def judged(self) -> int:
        """How many candidates were looked at, equal ones counted once."""
        return len(self._seconds)

    def key(self, candidate: Candidate) -> Hashable:
        """Return a key that does not tell equal accelerators apart, nor depths of no link."""
        kinds, method, stages = self._kinds, candidate.method, candidate.placement.stages
        if len(stages) == 1 and method.in_flight_per_link != 0:
            method = method.model_copy(update={"in_flight_per_link": 0})
        return method, tuple(
            (stage.operators, tuple(sorted(kinds[a] for a in stage.accelerators)))
            for stage in stages
        )

    def problem_of(self, method: Method) -> PlanningProblem:
        """Return the problem as it is under a method of the space."""
        return self._known_of(method)[0]

    @cached_property
    def _kinds(self) -> tuple[int, ...]:
        """A number for every accelerator, the same for those that are equal."""
        cluster = self.problem.cluster
        limits = (limit or math.inf for limit in cluster.memory_bytes)
        kinds = list(zip(cluster.speeds, cluster.host_of, limits, strict=True))
        return tuple(map(kinds.index, kinds))

    def _known_of(self, method: Method) -> tuple[PlanningProblem, _Bounds]:
        """Return the problem under a method, and what is known of placements by its rule."""
        found = self._problems.get(method)
        if found is None:
            base = self.problem
            # By the rule, passes take as long with any of these, of which there are many.
            alike = method.model_copy(update={"in_flight_per_link": 0, "recompute": False})
            if alike not in self._alike:
                workload = base.workload.with_method(method)
                self._alike[alike] = _Bounds(workload, SumsLeft(), {})
            bounds, memory = self._alike[alike], replace(base.memory, method=method)
            problem = replace(base, workload=bounds.workload, memory=memory)
            found = self._problems[method] = problem, bounds
        return found

    def by_rule(self, candidate: Candidate, limit: float = math.inf) -> float:
        """Return a lower bound, or what is worse than all that fit; it does not count as judged.

        Infinite is what is refused, unless it is above the limit anyway.
        """
        if self._failed and self.key(candidate) in self._failed:
            return math.inf
        (bound, known), factor = self._by_rule(candidate), self.factor(candidate)
        below = known is _Known.BOUND and bound * factor <= limit
        return math.inf if below and self._is_refused(candidate) else bound * factor

    def _by_rule(self, candidate: Candidate) -> tuple[float, _Known]:
        placed, seconds, bound = self._placed(candidate)
        if missing := self._missing(placed, self.problem_of(candidate.method).memory):
            return _UNREACHABLE_SECONDS * (1 + missing) + seconds, _Known.MISSING
        return bound, _Known.BOUND

    def _placed(self, candidate: Candidate) -> tuple[PlacedStages, float, float]:
        """Return the stages of a candidate, what they take by the rule, and with the sums."""
        bounds, placement = self._known_of(candidate.method)[1], candidate.placement
        key = tuple((stage.operators, stage.accelerators) for stage in placement.stages)
        found = bounds.known.get(key)
        if found is None:
            placed = PlacedStages(bounds.workload, placement)
            seconds = self._rule.seconds(placed).slowest
            sums = bounds.sums(placed, self._rule.groups_of(placed.holders))
            found = bounds.known[key] = placed, seconds, max(seconds, sums)
        return found

    def _missing(self, placed: PlacedStages, memory: MemoryModel) -> float:
        """Return the missing bytes per byte of memory, added up over the stages."""
        if numpy.isinf(self._limits).all():
            return 0.0
        limits = numpy.array([self._limits[list(held)].min() for held in placed.holders])
        needed = placed.on_accelerators(placed.memory_bytes(memory))
        if placed.placement.is_folded:
            needed, limits = needed[: len(needed) // 2], limits[: len(limits) // 2]
        return float((numpy.maximum(needed - limits, 0) / limits).sum())

    def _played(
        self, candidate: Candidate, bound: float = 0.0, limit: float = math.inf
    ) -> tuple[float, _Known]:
        """Play until it is steady, or close to the bound, or clearly above the limit."""

        def enough(fastest: float, slowest: float) -> bool:
            return slowest <= _ROUGHLY * bound or fastest > _CLEARLY * limit

        problem = self.problem_of(candidate.method)
        if self._is_refused(candidate):
            return math.inf, _Known.EXACT
        self.played += 1
        simulation = simulate_stages(
            self._placed(candidate)[0],
            problem.cluster,
            candidate.method,
            memory=problem.memory,
            enough=enough if bound else None,
        )
        self.steps += simulation.steady.played.steps
        if simulation.without_room(problem.cluster) is not None:
            return math.inf, _Known.EXACT
        seconds = simulation.seconds_per_minibatch
        if simulation.steadiness == 1.0 or not bound:
            return seconds, _Known.EXACT
        if seconds <= _ROUGHLY * bound:
            return seconds, _Known.ROUGH
        return seconds, _Known.BOUND if seconds > limit else _Known.ROUGH

    def _is_refused(self, candidate: Candidate) -> bool:
        """Return whether the weight policy refuses a candidate, or its staleness is too large."""
        method = candidate.method
        pipeline = self._placed(candidate)[0].pipeline
        # The shape decides, not the numbers of accelerators.
        shape = pipeline.numbered
        if (shape, method) not in self._refused:
            try:
                plan = ExecutionPlan(candidate, pipeline)
                plan.refuse_staler_than(self.space.most_staleness)
                self._refused[shape, method] = False
            except InvalidInput:
                self._refused[shape, method] = True
        return self._refused[shape, method]
