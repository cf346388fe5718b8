"""The environment in which one step measures one placement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from drlpp.capturing.graph import OpGraph
from drlpp.envs.cost_prior import CostPrior
from drlpp.envs.measuring.memory import MeasurementMemory, MemorySummary
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method

INVALID = "invalid placement"
"""The failure of a candidate that cannot be run at all."""

INVALID_REWARD = -10.0
"""A reward below −ln(seconds) of anything that takes less than six hours for a minibatch."""


class PlacementEnv(gym.Env[NDArray[np.float32], NDArray[np.int64]]):
    """Place a model on accelerators; one step measures one placement.

    ## Description
    A placement is drawn up by the agent as a whole and measured by running it (or predicted by the
    simulator). So the number of steps is the number of placements that were asked for, and every
    distinct one is measured once: asking again is answered from memory. N is the number of
    operators of the model, A that of accelerators.

    ## Action Space
    `MultiDiscrete([A] * N + [A] * A)`. Stages may be numbered with gaps; their order counts. An
    accelerator that holds a stage without operators is idle. The method is not chosen: it is the
    attribute `method`, that of the space of `declared`, or the measurer's.

    | Index       | Meaning                                          | Range    |
    |-------------|--------------------------------------------------|----------|
    | 0 … N − 1   | stage of operator 0 … N − 1                      | 0 … A − 1|
    | N … N+A−1   | stage that accelerator 0 … A − 1 holds           | 0 … A − 1|

    ## Observation Space
    `Box(0, 1, (1,), float32)`: always `[0]`. The model and the accelerators are constants of the
    environment, and the graph is its attribute `graph`.

    ## Rewards
    −ln(seconds per minibatch) (drl-pp eq. 2), or `invalid_reward` for a placement that cannot run
    or that failed when it ran.

    | Key of `info`   | When                     | Meaning                                       |
    |-----------------|--------------------------|-----------------------------------------------|
    | `seconds`       | measured                 | seconds per minibatch                         |
    | `configuration` | measured                 | replicas per stage, like `2-1-1`              |
    | `stages`        | measured                 | number of stages                              |
    | `measurement`   | measured                 | all that was measured, a `Measurement`        |
    | `error_type`    | cannot run, or failed    | `invalid placement`, `out of memory`,         |
    |                 |                          | `worker lost twice`, `timeout`,               |
    |                 |                          | `error in the model`                          |
    | `reason`        | cannot run, or failed    | a sentence: what is wrong, what would be right|

    How many placements were measured and failed is the attribute `summary`; it is no part
    of `info`, which for the simulator depends on the action alone.

    ## Starting State
    The only one. `reset` touches nothing.

    ## Episode End
    Every episode terminates after one step.

    ## Arguments

    | Argument         | Default | Meaning                                                    |
    |------------------|---------|------------------------------------------------------------|
    | `memory`         |         | measures placements and remembers them                     |
    | `invalid_reward` | −10     | reward of a placement that cannot run or failed            |
    | `owns_measurer`  | `False` | whether `close` closes the measurer                        |
    | `declared`       | guessed | what is known of costs and accelerators beforehand; what   |
    |                  |         | is staler than its space allows cannot run                 |
    | `budget`         | `None`  | `prefetch` leaves out what would bring the distinct        |
    |                  |         | placements measured above this                             |
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (the annotation is gymnasium's)

    def __init__(
        self,
        memory: MeasurementMemory,
        invalid_reward: float = INVALID_REWARD,
        owns_measurer: bool = False,
        declared: CostPrior | None = None,
        budget: int | None = None,
    ) -> None:
        method = memory.measurer.method
        self.memory = memory
        self.invalid_reward = invalid_reward
        self._owns_measurer = owns_measurer
        self.declared = declared or CostPrior.from_sizes(memory.graph, memory.accelerators, method)
        self.budget = budget
        space = self.declared.space
        if space is not None:
            memory.most_staleness = space.most_staleness
        self.method = space.method if space else method
        check_one_stage_each(self.method)
        size = len(memory.graph) + memory.accelerators
        self.action_space = spaces.MultiDiscrete([memory.accelerators] * size)
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    @property
    def graph(self) -> OpGraph:
        """The model that is placed."""
        return self.memory.graph

    @property
    def summary(self) -> MemorySummary:
        """What has been measured so far."""
        return self.memory.summary

    def close(self) -> None:
        """Close the measurer if it was opened for this environment."""
        if self._owns_measurer:
            self.memory.close()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode; there is nothing to prepare."""
        super().reset(seed=seed, options=options)
        return _observation(), {}

    def step(
        self, action: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Measure the candidate that ``action`` describes.

        Raises:
            InvalidInput: it is not of the action space.
        """
        self._check_action(action)
        reward, info = self._reward(self.candidate(action))
        return _observation(), reward, True, False, info

    def candidate(self, action: Sequence[int] | NDArray[np.int64]) -> Candidate:
        """Return the candidate that an action describes, which may be one that cannot be run."""
        numbers, operators = [int(number) for number in action], len(self.graph)
        placement = Placement.from_assignment(numbers[:operators], numbers[operators:])
        return Candidate(placement, self.method)

    def prefetch(self, actions: NDArray[np.int64]) -> None:
        """Measure what steps are going to ask for, all placements in turns.

        With a single repetition there are no turns to take, and it is left to the steps. Actions
        that describe no valid placement are left to them in any case.

        Args:
            actions: of the coming steps, a row for each.
        """
        if self.memory.repetitions == 1:
            return
        left = None if self.budget is None else max(self.budget - self.memory.distinct, 0)
        self.memory.measure_together(map(self.candidate, actions), left)

    def outcome(self, candidate: Candidate) -> Outcome:
        """Measure a candidate; one that cannot be run has failed, which is not remembered."""
        try:
            return self.memory.measure(candidate)
        except InvalidInput as error:
            # Also one that the method cannot run, such as 2BW with too many minibatches in flight.
            return FailedMeasurement(failure=INVALID, reason=str(error))

    def _reward(self, candidate: Candidate) -> tuple[float, dict[str, Any]]:
        """Return −ln(seconds per minibatch) of a candidate (drl-pp eq. 2) and ``info``."""
        outcome = self.outcome(candidate)
        if isinstance(outcome, FailedMeasurement):
            return self.invalid_reward, {"error_type": outcome.failure, "reason": outcome.reason}
        seconds = outcome.seconds_per_minibatch
        return -math.log(seconds), {
            "seconds": seconds,
            "configuration": candidate.configuration,
            "stages": len(candidate.placement.stages),
            "measurement": outcome,
        }

    def _check_action(self, action: Any) -> None:
        """Refuse an action of another length, or with a number out of range."""
        found = np.asarray(action)
        most = getattr(self.action_space, "nvec", self.memory.accelerators)
        if found.shape != self.action_space.shape:
            raise InvalidInput(
                f"the action has shape {found.shape}; expected {self.action_space.shape}, as the "
                "action space"
            )
        if found.dtype.kind not in "biuf":
            raise InvalidInput(f"the action is {action!r}; expected whole numbers")
        wrong = np.flatnonzero((found < 0) | (found >= most) | (found != np.floor(found)))
        if wrong.size:
            number = int(wrong[0])
            raise InvalidInput(
                f"entry {number} of the action is {found[number]:.9g}; expected a whole number "
                f"from 0 to {np.broadcast_to(most, found.shape)[number] - 1}"
            )


def check_one_stage_each(method: Method) -> None:
    """Raise InvalidInput where accelerators hold two stages each, which no policy draws."""
    if method.schedule_kind.stages_held > 1:
        raise InvalidInput(
            f"an agent's policy gives every accelerator one stage, and schedule "
            f"{method.schedule} needs two; plan such a placement with `drlpp plan`, or "
            "let the guided agent choose it: another schedule that flushes, --vary schedule"
        )


def _observation() -> NDArray[np.float32]:
    return np.zeros(1, np.float32)
