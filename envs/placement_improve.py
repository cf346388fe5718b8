"""The environment in which every step changes a placement a little, and the simulator judges it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import gt
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.plan import Plan
from drlpp.planners import PlanningProblem, Space, baseline_plans
from drlpp.planners.search import MOST_PER_LINK, Judge
from drlpp.planners.search.moves import PlacementState
from drlpp.schedule.per_stage import most

Observation = dict[str, NDArray[Any]]

_STOP, _SHALLOWER, _DEEPER, _MOVES = range(4)


@dataclass(frozen=True)
class Problem:
    """A problem of the set, and what never changes about it.

    Attributes:
        problem: the workload and the cluster.
    """

    problem: PlanningProblem

    @cached_property
    def space(self) -> Space:
        """The methods: that of the workload, at every depth where its schedule has one."""
        return Space(self.problem.workload.method)

    @cached_property
    def judge(self) -> Judge:
        """The simulator, which plays every candidate once."""
        return Judge(self.problem, self.space)

    @cached_property
    def reference(self) -> Plan:
        """The fastest of all planners' placements, at which episodes start."""
        return baseline_plans(self.problem, self.space)[0]

    @cached_property
    def operators(self) -> NDArray[np.float64]:
        """Share of the compute seconds, of the weights, and of the bytes sent, of each operator."""
        workload = self.problem.workload
        sent = np.zeros(len(workload) + 1)
        for transfer in workload.transfers:
            sent[transfer.members[0]] += transfer.bytes_
        columns = (
            workload.forward_seconds + workload.backward_seconds,
            workload.parameter_bytes,
            sent[:-1],
        )
        return np.stack([column / max(column.sum(), 1e-30) for column in columns], axis=1)


class PlacementImprove(gym.Env[Observation, np.int64]):
    """Improve a planner's placement step by step, on one problem or on a set of them.

    ## Description
    An episode starts at the fastest of the planners' placements. Every step moves one operator over
    a boundary, gives an accelerator another stage, or changes the depth. A stage whose last
    operator leaves ends, and its accelerators go with it. N is the number of operators of the
    largest problem of the set, E that of its edges, A that of accelerators.

    ## Action Space
    `Discrete(3 + 2 (A − 1) + A (A + 1))`. What is not possible (`action_masks()`, and `action_mask`
    in `info`) or cannot be run changes nothing, and takes a step.

    | Action                 | Meaning                                                          |
    |------------------------|------------------------------------------------------------------|
    | 0                      | stop                                                             |
    | 1, 2                   | one minibatch less, or more, in flight for each link             |
    | 3 + 2 b                | the last operator of stage b moves to stage b + 1                |
    | 3 + 2 b + 1            | the first operator of stage b + 1 moves to stage b               |
    | m + (A + 1) a + s      | accelerator a holds stage s, where m = 3 + 2 (A − 1); if there   |
    |                        | are s stages, it holds a new last one of the last operator       |
    | m + (A + 1) a + A      | accelerator a is idle                                            |

    ## Observation Space
    A `Dict`. Rows of operators, accelerators and stages that a problem does not have are zeros. A
    load is what the rule predicts (`PlanningProblem.predict`), divided by that of the slowest
    stage; a position is (stage + 1) / stages, 0 for none.

    | Key            | Shape  | Columns                                                          |
    |----------------|--------|------------------------------------------------------------------|
    | `operators`    | (N, 7) | is there; share of compute, of weights, of bytes sent; position; |
    |                |        | load of its stage; whether it is next to move                    |
    | `edges`        | (E, 2) | operators from and to; N for none                                |
    | `accelerators` | (A, 4) | is there; speed by the fastest's; position; load of its stage    |
    | `stages`       | (A, 7) | is there; share of accelerators; loads of computing, of sums of  |
    |                |        | gradients, of messages, of all; memory by its limit              |
    | `plan`         | (3,)   | depth by the deepest; steps left; tanh ln(reference / seconds)   |

    ## Rewards
    ln(seconds before / seconds after) by the simulator, so that an episode's sum is ln(seconds of
    the start / seconds of the end).

    `info` has `seconds` per minibatch, `reference_seconds` of the fastest planner's placement,
    `configuration`, `problem`, `action_mask`, and `reason` where a change could not be run.

    ## Starting State
    The planners' fastest placement of a problem, drawn or `reset(options={"problem": number})`.

    ## Episode End
    `stop` terminates it; it is truncated after `steps` steps.

    ## Arguments

    | Argument   | Default | Meaning                                                              |
    |------------|---------|----------------------------------------------------------------------|
    | `problems` |         | a `PlanningProblem`, or several                                      |
    | `steps`    | 32      | of an episode at most                                                |
    | `sizes`    | `None`  | N, E and A, for a set with the same spaces as another; those of the  |
    |            |         | largest problems if `None`                                           |

    Raises:
        InvalidInput: there is no problem, another objective than seconds, sizes are too small, or a
            schedule gives accelerators two stages each.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (the annotation is gymnasium's)

    def __init__(
        self,
        problems: PlanningProblem | Sequence[PlanningProblem],
        steps: int = 32,
        sizes: tuple[int, int, int] | None = None,
    ) -> None:
        given = [problems] if isinstance(problems, PlanningProblem) else list(problems)
        if not given:
            raise InvalidInput("problems is empty; give at least one PlanningProblem")
        if any(problem.workload.stages_held > 1 for problem in given):
            raise InvalidInput("accelerators are to hold two stages each; expected one")
        if any(problem.objective != "seconds" for problem in given):
            raise InvalidInput("objective dollars: steps are paid in seconds; leave it out")
        self.problems = tuple(Problem(problem) for problem in given)
        self.steps = steps
        needed = (
            max(len(problem.workload) for problem in given),
            max(1, *(len(problem.workload.edges) for problem in given)),
            max(problem.cluster.accelerators for problem in given),
        )
        if sizes is not None and any(map(gt, needed, sizes)):
            raise InvalidInput(f"sizes is {sizes}; these problems need at least {needed}")
        operators, edges, accelerators = sizes or needed
        self._operators, self._accelerators = operators, accelerators
        self._actions = _MOVES + 2 * (accelerators - 1) + accelerators * (accelerators + 1)
        self.action_space = spaces.Discrete(self._actions)
        self._boxes: dict[str, spaces.Box] = {
            "operators": spaces.Box(0, 1, (operators, 7), np.float32),
            "edges": spaces.Box(0, operators, (edges, 2), np.int64),
            "accelerators": spaces.Box(0, 1, (accelerators, 4), np.float32),
            "stages": spaces.Box(0, 1, (accelerators, 7), np.float32),
            "plan": spaces.Box(-1, 1, (3,), np.float32),
        }
        self.observation_space = spaces.Dict(dict(self._boxes))  # type: ignore[assignment]

    @property
    def candidate(self) -> Candidate:
        """The placement as it is, and its method."""
        return self._candidate(self._state, self._depth)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin at the planners' fastest placement of a problem, drawn or that in ``options``.

        Raises:
            InvalidInput: there is no problem of this number.
            NothingFits: nothing fits into memory there.
        """
        super().reset(seed=seed, options=options)
        number = (options or {}).get("problem")
        if number is None:
            number = int(self.np_random.integers(len(self.problems)))
        if number not in range(len(self.problems)):
            raise InvalidInput(
                f"problem {number!r} is unknown; give a number from 0 to {len(self.problems) - 1}"
            )
        self._number, self._left = int(number), self.steps
        self._known = self.problems[number]
        first = self._known.reference.candidate
        self._state = PlacementState.of(first.placement, self._known.problem)
        self._depth = most(first.method.in_flight_per_link)
        self._seconds = self._known.judge.exactly(first)
        return self._observation(), self._info()

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Change the placement.

        Raises:
            InvalidInput: ``action`` is not of the action space.
        """
        if not self.action_space.contains(np.int64(action)):
            raise InvalidInput(
                f"action {action!r}: expected a number from 0 to {self._actions - 1}"
            )
        self._left -= 1
        reward, more = 0.0, {}
        if (changed := self._changed(int(action))) is not None:
            candidate = self._candidate(*changed)
            seconds = self._known.judge.exactly(candidate)
            if self._known.judge.fits(candidate, seconds):
                reward = math.log(self._seconds / seconds)
                (self._state, self._depth), self._seconds = changed, seconds
            else:
                more["reason"] = (
                    f"{candidate.configuration} misses memory, or the policy refuses it"
                )
        stopped = int(action) == _STOP
        return self._observation(), reward, stopped, self._left <= 0, self._info() | more

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions are possible, as ``MaskablePPO`` asks for them."""
        found = [self._changed(action) is not None for action in range(self._actions)]
        return np.array([True, *found[1:]])

    def _candidate(self, state: PlacementState, depth: int) -> Candidate:
        method = self._known.space.method.model_copy(update={"in_flight_per_link": depth})
        return Candidate(state.placement(), method)

    def _changed(self, action: int) -> tuple[PlacementState, int] | None:
        """Return state and depth after an action, or None if it is not possible, or stops."""
        state, depth, most_accelerators = self._state, self._depth, self._accelerators
        stages = len(state.holders)
        if action < _MOVES:
            depth += {_DEEPER: 1, _SHALLOWER: -1}.get(action, 0)
            possible = stages > 1 and self._known.space.deepens and 0 <= depth <= MOST_PER_LINK
            return (state, depth) if possible and depth != self._depth else None
        action -= _MOVES
        if action < 2 * (most_accelerators - 1):
            boundary, backwards = divmod(action, 2)
            if boundary + 1 >= stages:
                return None
            source, target = boundary + backwards, boundary + 1 - backwards
            held = state.stage(source)
            moved = state.moved([held[0] if backwards else held[-1]], target)
            return moved if len(held) > 1 else _without(moved, source, target), depth
        accelerator, target = divmod(action - 2 * (most_accelerators - 1), most_accelerators + 1)
        if accelerator >= self._known.problem.cluster.accelerators:
            return None
        now = next((s for s, held in enumerate(state.holders) if accelerator in held), None)
        if now is not None:
            left = state.holders[now] - {accelerator}
            if now == target or not left:
                return None
            state = state.held_by(now, left)
        if target == most_accelerators:
            return None if now is None else (state, depth)
        if target < stages and self._known.problem.replicate:
            return state.held_by(target, state.holders[target] | {accelerator}), depth
        held = state.stage(stages - 1)
        if target == stages and len(held) > 1:
            added = (*state.holders, frozenset({accelerator}))
            return replace(state, holders=added).moved([held[-1]], stages), depth
        return None

    def _observation(self) -> Observation:
        known, state = self._known, self._state
        problem, stages = known.problem, len(state.holders)
        predicted = problem.predict(state.placement()).stages
        slowest = max(stage.seconds for stage in predicted)
        loads = np.array([stage.seconds for stage in predicted]) / slowest
        found: Observation = {
            key: np.zeros(space.shape, space.dtype) for key, space in self._boxes.items()
        }
        operators, count = found["operators"], len(problem.workload)
        stage_of = np.array(state.stage_of)
        operators[:count, 0] = 1
        operators[:count, 1:4] = known.operators
        operators[:count, 4] = (stage_of + 1) / stages
        operators[:count, 5] = loads[stage_of]
        for stage in range(stages):
            held = state.stage(stage)
            # The first of all stays, and so does the last.
            operators[held[0], 6] = max(operators[held[0], 6], stage > 0)
            operators[held[-1], 6] = max(operators[held[-1], 6], stage < stages - 1)
        found["edges"][:] = self._operators
        if edges := problem.workload.edges:
            found["edges"][: len(edges)] = edges
        speeds = np.array(problem.cluster.speeds)
        accelerators = found["accelerators"]
        accelerators[: len(speeds), 0] = 1
        accelerators[: len(speeds), 1] = speeds / speeds.max()
        for stage, held_by in enumerate(state.holders):
            accelerators[list(held_by), 2:4] = (stage + 1) / stages, loads[stage]
        for stage, one in enumerate(predicted):
            found["stages"][stage] = (
                1,
                len(one.accelerators) / len(speeds),
                min(one.compute_seconds / slowest, 1),
                min(one.all_reduce_seconds / slowest, 1),
                min(one.message_seconds / slowest, 1),
                loads[stage],
                0
                if one.spare_bytes is None
                else min(one.memory_bytes / (one.memory_bytes + one.spare_bytes), 1),
            )
        reference = known.reference.seconds_per_minibatch
        found["plan"][:] = (
            self._depth / MOST_PER_LINK,
            self._left / self.steps,
            math.tanh(math.log(reference / self._seconds)),
        )
        return found

    def _info(self) -> dict[str, Any]:
        return {
            "problem": self._number,
            "seconds": self._seconds,
            "reference_seconds": self._known.reference.seconds_per_minibatch,
            "configuration": self._state.placement().configuration,
            "action_mask": self.action_masks(),
        }


def _without(state: PlacementState, stage: int, other: int) -> PlacementState:
    """Return a state without a stage that has no operators; another gets its accelerators."""
    state = state.held_by(other, state.holders[other] | state.holders[stage])
    holders = state.holders[:stage] + state.holders[stage + 1 :]
    stage_of = tuple(one - (one > stage) for one in state.stage_of)
    return PlacementState(stage_of, holders)
