"""The paper's policy in the guided agent's search, with a purse.

A round of the search takes seconds, a placement of the policy milliseconds. PPO trains it on what
measurements are expected to give, by costs as corrected by those that were made, and the best
placement that it drew in a round is one candidate more for the search's belief. A bandit, by what
it has gained so far, decides how much of its purse it may spend.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from drlpp.capturing.graph import OpGraph
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.planners.calibration.surrogate import Surrogate
from drlpp.schedule.method import Method

if TYPE_CHECKING:
    from drlpp.agents.paper.algorithm import DRLPP

_PARTITIONS, _PLACEMENTS = 8, 2
"""Of a rollout, which is 16 placements. It takes 0.14 s for AlexNet's 20 operators on 4
accelerators and 0.4 s for 135, of which half is PPO's update; a round of the search takes 3 to
10 s."""

_MOST_ACCELERATORS = 64
"""Its scores of pairs grow with the square: for 64 they take 34 MB, for 256 half a gigabyte."""

_TRUST = 4
"""The policy begins as if it had gained so often before."""


@dataclass
class ImaginedCluster:
    """A cluster on which a candidate takes what it is expected to take of what is minimised.

    Attributes:
        surrogate: expects it, by what was measured.
        graph: the model.
        method: of placements without one.
    """

    surrogate: Surrogate
    graph: OpGraph
    method: Method

    @property
    def accelerators(self) -> int:
        """The number of accelerators."""
        return self.surrogate.problem.cluster.accelerators

    def measure(self, plan: ExecutionPlan, minibatches: int = 30) -> Outcome:
        """Return what a measurement is expected to give."""
        seconds = self.surrogate(plan.candidate)
        if not self.surrogate.fits(plan.candidate, seconds):
            return FailedMeasurement(failure="out of memory", reason="it is expected not to fit")
        return Measurement(
            seconds_per_minibatch=seconds,
            median_seconds=seconds,
            standard_deviation_seconds=0.0,
            minibatches=minibatches,
        )

    def close(self) -> None:
        """Do nothing: there are no workers to stop."""


class ImaginedPlacements(PlacementEnv):
    """A placement environment over an imagined cluster.

    Args:
        surrogate: of the measurements so far; it is not told what is asked here.
        graph: the model.
        method: of all placements, but for its depth, which more stages may be too stale for; lists
            are stretched to their stages.
    """

    def __init__(self, surrogate: Surrogate, graph: OpGraph, method: Method) -> None:
        cluster = ImaginedCluster(surrogate.anew(), graph, method)
        known = CostPrior(surrogate.problem, surrogate.space)
        super().__init__(MeasurementMemory(cluster), declared=known)
        usual = surrogate.space.method.in_flight_per_link
        self.method = method.model_copy(update={"in_flight_per_link": usual})

    def candidate(self, action: NDArray[np.int64]) -> Candidate:  # type: ignore[override]
        """Return the candidate that an action describes, which may be one that cannot be run."""
        found = super().candidate(action)
        return replace(found, method=self.method.for_stages(len(found.placement.stages)))


class ImaginingPolicy:
    """The paper's policy, trained by PPO on imagined measurements as far as its purse goes.

    Of placements only those are drawn in which no partition stays without an accelerator. Without
    a clock in it, the same measurements make it draw the same.

    Args:
        graph: the model.
        rollouts: for a round of the search, if the policy had always gained.
        seed: of its weights, its draws and the bandit's.

    Attributes:
        imagined: the mean reward of its last rollout, and the seconds of the best that it drew in
            its last round; None where it drew nothing, or nothing that could run.
    """

    def __init__(self, graph: OpGraph, rollouts: int, seed: int) -> None:
        self._graph = graph
        self._rollouts = rollouts
        self._draw = Random(seed)
        self._gains, self._misses = _TRUST, 1
        self._purse = 0.0
        self._agent: DRLPP | None = None
        self.imagined: tuple[float, float] | None = None

    @staticmethod
    def can_place(graph: OpGraph, accelerators: int) -> bool:
        """Return whether there is something to divide, and not too much to score."""
        return len(graph) > 1 and 1 < accelerators <= _MOST_ACCELERATORS

    def tell(self, *, gained: bool) -> None:
        """Learn whether what was measured is the policy's, and the fastest so far."""
        self._gains += gained
        self._misses += not gained

    def propose(self, surrogate: Surrogate, method: Method) -> Candidate | None:
        """Train for what the purse holds; return the best of what was drawn meanwhile, if anything.

        Thompson sampling of the share of rounds in which it gains says what is put into the purse.

        Args:
            surrogate: of the measurements so far.
            method: of its placements.
        """
        self.imagined = None
        self._purse += self._rollouts * self._draw.betavariate(self._gains, self._misses)
        rollouts, self._purse = divmod(self._purse, 1.0)
        if not rollouts or method.schedule_kind.stages_held > 1:
            return None
        env = ImaginedPlacements(surrogate, self._graph, method)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._draw.randrange(2**31))
            agent = self._trained(env, int(rollouts) * _PARTITIONS * _PLACEMENTS)
        if (best := env.memory.best()) is None:
            return None
        if len(rewards := agent.rollout_buffer.measured_rewards):
            self.imagined = float(rewards.mean()), best[1].seconds_per_minibatch
        return best[0]

    def _trained(self, env: PlacementEnv, placements: int) -> DRLPP:
        if self._agent is None:
            # It takes a second to import.
            from drlpp.agents.paper.algorithm import DRLPP

            self._agent = DRLPP(
                "PlacementPolicy",
                env,
                partitions_per_rollout=_PARTITIONS,
                placements_per_partition=_PLACEMENTS,
                redraws=0,
                policy_kwargs={"feasible": True},
            )
        self._agent.set_env(env)
        return self._agent.learn(placements)
