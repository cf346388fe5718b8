"""The search for the best candidate, until it stagnates.

Many climbs, each from another start: what was given, the best cuts of topological orders
(:mod:`drlpp.planners.search.best_cuts`), those of the best so far with some stages in a row ordered
anew, and evolution of the best; where there are no cuts, the best after a few random changes. A
climb is simulated annealing over candidates, whose moves change the placement
(:mod:`drlpp.planners.search.moves`) or the method
(:class:`~drlpp.planners.search.space.Space`); its hot half goes by the rule alone. Since it is
drawn before a candidate is judged how slow it may be to be taken, most are turned away by the rule,
which is a lower bound (:class:`~drlpp.planners.search.judge.Judge`). The search ends when a few
climbs of every kind in a row have found nothing better.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import NamedTuple

from drlpp.errors import InvalidInput, NothingFits
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement, Stage
from drlpp.placement.plan import Plan
from drlpp.planners.baselines import gpipe
from drlpp.planners.problem import PlanningProblem, memory_shortage
from drlpp.planners.search.best_cuts import (
    best_cuts,
    narrow_order,
    taken_by_kind,
    taken_in_turns,
)
from drlpp.planners.search.judge import Judge
from drlpp.planners.search.moves import PlacementState, neighbour
from drlpp.planners.search.space import MOST_PER_LINK
from drlpp.schedule.method import Method
from drlpp.schedule.per_stage import collapsed

_METHOD_MOVES = 0.15
"""The share of moves that change the method, where it may vary."""

_PLAYED_BELOW = 0.01
_LAST_TEMPERATURE = 0.0005
"""Temperatures: what is 1% slower does not matter to the hot half of a climb."""

_IMPROVED = 0.999

_WORTH_STARTING = 1.5
"""Starts that are clearly slower than this many times the best of those before are left out."""

_ROUGH = 1.001
"""Seconds of a search are this close; what may be the fastest is played until it is steady."""

_PARENTS = 8
_SHAKES = 4

_MOVES_OF_ORDER = 32
"""An order is cut for so many moves of a climb."""

_NOISES = (0.0, 0.1, 0.3, 1.0)
_REORDERED = 3
"""Of orders: noise of what comes next, and stages in a row that are ordered together, at most."""

_BY_KIND = 0.5
"""The share of orders that are cut for accelerators of few unlike kinds, so many of each."""

_SHUFFLED = 0.5
"""The share of orders that are cut for accelerators of unlike speeds in any order."""

_PACES = (0.75, 0.85, 0.93, 1.0)
"""What the stages of the best cuts are to keep to, by the best so far."""

_CHAINS = 4
_LATER = (1.0, 1.1, 1.25)
"""So many placements of an order are judged, with what is in flight at so many times the pace."""


@dataclass(frozen=True)
class Limits:
    """How long a search may last.

    Attributes:
        judged: of candidates, equal ones counted once.
        steps: of the schedules that are played; a million take some seconds.
        patience: climbs in a row that make the best no more than 0.1% faster.
        moves: of a climb; 0 for as many as suit the size of the problem.
    """

    judged: int = 20_000
    steps: int = 5_000_000
    patience: int = 8
    moves: int = 0


class _State(NamedTuple):
    placement: PlacementState
    method: Method

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.placement.placement(), self.method)


def search(
    judge: Judge, starts: Sequence[Candidate] = (), limits: Limits | None = None, seed: int = 0
) -> tuple[Plan, ...]:
    """Search from ``starts``, and from cuts of orders; no start is faster than what is found.

    The judge knows afterwards how many candidates were judged and simulated.

    Args:
        judge: of the candidates.
        starts: valid ones, whose methods are in the judge's space.
        limits: on how long it lasts; by default twice the patience where speeds are unlike, or
            there is no start, and eight times where the model fits on no accelerator alone. What is
            given is judged in any case.
        seed: the same leads to the same result.

    Returns:
        The best candidates that were found, with their seconds in steady state; the fastest first.

    Raises:
        NothingFits: nothing that it came by fits into memory, and can be run.
    """
    if limits is None:
        limits = replace(Limits(), patience=_difficulty(judge.problem, starts) * Limits.patience)
    return _Search(judge, limits, random.Random(seed)).run(starts)


def _difficulty(problem: PlanningProblem, starts: Sequence[Candidate]) -> int:
    """Return how many times as patient a search has to be."""
    limits = [math.inf if most is None else most for most in problem.cluster.memory_bytes]
    operators, largest = tuple(range(len(problem.workload))), limits.index(max(limits))
    alone = Placement(stages=(Stage(operators=operators, accelerators=(largest,)),))
    if max(limits) < math.inf and problem.predict(alone).missing_bytes:
        return 8
    return 2 if not starts or len(set(problem.cluster.speeds)) > 1 else 1


class _Search:
    def __init__(self, judge: Judge, limits: Limits, draw: random.Random) -> None:
        self.judge, self.limits, self.draw = judge, limits, draw
        problem = judge.problem
        size = len(problem.workload) + problem.cluster.accelerators
        self.moves = limits.moves or min(max(6 * size, 150), 1200)
        self.by_kind = taken_by_kind(problem)
        self.elites: list[tuple[float, _State]] = []
        self.keys: set[object] = set()
        self.splits: dict[bool, PlacementState | None] = {}
        self.last_judged = judge.judged + limits.judged
        self.last_step = judge.steps + limits.steps

    def run(self, starts: Sequence[Candidate]) -> tuple[Plan, ...]:
        for start in starts:
            self.take(self.state_of(start.placement, start.method), _WORTH_STARTING * self.best)
        self.begin()
        self.best_cut()
        waiting = [state for _, state in self.elites]
        climbs = stale = 0
        while stale < self.limits.patience and not self.exhausted:
            before = self.best
            kind = climbs % 4
            if kind == 0 and waiting:
                self.climb(waiting.pop(0), 0.03)
            elif kind == 3:
                self.evolve()
            else:
                elite = None if kind == 2 else self.draw.choice(self.elites)[1]
                self.climb(self.best_cut(elite) or self.shaken(), _PLAYED_BELOW)
            climbs += 1
            stale = 0 if self.best < _IMPROVED * before else stale + 1
        return self.found(starts)

    def begin(self) -> None:
        """Take even splits where accelerators hold two stages, or nothing else is known.

        One stage can always be run, if it has room.
        """
        problem, methods = self.judge.problem, self.judge.space.methods
        folding = next(filter(_folds, methods), None)
        straight = next((method for method in methods if not _folds(method)), None)
        if straight is not None and not self.elites:
            fastest = problem.cluster.speeds.index(max(problem.cluster.speeds))
            operators = tuple(range(len(problem.workload)))
            alone = Placement(stages=(Stage(operators=operators, accelerators=(fastest,)),))
            self.take(self.state_of(alone, straight))
            folding = folding or straight
        if folding is not None and (even := self.even(folding)) is not None:
            self.take(even, _WORTH_STARTING * self.best)
        if not self.elites:
            raise NothingFits(
                "no candidate that was looked at can be run"
                if straight is not None
                else f"schedule {methods[0].schedule} needs two accelerators and four operators at "
                "least, for two stages on each accelerator"
            )

    def state_of(self, placement: Placement, method: Method) -> _State:
        return _State(PlacementState.of(placement, self.judge.problem), method)

    @property
    def exhausted(self) -> bool:
        return self.judge.judged >= self.last_judged or self.judge.steps >= self.last_step

    @property
    def best(self) -> float:
        return self.elites[0][0] if self.elites else math.inf

    def found(self, starts: Sequence[Candidate]) -> tuple[Plan, ...]:
        judge = self.judge
        asked = dict.fromkeys([*starts, *(state.candidate for _, state in self.elites)])
        limit = _ROUGH * self.best
        fitting: list[Plan] = []
        for candidate in asked:
            if judge(candidate, limit) <= limit:
                seconds = judge.exactly(candidate)
                if judge.fits(candidate, seconds):
                    placement, method = candidate.placement, candidate.method
                    fitting.append(Plan(placement, method, "search", seconds))
        fitting.sort(key=lambda plan: plan.seconds_per_minibatch)
        if not fitting:
            closest = self.elites[0][1].candidate
            raise memory_shortage(judge.problem_of(closest.method), closest.placement)
        return tuple(fitting[:_PARENTS])

    def take(self, state: _State, limit: float = math.inf) -> float:
        """Judge a state, and keep it if it is among the best."""
        candidate = state.candidate
        seconds = self.judge(candidate, limit)
        elites = self.elites
        if seconds > limit or math.isinf(seconds):
            return seconds
        if len(elites) < _PARENTS or seconds < elites[-1][0]:
            key = self.judge.key(candidate)
            if key not in self.keys:
                self.keys.add(key)
                elites.append((seconds, state))
                elites.sort(key=lambda elite: elite[0])
                del elites[_PARENTS:]
        return seconds

    def climb(self, state: _State, first_temperature: float) -> None:
        """Anneal from a state: as long as it is hot by the rule alone, then by playing."""
        if first_temperature > _PLAYED_BELOW:
            state = self.anneal(state, self.by_rule, first_temperature, _PLAYED_BELOW)
        self.anneal(state, self.take, _PLAYED_BELOW, _LAST_TEMPERATURE)

    def anneal(
        self, state: _State, judged: Callable[[_State, float], float], hot: float, cold: float
    ) -> _State:
        """Return the state at which it ends.

        As slow as ``new`` is taken with probability exp(−(ln new − ln old) / temperature), so what
        is drawn says beforehand how slow it may be.
        """
        draw, value = self.draw, judged(state, math.inf)
        for move in range(self.moves):
            if self.exhausted:
                break
            changed = self.changed(state)
            if changed is None:
                break
            temperature = hot * (cold / hot) ** (move / self.moves)
            limit = value * (1.0 - draw.random()) ** -temperature
            found = judged(changed, limit)
            if found <= limit:
                state, value = changed, found
        return state

    def by_rule(self, state: _State, limit: float) -> float:
        return self.judge.by_rule(state.candidate, limit)

    def evolve(self) -> None:
        """Let the best have children, of which the best stay."""
        for _ in range(self.moves):
            if self.exhausted:
                return
            child = self.draw.choice(self.elites)[1]
            for _ in range(1 + int(self.draw.expovariate(1.0))):
                child = self.changed(child) or child
            full = len(self.elites) == _PARENTS
            self.take(child, self.elites[-1][0] if full else math.inf)

    def changed(self, state: _State) -> _State | None:
        """Return a state one move away; None if there is none."""
        space, draw = self.judge.space, self.draw
        if space.varies and draw.random() < _METHOD_MOVES:
            return self.run_otherwise(state)
        placement = neighbour(state.placement, self.judge.problem, draw)
        if placement is None:
            return self.run_otherwise(state) if space.varies else None
        return _State(placement, state.method.for_stages(len(placement.holders)))

    def run_otherwise(self, state: _State) -> _State:
        """Return a state with a method one step away; evenly split where it folds otherwise."""
        stages = len(state.placement.holders)
        method = self.judge.space.changed(state.method, stages, self.draw)
        if _folds(method) == _folds(state.method):
            return state._replace(method=method)
        return self.even(method) or state

    def even(self, method: Method) -> _State | None:
        """Return the even split for a method; None if there are too few accelerators to fold."""
        folds = _folds(method)
        if folds not in self.splits:
            self.splits[folds] = None
            with suppress(InvalidInput):
                placement = gpipe(self.judge.problem_of(method)).placement
                self.splits[folds] = self.state_of(placement, method).placement
        split = self.splits[folds]
        return None if split is None else _State(split, method.for_stages(len(split.holders)))

    def shaken(self) -> _State:
        """Return one of the best after a few random changes."""
        state = self.draw.choice(self.elites)[1]
        for _ in range(self.draw.randint(1, _SHAKES)):
            state = self.changed(state) or state
        return state

    def best_cut(self, state: _State | None = None) -> _State | None:
        """Judge the best cuts of some orders; return the best of these, None if there is none.

        Orders are of all operators, or those of a state's stages with some in a row put together.
        """
        problem, draw = self.judge.problem, self.draw
        methods = [method for method in self.judge.space.methods if not _folds(method)]
        best, least = None, math.inf
        count = self.moves // _MOVES_OF_ORDER if methods and 0 < self.best < math.inf else 0
        best_of_all = self.elites[0][1].candidate if count else None
        fastest = self.best / self.judge.factor(best_of_all) if best_of_all else 0.0
        for _ in range(count):
            groups, accelerators = self.in_turns(state)
            order = narrow_order(problem.workload, groups, draw, draw.choice(_NOISES))
            pace = fastest * draw.choice(_PACES)
            borders = list(accumulate(map(len, groups)))
            if self.by_kind and draw.random() < _BY_KIND:
                cuts = best_cuts(problem, order, self.by_kind, None, borders)
            else:
                turns = taken_in_turns(problem, accelerators)
                cuts = best_cuts(problem, order, turns, pace, borders)
            for placement, through in sorted(cuts, key=lambda cut: sum(cut[1]))[:_CHAINS]:
                for factor in _LATER:
                    if self.exhausted:
                        return best
                    method = self.at_pace(draw.choice(methods), through, factor * pace)
                    one = _State(placement, method)
                    seconds = self.take(one, least)
                    if seconds < least:
                        best, least = one, seconds
        return best

    def at_pace(self, method: Method, through: Sequence[float], pace: float) -> Method:
        """Return a method with the in-flight depth of each link that a pace needs.

        So many minibatches are in flight on a stage as go by while one goes from there to the end
        and back.

        Args:
            method: of the space; it stays as it is where the depth does not vary.
            through: what each stage adds to the time of a minibatch.
            pace: seconds per minibatch.
        """
        if not self.judge.space.deepens:
            return method
        links: list[int] = []
        behind, time = 1, through[-1]
        for stage in reversed(through[:-1]):
            time += stage
            needed = max(behind + 1, math.ceil(time / pace))
            links.insert(0, min(needed - behind - 1, MOST_PER_LINK))
            behind += 1 + links[0]
        found = method.model_copy(update={"in_flight_per_link": collapsed(links or [0])})
        return found if self.judge.space.has(found) else method

    def in_turns(self, state: _State | None) -> tuple[list[list[int]], list[int]]:
        """Return groups of operators, and accelerators, in the order in which they are cut."""
        problem, draw = self.judge.problem, self.draw
        if state is None or state.placement.is_folded:
            cluster = problem.cluster
            kinds = list(zip(cluster.speeds, cluster.host_of, strict=True))
            turn_of = {kind: draw.random() for kind in dict.fromkeys(kinds)}
            accelerators = sorted(range(len(kinds)), key=lambda a: turn_of[kinds[a]])
            self.shuffle(accelerators)
            return [list(range(len(problem.workload)))], accelerators
        placement = state.placement
        stages = [placement.stage(index) for index in range(len(placement.holders))]
        first = draw.randrange(len(stages))
        end = first + draw.randint(1, _REORDERED)
        stages[first:end] = [list(chain.from_iterable(stages[first:end]))]
        held = [accelerator for held in placement.holders for accelerator in sorted(held)]
        accelerators = [*held, *placement.idle(problem)]
        self.shuffle(accelerators)
        return stages, accelerators

    def shuffle(self, accelerators: list[int]) -> None:
        """Let stages take accelerators of unlike speeds in any order, some of the time."""
        if len(set(self.judge.problem.cluster.speeds)) > 1 and self.draw.random() < _SHUFFLED:
            self.draw.shuffle(accelerators)


def _folds(method: Method) -> bool:
    """Whether every accelerator holds two stages."""
    return method.schedule_kind.stages_held > 1
