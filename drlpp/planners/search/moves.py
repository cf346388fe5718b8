"""Small changes of placements, which searches go on from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.problem import PlanningProblem
from drlpp.schedule.pipeline import are_folded

# Most moves are possible at most times; if this many in a row change nothing, none can.
_DRAWS = 200


@dataclass(frozen=True)
class PlacementState:
    """A valid placement in the making.

    Attributes:
        stage_of: of every operator, never decreasing along an edge.
        holders: the accelerators of every stage.
    """

    stage_of: tuple[int, ...]
    holders: tuple[frozenset[int], ...]

    @classmethod
    def of(cls, placement: Placement, problem: PlanningProblem) -> PlacementState:
        """Return the state that gives ``placement``."""
        return cls(
            placement.stage_of_operator(len(problem.workload)),
            tuple(frozenset(stage.accelerators) for stage in placement.stages),
        )

    def placement(self) -> Placement:
        """Return the placement."""
        operators: list[list[int]] = [[] for _ in self.holders]
        for operator, stage in enumerate(self.stage_of):
            operators[stage].append(operator)
        return Placement(
            stages=tuple(
                Stage(operators=tuple(ids), accelerators=tuple(sorted(held)))
                for ids, held in zip(operators, self.holders, strict=True)
            )
        )

    @property
    def is_folded(self) -> bool:
        """Whether accelerators hold two stages each."""
        return are_folded([tuple(held) for held in self.holders])

    def idle(self, problem: PlanningProblem) -> list[int]:
        """Return accelerators without a stage."""
        busy = frozenset().union(*self.holders)
        return [a for a in range(problem.cluster.accelerators) if a not in busy]

    def stage(self, index: int) -> list[int]:
        """Return the operators of a stage."""
        return [operator for operator, stage in enumerate(self.stage_of) if stage == index]

    def moved(self, operators: Iterable[int], target: int) -> PlacementState:
        """Return a copy with ``operators`` in the stage ``target``."""
        stage_of = list(self.stage_of)
        for operator in operators:
            stage_of[operator] = target
        return replace(self, stage_of=tuple(stage_of))

    def held_by(self, stage: int, accelerators: frozenset[int]) -> PlacementState:
        """Return a copy with other accelerators for a stage."""
        holders = list(self.holders)
        holders[stage] = accelerators
        return replace(self, holders=tuple(holders))


_Moved = PlacementState | None
_Move = Callable[[PlacementState, PlanningProblem, Random], _Moved]
"""A step from a state, or nothing where it does not apply."""


def neighbour(
    state: PlacementState, problem: PlanningProblem, draw: Random
) -> PlacementState | None:
    """Return a state one random change away, folded if this one is; None if there is none."""
    kinds, up_to = _FOLDED if state.is_folded else _STRAIGHT
    for _ in range(_DRAWS):
        found = kinds[bisect_right(up_to, draw.random() * up_to[-1])](state, problem, draw)
        if found is not None and found != state:
            return found
    return None


def _shift_operator(state: PlacementState, problem: PlanningProblem, draw: Random) -> _Moved:
    """Move an operator to another stage, mostly the next, with all that has to come along."""
    if len(state.holders) == 1:
        return None
    operator = draw.randrange(len(problem.workload))
    own = state.stage_of[operator]
    if draw.random() < 0.7:
        target = own + draw.choice((-1, 1))
    else:
        target = draw.randrange(len(state.holders))
    if not 0 <= target < len(state.holders) or target == own:
        return None
    return _nonempty(state.moved(_closure(state, problem.workload, operator, target), target))


def _closure(state: PlacementState, workload: Workload, operator: int, target: int) -> set[int]:
    """Return what has to move to ``target`` with ``operator`` so that no edge leads back."""
    later = target > state.stage_of[operator]
    neighbours = workload.successors if later else workload.predecessors
    found, new = {operator}, [operator]
    while new:
        for other in neighbours[new.pop()]:
            behind = target - state.stage_of[other] if later else state.stage_of[other] - target
            if behind > 0 and other not in found:
                found.add(other)
                new.append(other)
    return found


def _nonempty(state: PlacementState) -> _Moved:
    return state if set(state.stage_of) == set(range(len(state.holders))) else None


def _move_boundary(state: PlacementState, problem: PlanningProblem, draw: Random) -> _Moved:
    """Move several operators at once over the boundary of two neighbouring stages."""
    if len(state.holders) == 1:
        return None
    first = draw.randrange(len(state.holders) - 1)
    source = draw.choice((first, first + 1))
    # Operators are numbered in a topological order, so the last of a stage have no others behind.
    operators = state.stage(source)
    count = min(1 + int(draw.expovariate(0.4)), len(operators) - 1)
    if source == first:
        return state.moved(operators[len(operators) - count :], first + 1)
    return state.moved(operators[:count], first)


def _merge(state: PlacementState, problem: PlanningProblem, draw: Random) -> _Moved:
    """Join two neighbouring stages; without replication one of their accelerators gets idle."""
    if len(state.holders) == 1:
        return None
    first = draw.randrange(len(state.holders) - 1)
    held = state.holders[first] | state.holders[first + 1]
    if not problem.replicate:
        held = frozenset({draw.choice(sorted(held))})
    return PlacementState(
        tuple(stage - (stage > first) for stage in state.stage_of),
        (*state.holders[:first], held, *state.holders[first + 2 :]),
    )


def _split(state: PlacementState, problem: PlanningProblem, draw: Random) -> _Moved:
    """Cut a stage in two; the new one takes an idle accelerator or some of the old one's."""
    index = draw.randrange(len(state.holders))
    operators, held = state.stage(index), sorted(state.holders[index])
    if len(operators) == 1:
        return None
    idle = state.idle(problem)
    if len(held) > 1:
        given = frozenset(draw.sample(held, draw.randint(1, len(held) - 1)))
    elif idle:
        given = frozenset({draw.choice(idle)})
    else:
        return None
    behind = set(operators[draw.randrange(1, len(operators)) :])
    shares = [state.holders[index] - given, given]
    draw.shuffle(shares)
    return PlacementState(
        tuple(
            stage + (stage > index or operator in behind)
            for operator, stage in enumerate(state.stage_of)
        ),
        (*state.holders[:index], *shares, *state.holders[index + 1 :]),
    )


def _move_accelerator(state: PlacementState, problem: PlanningProblem, draw: Random) -> _Moved:
    """Give an accelerator of a replicated stage, or an idle one, to another stage, or let it go."""
    if not problem.replicate:
        return None
    accelerator = draw.randrange(problem.cluster.accelerators)
    source = next((i for i, held in enumerate(state.holders) if accelerator in held), None)
    if source is not None:
        if len(state.holders[source]) == 1:
            return None
        state = state.held_by(source, state.holders[source] - {accelerator})
    # One place more than there are stages: idle.
    target = draw.randrange(len(state.holders) + (source is not None))
    if target == len(state.holders):
        return state
    return state.held_by(target, state.holders[target] | {accelerator})


def _drop_slower(state: PlacementState, problem: PlanningProblem, draw: Random) -> _Moved:
    """Take from a stage all accelerators that are slower than one of its own: the slowest rules."""
    if not problem.replicate:
        return None
    index = draw.randrange(len(state.holders))
    speeds = problem.cluster.speeds
    least = speeds[draw.choice(sorted(state.holders[index]))]
    return state.held_by(index, frozenset(a for a in state.holders[index] if speeds[a] >= least))


def _swap_accelerators(state: PlacementState, problem: PlanningProblem, draw: Random) -> _Moved:
    """Swap an accelerator with one of another stage or an idle one, if they differ."""
    hosts = problem.cluster.hosts
    if len(hosts) == 1 and hosts[0].count == 1:
        return None
    one, other = draw.sample(range(problem.cluster.accelerators), 2)
    swap = {one: other, other: one}
    return replace(
        state,
        holders=tuple(frozenset(swap.get(a, a) for a in held) for held in state.holders),
    )


def _swap_stages(state: PlacementState, problem: PlanningProblem, draw: Random) -> _Moved:
    """Let two neighbouring stages that no edge joins change places, with their accelerators."""
    if len(state.holders) == 1:
        return None
    first = draw.randrange(len(state.holders) - 1)
    swap = {first: first + 1, first + 1: first}
    if any(
        state.stage_of[source] == first and state.stage_of[target] == first + 1
        for source, target in problem.workload.edges
    ):
        return None
    holders = list(state.holders)
    holders[first : first + 2] = reversed(holders[first : first + 2])
    return PlacementState(tuple(swap.get(stage, stage) for stage in state.stage_of), tuple(holders))


_MOVES: dict[_Move, float] = {
    _shift_operator: 4,
    _move_boundary: 3,
    _move_accelerator: 2,
    _swap_accelerators: 1,
    _split: 1,
    _merge: 1,
    _swap_stages: 1,
    _drop_slower: 1,
}
_FOLDED_MOVES: dict[_Move, float] = {
    _shift_operator: 4,
    _move_boundary: 3,
    _swap_accelerators: 1,
}
_STRAIGHT, _FOLDED = (
    (tuple(moves), tuple(accumulate(moves.values()))) for moves in (_MOVES, _FOLDED_MOVES)
)
