"""The environment that builds a placement decision by decision, with action masks."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from drlpp.envs.codec import ActionCodec
from drlpp.envs.cost_prior import CostPrior
from drlpp.envs.measuring.memory import MeasurementMemory
from drlpp.envs.measuring_env import INVALID_REWARD, MeasuringEnv


class StepwisePlacementEnv(MeasuringEnv):
    """Place a model on accelerators, one operator or accelerator at a time.

    ## Description
    The same placements as `PlacementEnv`, for agents that take one small decision at a time, such
    as `MaskablePPO`: first the stage of each operator, in the order of the graph, then the stage
    that each accelerator holds. All run with the measurer's method: there is no decision on it. An
    agent that keeps to `action_masks()` always ends with a placement that can run, and every such
    placement that leaves no accelerator idle can be built. N is the number of operators, A that of
    accelerators.

    ## Action Space
    `Discrete(A)`: a stage. An operator may stand in the stage of the last operator that it reads,
    or in a later one. An accelerator may hold any stage that has operators, as long as enough
    accelerators are left for the stages that have none.

    ## Observation Space
    `Box(0, 1, (N + A,), float32)`.

    | Index     | Meaning                                                          | Range |
    |-----------|------------------------------------------------------------------|-------|
    | 0 … N − 1 | (stage + 1) / A of each operator, 0 while it is not decided      | 0 … 1 |
    | N … N+A−1 | (stage + 1) / A of each accelerator, 0 while it is not decided   | 0 … 1 |

    The first 0 is what the next action decides.

    ## Rewards
    0 for every decision but the last, then that of `PlacementEnv`: −ln(seconds per minibatch)
    (drl-pp eq. 2), or `invalid_reward`; `info` is the same too. An action that is masked out gets
    `invalid_reward` and `error_type` is `invalid action`.

    ## Starting State
    Nothing is decided.

    ## Episode End
    After N + A decisions, or with the first action that is masked out.

    ## Arguments

    | Argument         | Default | Meaning                                                    |
    |------------------|---------|------------------------------------------------------------|
    | `memory`         |         | measures placements and remembers them                     |
    | `invalid_reward` | −10     | reward of a masked action, or a placement that failed      |
    | `owns_measurer`  | `False` | whether `close` closes the measurer                        |
    | `declared`       | guessed | what is known of costs and accelerators beforehand         |
    """

    def __init__(
        self,
        memory: MeasurementMemory,
        invalid_reward: float = INVALID_REWARD,
        owns_measurer: bool = False,
        declared: CostPrior | None = None,
    ) -> None:
        placements = ActionCodec(len(memory.graph), memory.accelerators, memory.measurer.method)
        super().__init__(memory, invalid_reward, owns_measurer, declared, placements)
        self._decisions = len(self.codec.space.nvec)
        self._stages: list[int] = []
        self.action_space = spaces.Discrete(self.accelerators)
        self.observation_space = spaces.Box(0.0, 1.0, (self._decisions,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin a new placement."""
        super().reset(seed=seed, options=options)
        self._stages = []
        return self._observation(), {}

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Decide on the next operator or accelerator; the last decision measures.

        Raises:
            InvalidInput: the action is not of the action space.
        """
        self._check_action(action)
        stage = int(action)
        mask = self.action_masks()
        if not mask[stage]:
            allowed = ", ".join(str(index) for index in np.flatnonzero(mask))
            reward, info = self._penalty(
                "invalid action",
                f"decision {len(self._stages)} cannot be stage {stage}; allowed here: {allowed}",
            )
            return self._observation(), reward, True, False, info
        self._stages.append(stage)
        if len(self._stages) < self._decisions:
            return self._observation(), 0.0, False, False, {}
        reward, info = self._reward(self.codec.decode(self._stages))
        return self._observation(), reward, True, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the stages that the next action may choose, at least one of them.

        The shape is ``(A,)``.
        """
        stage_of, held, _ = self.codec.split(self._stages)
        mask = np.zeros(self.accelerators, np.bool_)
        if len(stage_of) < len(self.graph):
            read = self.graph.predecessors[len(stage_of)]
            mask[max((stage_of[operator] for operator in read), default=0) :] = True
            return mask
        used = set(stage_of)
        unheld = used - set(held)
        # With as many accelerators left as stages without one, each has to take such a stage.
        left = self.accelerators - len(held)
        mask[list(unheld if len(unheld) >= left else used)] = True
        return mask

    def _observation(self) -> NDArray[np.float32]:
        observation = np.zeros(self._decisions, np.float32)
        observation[: len(self._stages)] = (np.array(self._stages) + 1) / self.accelerators
        return observation
