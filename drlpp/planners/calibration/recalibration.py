"""Measure, correct, draw, search again: the fastest candidate in few measurements.

Everything measured so far corrects the declared costs
(:mod:`drlpp.planners.calibration.calibration`), and leaves some uncertainty. Costs are drawn from
what is uncertain, and for every draw the best candidate is searched for
(:mod:`drlpp.planners.search`), from what is known to be good. Measured next is the candidate by
which the most is expected to be saved over all draws (:mod:`drlpp.planners.calibration.belief`). It
ends when even knowing the true draw is expected to save less than 0.5%, twice in a row, and
searches that begin afresh find nothing faster either. It says how probable it is, by the share of
draws, that nothing is more than 1% faster than what it found.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy

from drlpp.errors import InvalidInput, NothingFits
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome, is_steady
from drlpp.placement.plan import Plan
from drlpp.planners.baselines import data_parallel
from drlpp.planners.calibration.belief import CLOSE, Belief
from drlpp.planners.calibration.calibration import Calibration
from drlpp.planners.calibration.surrogate import DiscrepancyPosterior, Surrogate
from drlpp.planners.planning import baseline_plans, starts_of
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search import Limits, Space, search
from drlpp.planners.search.moves import PlacementState, neighbour
from drlpp.planners.side_by_side import side_by_side
from drlpp.schedule.method import DEFAULT_METHOD, Method

_REMEMBERED = 16
"""How many of the fastest and of the latest measurements tell how far off the simulator is."""

_POOL = 12
"""How many promising candidates are kept from one measurement to the next."""

_MEASURED_PARENTS = 4
"""How many of the fastest measured a search begins with."""

_PATIENCE = 4
"""Of a search, with the most probable costs or in a draw."""

_FIRST = 4
"""So many times the candidates are looked at before anything is measured: later searches go on from
what this one finds."""

_AFRESH = 4
"""So many times as many are looked at by searches that begin with nothing that is known: one from
what is known stays near it."""

_LOOKS = 2
_MOST_LOOKS = 8
"""So many of these searches have to come by what is as good as the best, and at most so many look,
before it ends: what one of many comes by may not be the best there is."""

_LONG_SEARCH_SECONDS = 0.1
"""If a search takes longer, those in draws are made on several cores."""

_IMPROVED = 0.999

_POSSIBLE = 0.05
"""A planner's placement that is 1% faster in more than this share of draws is measured."""

_NEIGHBOURS = 24

POLICY = "policy"

_MOST_FAILURES = 3
"""Placements of a kind that has failed this often, and never succeeded, are not proposed."""


@dataclass(frozen=True)
class Options:
    """How long the search by measuring goes on.

    Attributes:
        evaluations: how many candidates a long search looks at after a measurement: the one with
            the most probable costs, and, where little is left to gain, those in four draws; brief
            ones in all draws look at an eighth of these, those that begin afresh, and the one
            before all measurements, at four times as many.
        draws: of the costs.
        gain: propose nothing more once the part of the seconds that is expected to be saved by the
            best of each draw is smaller; 0 for never.
        confirmations: so many beliefs in a row must agree on that, each after something new was
            measured: searches in draws may all overlook what the next measurement shows.
        patience: propose nothing more after this many measurements in a row that made the best no
            more than 0.1% faster; 0 for never.
    """

    evaluations: int = 600
    draws: int = 16
    gain: float = 0.005
    confirmations: int = 2
    patience: int = 12


class Recalibration:
    """Proposes candidates to measure, and learns from what comes out.

    Args:
        declared: the workload and the cluster, as far as they are known.
        space: of the candidates; a method is the space of itself alone.
        options: how long it goes on.
        planned: gives what the baselines propose in the space, if they were asked already.

    Attributes:
        measured: what a minibatch of everything known so far costs by the objective; failures
            infinite.
        last_belief: that was needed since the last measurement, if any: the first need none.
        guest: a policy's candidate, which is believed in like those that searches find.
    """

    def __init__(
        self,
        declared: PlanningProblem,
        space: Space | Method = DEFAULT_METHOD,
        options: Options | None = None,
        planned: Callable[[], Sequence[Plan]] | None = None,
    ) -> None:
        self.declared = declared
        self.space = space if isinstance(space, Space) else Space(space, frozenset())
        self.options = options or Options()
        self.calibration = Calibration(declared)
        self._draw = random.Random(declared.seed)
        self._generator = numpy.random.default_rng(declared.seed)
        self.measured: dict[Candidate, float] = {}
        self._data_parallel = Candidate(data_parallel(declared).placement, self.space.method)
        propose = planned or partial(baseline_plans, declared, self.space)
        self._planned = self._plans(propose)
        self.guest: Candidate | None = None
        self._guests: set[Candidate] = set()
        self._pool: list[Candidate] = list(self._planned)
        self._corrected: tuple[Surrogate, DiscrepancyPosterior] | None = None
        self.last_belief: Belief | None = None
        self._overlooked: bool | None = None
        self._succeeded: Counter[tuple[int, ...]] = Counter()
        self._failed: Counter[tuple[int, ...]] = Counter()
        self._record = math.inf
        self._since_record = 0
        self._agreeing = 0
        self._takes_long = False

    def tell(self, candidate: Candidate, outcome: Outcome) -> None:
        """Learn from the outcome of a candidate, whoever proposed it; pass over others' methods."""
        if not self.space.has(candidate.method):
            return
        if self.last_belief is not None:
            self._agreeing = self._agreeing + 1 if self._little_to_gain else 0
        self._corrected = self.last_belief = self._overlooked = None
        self._since_record += 1
        if isinstance(outcome, Measurement):
            cost = outcome.seconds_per_minibatch * self.declared.per_second(candidate)
            if cost < _IMPROVED * self._record:
                self._record = cost
                self._since_record = 0
            self.measured[candidate] = cost
            # A single run that was not steady yet says little of what workers do.
            telling = not outcome.cut_short or is_steady(outcome.steadiness, outcome.minibatches)
            if telling:
                self.calibration.observe(candidate, outcome)
            self._succeeded[_kind_of(candidate)] += 1
        else:
            self.measured[candidate] = math.inf
            self._failed[_kind_of(candidate)] += 1

    @property
    def surrogate(self) -> Surrogate:
        """The surrogate, which predicts with the most probable costs."""
        return self._correct()[0]

    def _correct(self) -> tuple[Surrogate, DiscrepancyPosterior]:
        """Return the surrogate, and how far else it may be off."""
        if self._corrected is None:
            fitted = self.calibration.fit()
            surrogate = Surrogate(fitted, self.space, failed=self._failures)
            latest = list(self.measured.items())[-_REMEMBERED:]
            known = {**dict(self.best(_REMEMBERED)), **dict(latest)}
            self._corrected = surrogate, surrogate.correct(known)
        return self._corrected

    @property
    def belief(self) -> Belief:
        """What is believed of the candidates, with everything known so far."""
        if self.last_belief is None:
            self.last_belief = self._believed()
        return self.last_belief

    @property
    def settled(self) -> bool:
        """Whether measuring more has not helped for long, or is not expected to help."""
        if not self.best(1):
            return False
        if 0 < self.options.patience <= self._since_record:
            return True
        if not self.options.gain or self._first():
            return False
        enough = self._agreeing + 1 >= self.options.confirmations
        return self._little_to_gain and enough and not self._has_overlooked()

    @property
    def _little_to_gain(self) -> bool:
        """Whether by the belief of now measuring more is not expected to help."""
        return self.belief.gain < self.options.gain and not self._possible_plans()

    def _has_overlooked(self) -> bool:
        """Return whether searches afresh find what is faster than the fastest measured after all.

        They look once after each measurement; what they find is believed in from then on.
        """
        if self._overlooked is None:
            found = self._faster_afresh()
            self._overlooked = bool(found)
            if found:
                self._pool += found
                self.last_belief = None
        return self._overlooked

    def _faster_afresh(self) -> list[Candidate]:
        """Return what searches afresh find that is faster; they end once two find as good."""
        incumbent, reached = self.surrogate(self.best(1)[0][0]), 0
        measured = set(map(self.surrogate.key, self.measured))
        for _ in range(_MOST_LOOKS // _LOOKS):
            searches = self._found_afresh(_LOOKS)
            faster = [
                plan.candidate
                for plan in chain(*searches)
                if plan.seconds_per_minibatch < (1 - self.options.gain) * incumbent
                and self.surrogate.key(plan.candidate) not in measured
            ]
            reached += sum(
                any(plan.seconds_per_minibatch < CLOSE * incumbent for plan in plans)
                for plans in searches
            )
            if faster or reached >= _LOOKS:
                return faster
        return []

    def propose(self, count: int) -> list[Candidate]:
        """Return candidates to measure next, the most promising first; none that was measured.

        Args:
            count: the most that are wanted; there are fewer if the search comes by no others, and
                none when it has settled.
        """
        if self.settled:
            return []
        proposals: list[Candidate] = []
        key = self.surrogate.key
        taken = set(map(key, self.measured))
        for candidate in self._candidates():
            if len(proposals) == count:
                break
            if key(candidate) not in taken and not self._fails(candidate):
                proposals.append(candidate)
                taken.add(key(candidate))
        return proposals

    def found_by(self, candidate: Candidate) -> str:
        """Return who came by a candidate first: a planner, a policy or the search."""
        return self._planned.get(candidate, POLICY if candidate in self._guests else "search")

    def best(self, count: int) -> list[tuple[Candidate, float]]:
        """Return the best that were measured, with what a minibatch costs by the objective."""
        finite = [item for item in self.measured.items() if math.isfinite(item[1])]
        return sorted(finite, key=lambda item: item[1])[:count]

    def _candidates(self) -> Iterator[Candidate]:
        """Yield what to measure next, the most promising first."""
        if not self.measured:
            self._search()
            yield from self._pool[:1]
        yield from self._first()
        yield from self.belief.promising
        yield from self._possible_plans()
        yield from self._neighbours()
        yield from self.belief.others

    def _first(self) -> list[Candidate]:
        """Return what is measured before draws decide: data parallelism."""
        first = self._data_parallel
        wanted = first in self._planned and first not in self.measured and not self._fails(first)
        return [first] if wanted and math.isfinite(self.declared.per_second(first)) else []

    def _possible_plans(self) -> list[Candidate]:
        """Return planners' placements that may well be 1% faster than the fastest measured."""
        faster = (self.belief.ratios < 1.0 / CLOSE).mean(axis=0)
        return [
            candidate
            for candidate, share in zip(self.belief.candidates, faster.tolist(), strict=True)
            if candidate in self._planned and share > _POSSIBLE and not self._fails(candidate)
        ]

    def _fails(self, candidate: Candidate) -> bool:
        """Return whether candidates of its kind have only failed."""
        kind = _kind_of(candidate)
        return self._failed[kind] >= _MOST_FAILURES and not self._succeeded[kind]

    def _plans(self, propose: Callable[[], Sequence[Plan]]) -> dict[Candidate, str]:
        """Return data parallelism with the space's own method, then baselines' plans; by whom."""
        found: dict[Candidate, str] = {}
        if self.declared.workload.stages_held == 1:
            found[self._data_parallel] = "planner data-parallel"
        with suppress(InvalidInput):
            for plan in propose():
                for candidate in starts_of(self.space, [plan]):
                    found.setdefault(candidate, f"planner {plan.found_by}")
        return found

    def _search(self) -> None:
        """Search with the most probable costs; the pool is what it finds, the fastest first."""
        surrogate = self.surrogate
        measured = set(map(surrogate.key, self.measured))
        parents = [candidate for candidate, _ in self.best(_MEASURED_PARENTS)]
        seed = self._draw.randrange(2**31)
        times = 1 if self.measured else _FIRST
        near = replace(self._limits, judged=times * self._limits.judged)
        pool = {surrogate.key(candidate): candidate for candidate in self._pool}
        with suppress(NothingFits):
            found = search(surrogate, [*parents, *self._pool], near, seed)
            pool |= {surrogate.key(plan.candidate): plan.candidate for plan in found}
        for plan in chain(*self._found_afresh(1 if self.measured else _LOOKS)):
            pool[surrogate.key(plan.candidate)] = plan.candidate
        ranked = sorted(pool.values(), key=surrogate)
        kept = [c for c in ranked if surrogate.fits(c, surrogate(c))]
        kept = [c for c in kept if surrogate.key(c) not in measured and not self._fails(c)]
        self._pool = kept[:_POOL]

    def _found_afresh(self, times: int) -> list[tuple[Plan, ...]]:
        """Search with the most probable costs from nothing that is known; what each finds."""
        # Far from good candidates it takes long until a climb gains anything.
        limits = Limits(judged=_AFRESH * self.options.evaluations)
        seeds = [self._draw.randrange(2**31) for _ in range(times)]
        tasks = [(self.surrogate, limits, seed) for seed in seeds]
        return side_by_side(_search_afresh, tasks, worth_it=self._takes_long)

    def _believed(self) -> Belief:
        """Search with the most probable costs, then in every draw."""
        begin = time.perf_counter()
        # What searches come by after it was dropped is theirs.
        self._guests &= set(self._pool)
        self._search()
        self._takes_long = time.perf_counter() - begin > _LONG_SEARCH_SECONDS
        surrogate = self.surrogate
        measured = set(map(surrogate.key, self.measured))
        plans = [c for c in self._planned if surrogate.key(c) not in measured]
        plans = [c for c in plans if surrogate.fits(c, surrogate(c))]
        incumbent = next((candidate for candidate, _ in self.best(1)), None)
        seed = self._draw.randrange(2**31)
        belief = Belief.of(
            self._draws(),
            list(dict.fromkeys([*self._pool, *plans])),
            incumbent,
            self._limits,
            seed,
            takes_long=self._takes_long,
            guest=self.guest,
        )
        if belief.guest is not None:
            self._guests.add(belief.guest)
        fresh = [
            index
            for index, candidate in enumerate(belief.candidates)
            if surrogate.key(candidate) not in measured and not self._fails(candidate)
        ]
        belief = replace(
            belief,
            candidates=tuple(belief.candidates[index] for index in fresh),
            ratios=belief.ratios[:, fresh],
        )
        self._pool += [c for c in belief.promising[:_POOL] if c not in self._pool]
        return belief

    @property
    def _limits(self) -> Limits:
        return Limits(judged=self.options.evaluations, patience=_PATIENCE)

    def _draws(self) -> list[Surrogate]:
        failures, (_, discrepancies) = self._failures, self._correct()
        return [
            Surrogate(
                self.calibration.sample(self._generator),
                self.space,
                discrepancies.sample(self._generator),
                failures,
            )
            for _ in range(self.options.draws)
        ]

    @property
    def _failures(self) -> list[Candidate]:
        return [candidate for candidate, seconds in self.measured.items() if math.isinf(seconds)]

    def _neighbours(self) -> Iterator[Candidate]:
        """Yield small changes of what was measured best, as far as they can be run."""
        best = [candidate for candidate, _ in self.best(4)]
        for _ in range(_NEIGHBOURS if best else 0):
            chosen = self._draw.choice(best)
            state = PlacementState.of(chosen.placement, self.declared)
            placement = (neighbour(state, self.declared, self._draw) or state).placement()
            changed = Candidate(placement, chosen.method.for_stages(len(placement.stages)))
            if self.surrogate.fits(changed, self.surrogate(changed)):
                yield changed


def _search_afresh(surrogate: Surrogate, limits: Limits, seed: int) -> tuple[Plan, ...]:
    """Return what a search from nothing finds; it judges all anew."""
    try:
        return search(surrogate.anew(), [], limits, seed)
    except NothingFits:
        return ()


def _kind_of(candidate: Candidate) -> tuple[int, ...]:
    """Return what candidates that fail for the same reason are likely to share: their shape."""
    placement = candidate.placement
    return placement.is_folded, *(len(stage.accelerators) for stage in placement.stages)
