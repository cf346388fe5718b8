"""What both placement environments share: a memory, a codec, and the reward of a candidate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from drlpp.capturing.graph import OpGraph
from drlpp.envs.codec import ActionCodec
from drlpp.envs.cost_prior import CostPrior
from drlpp.envs.measuring.memory import MeasurementMemory, MemorySummary
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Outcome

INVALID = "invalid placement"
"""The failure of a candidate that cannot be run at all."""

INVALID_REWARD = -10.0
"""A reward below −ln(seconds) of anything that takes less than six hours for a minibatch."""


class MeasuringEnv(gym.Env[NDArray[np.float32], Any]):
    """An environment whose episodes end with the measurement of one placement.

    Args:
        memory: measures placements, each distinct one once.
        invalid_reward: the reward of a placement that cannot run or that failed.
        owns_measurer: whether closing the environment closes the measurer.
        declared: what is known beforehand; if left out, costs are guessed from sizes. If it has a
            space, what is staler than that allows is not measured, but cannot run.
        codec: between candidates and actions; if left out, actions are placements, run with the
            measurer's method, or with one of the space that is declared.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (the annotation is gymnasium's)

    def __init__(
        self,
        memory: MeasurementMemory,
        invalid_reward: float = INVALID_REWARD,
        owns_measurer: bool = False,
        declared: CostPrior | None = None,
        codec: ActionCodec | None = None,
    ) -> None:
        self.memory = memory
        self.declared = declared or CostPrior.from_sizes(
            memory.graph, memory.accelerators, memory.measurer.method
        )
        space = self.declared.space
        if space is not None:
            memory.most_staleness = space.most_staleness
        self.codec = codec or ActionCodec(
            len(memory.graph),
            memory.accelerators,
            self.declared.method if space else memory.measurer.method,
            space.methods if space else (),
        )
        self.invalid_reward = invalid_reward
        self._owns_measurer = owns_measurer

    @property
    def graph(self) -> OpGraph:
        """The model that is placed."""
        return self.memory.graph

    @property
    def accelerators(self) -> int:
        """The number of accelerators, which is also the largest number of stages."""
        return self.memory.accelerators

    @property
    def summary(self) -> MemorySummary:
        """What has been measured so far."""
        return self.memory.summary

    @property
    def outcomes(self) -> dict[Candidate, Outcome]:
        """Everything measured so far, in order."""
        return dict(self.memory.outcomes)

    def give_up_above(self, seconds: float | None) -> None:
        """Run no candidate again that takes more seconds per minibatch; None: run all as often.

        It matters where a measurement is several runs (:class:`MeasurementMemory`).
        """
        self.memory.limit_seconds = seconds

    def close(self) -> None:
        """Close the measurer if it was opened for this environment."""
        if self._owns_measurer:
            self.memory.close()

    def _reward(self, candidate: Candidate) -> tuple[float, dict[str, Any]]:
        """Return −ln(seconds per minibatch) of a candidate (drl-pp eq. 2) and ``info``.

        One that cannot be run does not count as measured.
        """
        try:
            outcome = self.memory.measure(candidate)
        except InvalidInput as error:
            # Also one that the method cannot run, such as 2BW with too many minibatches in flight.
            return self._penalty(INVALID, str(error))
        if isinstance(outcome, FailedMeasurement):
            return self._penalty(outcome.failure, outcome.reason)
        seconds = outcome.seconds_per_minibatch
        return -math.log(seconds), {
            "seconds": seconds,
            "configuration": candidate.configuration,
            "stages": len(candidate.placement.stages),
            "measurement": outcome,
        }

    def _check_action(self, action: Any) -> None:
        """Raise if an action is none of the action space.

        Raises:
            InvalidInput: it has another length, or a number out of range.
        """
        found, space = np.asarray(action), self.action_space
        assert isinstance(space, spaces.MultiDiscrete | spaces.Discrete)
        most = np.array(space.n if isinstance(space, spaces.Discrete) else space.nvec)
        if found.shape != most.shape:
            raise InvalidInput(
                f"the action has shape {found.shape}; expected {most.shape}, as the action space"
            )
        if found.dtype.kind not in "biuf":
            raise InvalidInput(f"the action is {action!r}; expected whole numbers")
        wrong = np.flatnonzero((found < 0) | (found >= most) | (found != np.floor(found)))
        if wrong.size:
            number = int(wrong[0])
            where = f"entry {number} of the action" if most.shape else "the action"
            raise InvalidInput(
                f"{where} is {found.flat[number]:.9g}; expected a whole number from 0 to "
                f"{most.flat[number] - 1}"
            )

    def _penalty(self, error_type: str, reason: str) -> tuple[float, dict[str, Any]]:
        return self.invalid_reward, {"error_type": error_type, "reason": reason}


def outcome_in(info: Mapping[str, Any]) -> Outcome:
    """Return what was measured in the last step of an episode, from its ``info``."""
    if "error_type" in info:
        return FailedMeasurement(failure=info["error_type"], reason=info["reason"])
    outcome: Outcome = info["measurement"]
    return outcome
