"""Measure, recalibrate, plan again: the search for the fastest placement without learning.

What planners find with the declared costs is measured first. Then, again and again, everything
measured so far corrects the costs (:mod:`drlpp.planners.model_based.calibration`); the exact
planner plans with these; evolution searches the corrected simulator from there, where evaluations
cost nothing; and what looks best is measured next. Some proposals are best for costs drawn from
what is still uncertain (Thompson sampling) instead of the most probable ones, so that what is not
known gets measured; and some are small changes of what was measured best, whatever the simulator
thinks of them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy

from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.planners.baselines.data_parallel import data_parallel
from drlpp.planners.exact.exact import exact, tractability
from drlpp.planners.model_based.calibration import Calibration, Spread
from drlpp.planners.model_based.surrogate import Surrogate
from drlpp.planners.pipedream.pipedream import pipedream
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.planners.search.evolution import evolve, mutated
from drlpp.planners.search.local_search import anneal
from drlpp.planners.search.moves import PlacementState
from drlpp.schedule.method import DEFAULT_METHOD, Method

_CANDIDATES = 24
"""How many of the best by the most probable costs are judged again by drawn costs."""

_REMEMBERED = 16
"""How many of the fastest and of the latest measurements tell how far off the simulator is."""

_PARENTS = 8
_MEASURED_PARENTS = 4
"""How many of the most promising, and of the fastest measured, a search begins with."""

_SEARCHED_IN_FULL = 16
_LEAST = 200
"""The measurements after which searches get shorter in proportion, and their least evaluations."""

_IMPROVED = 0.999

_SCREENED = 1.1
"""What the rule alone puts above this many times the fastest measured is not simulated."""

_CHEAP_DOWNSETS = 1000
_CHEAP_SPEEDS = 4
"""Plans for models of more downsets, or accelerators of more speeds, take long: they are made anew
only when twice as much has been measured."""

_MOST_FAILURES = 3
"""Placements of a kind that has failed this often, and never succeeded, are not proposed."""


@dataclass(frozen=True)
class Options:
    """The parts of the search, each of which may be left out.

    Attributes:
        planners: measure what planners find with the declared costs first, and plan again with
            the corrected ones; without, evolution is on its own.
        calibrate: correct the costs by busy times, link times and memory.
        discrepancy: correct the simulator by how far measured seconds are off.
        thompson: draw uncertain costs for some proposals.
        neighbours: propose small changes of the best, unseen by the simulator.
        evaluations: of the corrected simulator in each of two searches for a batch of proposals;
            fewer when much has been measured.
        patience: propose nothing more after this many measurements in a row that made the best no
            more than 0.1% faster; 0 for never.
    """

    planners: bool = True
    calibrate: bool = True
    discrepancy: bool = True
    thompson: bool = True
    neighbours: bool = True
    evaluations: int = 600
    patience: int = 40


class Recalibration:
    """Proposes placements to measure, and learns from what comes out.

    Args:
        declared: the workload and the cluster, as far as they are known.
        method: the schedule, and the weight policy on it.
        minibatches: over how many a placement is measured.
        options: the parts of the search.
        spread: how far off what was declared may be.
    """

    def __init__(
        self,
        declared: PlanningProblem,
        method: Method = DEFAULT_METHOD,
        minibatches: int = 30,
        options: Options | None = None,
        spread: Spread | None = None,
    ) -> None:
        self.declared = declared
        self.options = options or Options()
        self.calibration = Calibration(
            declared.workload, declared.cluster, declared.memory, method, spread or Spread()
        )
        self._method = method
        self._minibatches = minibatches
        self._draw = random.Random(declared.seed)
        self._generator = numpy.random.default_rng(declared.seed)
        self._measured: dict[Candidate, float] = {}
        self._promising: list[Placement] = []
        self._first = list(self._planned()) if self.options.planners else []
        self._plan: Placement | None = None
        self._planned_after: int | None = None
        downsets = tractability(declared.workload).downsets
        self._few_downsets = downsets is not None and downsets <= _CHEAP_DOWNSETS
        self._surrogate: Surrogate | None = None
        self._searches = 0
        self._succeeded: Counter[tuple[int, ...]] = Counter()
        self._failed: Counter[tuple[int, ...]] = Counter()
        self._record = math.inf
        self._since_record = 0

    @property
    def measured(self) -> dict[Candidate, float]:
        """Seconds per minibatch of everything known so far, infinite for what failed."""
        return self._measured

    def tell(self, candidate: Candidate, outcome: Outcome) -> None:
        """Learn from the outcome of a candidate, whoever proposed it.

        One with another method is passed over: all that is corrected here is of the search's own.
        """
        if candidate.method != self._method:
            return
        placement = candidate.placement
        self._surrogate = None
        self._since_record += 1
        if isinstance(outcome, Measurement):
            if outcome.seconds_per_minibatch < _IMPROVED * self._record:
                self._record = outcome.seconds_per_minibatch
                self._since_record = 0
            self._measured[candidate] = outcome.seconds_per_minibatch
            if self.options.calibrate:
                self.calibration.observe(placement, outcome)
            self._succeeded[_kind_of(placement)] += 1
        else:
            self._measured[candidate] = math.inf
            self._failed[_kind_of(placement)] += 1

    @property
    def surrogate(self) -> Surrogate:
        """The surrogate, which predicts with everything known so far."""
        if self._surrogate is None:
            self._surrogate = Surrogate(
                self.declared, self.calibration.fit(), self._method, self._minibatches
            )
            if self.options.discrepancy:
                latest = list(self._measured.items())[-_REMEMBERED:]
                told = {**dict(self.best(_REMEMBERED)), **dict(latest)}
                self._surrogate.with_discrepancy({c.placement: s for c, s in told.items()})
        return self._surrogate

    @property
    def settled(self) -> bool:
        """Whether measuring more has not helped for long."""
        return 0 < self.options.patience <= self._since_record

    def propose(self, count: int, candidates: Sequence[Candidate] = ()) -> list[Candidate]:
        """Return candidates to measure next, the most promising first; none that was measured.

        Args:
            count: the most that are wanted; there are fewer if the search comes by no others, and
                none when it has settled.
            candidates: of someone else, to be considered as well.
        """
        if self.settled:
            return []
        others = [one.placement for one in candidates if one.method == self._method]
        return [Candidate(found, self._method) for found in self._proposals(count, others)]

    def _proposals(self, count: int, candidates: Sequence[Placement]) -> list[Placement]:
        proposals = self._take(self._first, count)
        if len(proposals) == count:
            return proposals
        surrogate = self.surrogate
        ranked = self._search(surrogate, candidates)
        taken = surrogate.keys([*self._placements, *proposals])
        for source in self._sources(surrogate, ranked):
            if len(proposals) == count:
                break
            fresh = next(
                (p for p in source if surrogate.key(p) not in taken and not self._fails(p)), None
            )
            if fresh is not None:
                proposals.append(fresh)
                taken.add(surrogate.key(fresh))
        return proposals

    @property
    def _placements(self) -> Iterator[Placement]:
        """All that were measured, in their order."""
        return (candidate.placement for candidate in self._measured)

    def _fails(self, placement: Placement) -> bool:
        """Return whether placements of its kind have only failed."""
        kind = _kind_of(placement)
        return self._failed[kind] >= _MOST_FAILURES and not self._succeeded[kind]

    def _take(self, queue: list[Placement], count: int) -> list[Placement]:
        """Take up to ``count`` from the head of a queue that were not measured yet."""
        taken: list[Placement] = []
        measured = set(self._placements)
        while queue and len(taken) < count:
            placement = queue.pop(0)
            if placement not in measured and placement not in taken:
                taken.append(placement)
        return taken

    def _planned(self) -> Iterator[Placement]:
        """Yield what planners find with the declared costs."""
        for planner in (exact, pipedream, data_parallel):
            with suppress(InvalidInput):
                yield planner(self.declared).placement

    def best(self, count: int) -> list[tuple[Candidate, float]]:
        """Return the fastest that were measured, with their seconds."""
        finite = [item for item in self._measured.items() if math.isfinite(item[1])]
        return sorted(finite, key=lambda item: item[1])[:count]

    def _search(self, surrogate: Surrogate, candidates: Sequence[Placement]) -> list[Placement]:
        """Return placements by what the surrogate expects of them, the fastest first.

        One search begins with the best that are known. Another begins afresh, so as not to stay
        where the first got stuck. It is evolution and annealing in turn, since each gets stuck
        elsewhere.
        """
        self._plan_again(surrogate)
        known = [
            *([self._plan] if self._plan is not None else []),
            *(candidate.placement for candidate, _ in self.best(_MEASURED_PARENTS)),
            *self._promising,
        ]
        self._searches += 1
        limit = _SCREENED * min((seconds for _, seconds in self.best(1)), default=math.inf)
        expected = {placement: surrogate(placement) for placement in known}
        problem = surrogate.problem.with_seed(self._draw.randrange(2**32))
        # Costs change less and less, and so does what a search finds.
        evaluations = max(
            self.options.evaluations * _SEARCHED_IN_FULL // max(len(self._measured), 1), _LEAST
        )
        evaluations = min(evaluations, self.options.evaluations)

        def screened(placement: Placement) -> float:
            return surrogate.screen(placement, limit)

        afresh = evolve if self._searches % 2 else anneal
        for run in (
            evolve(problem, evaluations, screened, [*known, *candidates], surrogate.key),
            afresh(problem, evaluations, screened, key=surrogate.key),
        ):
            expected.update(zip(run.placements, run.seconds, strict=True))
        ranked = sorted(expected, key=lambda placement: expected[placement])
        ranked = [placement for placement in ranked if math.isfinite(expected[placement])]
        unlike: dict[Hashable, Placement] = {}
        for placement in ranked:
            unlike.setdefault(surrogate.key(placement), placement)
        self._promising = list(unlike.values())[:_PARENTS]
        return ranked

    def _plan_again(self, surrogate: Surrogate) -> None:
        if not self.options.planners:
            return
        measured = len(self._measured)
        often = self._cheap(surrogate.problem)
        if self._planned_after is not None and not often and measured < 2 * self._planned_after:
            return
        self._planned_after = max(measured, 1)
        with suppress(InvalidInput):
            self._plan = exact(surrogate.problem).placement

    def _cheap(self, problem: PlanningProblem) -> bool:
        """Return whether the exact planner takes but a moment."""
        return self._few_downsets and len(set(problem.cluster.speeds)) <= _CHEAP_SPEEDS

    def _sources(
        self, surrogate: Surrogate, ranked: list[Placement]
    ) -> Iterator[Iterator[Placement]]:
        """Yield where the next proposal comes from: in turn the best, a draw, a neighbour."""
        for _ in range(len(ranked) + 1):
            yield iter(ranked)
            if self.options.thompson:
                yield iter(self._drawn(surrogate, ranked))
            if self.options.neighbours:
                yield self._neighbours()

    def _drawn(self, surrogate: Surrogate, ranked: list[Placement]) -> list[Placement]:
        """Return candidates and a plan, ranked by costs that are drawn from what is uncertain."""
        measured = surrogate.keys(self._placements)
        unknown = [p for p in ranked if surrogate.key(p) not in measured][:_CANDIDATES]
        drawn = Surrogate(
            self.declared,
            self.calibration.sample(self._generator),
            self._method,
            self._minibatches,
            surrogate.discrepancy.sample(self._generator),
        )
        if self.options.planners and self._cheap(drawn.problem):
            with suppress(InvalidInput):
                unknown.append(exact(drawn.problem).placement)
        return sorted(unknown, key=drawn)

    def _neighbours(self) -> Iterator[Placement]:
        """Yield small changes of what was measured best."""
        best = [candidate.placement for candidate, _ in self.best(4)]
        for _ in range(_CANDIDATES if best else 0):
            state = PlacementState.of(self._draw.choice(best), self.declared)
            yield mutated(state, self.declared, self._draw).placement()


def _kind_of(placement: Placement) -> tuple[int, ...]:
    """Return what placements that fail for the same reason are likely to share: replicas."""
    return tuple(len(stage.accelerators) for stage in placement.stages)
