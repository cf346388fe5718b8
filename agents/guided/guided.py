"""The guided agent: it measures where the clock and the corrected simulator may disagree.

Each rollout:

1. **Correct.** Everything measured so far corrects the declared costs, and so the simulator and
   what the policy sees of the model and the cluster
   (:mod:`drlpp.planners.calibration.recalibration`).
2. **Imagine**, if the policy practises. It samples placements, and the corrected simulator rewards
   them, which costs no measurement.
3. **Measure.** Costs are drawn from what is still uncertain, and the best of what was imagined are
   among what the searches in the draws begin with. Measured is the candidate, placement and method,
   by which the most is expected to be saved.
4. **Learn**, if it does: PPO on what was imagined, and self-imitation of the best measured.
"""

from __future__ import annotations

import math
import random
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from drlpp.agents.guided.retrace import assign_idle_accelerators, retrace
from drlpp.agents.paper.algorithm import DRLPP, Update, mean
from drlpp.agents.paper.rollout import Rewarded, Trajectory, TrajectoryBuffer
from drlpp.agents.transfer.context import PlacementContext
from drlpp.agents.transfer.transfer_policy import TransferPolicy
from drlpp.envs import ActionCodec, CostPrior
from drlpp.envs.measuring.search_file import Confidence
from drlpp.envs.placement_env import outcome_in
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.planners.calibration.recalibration import Options, Recalibration
from drlpp.planners.search import Space

_CANDIDATES = 4
"""How many of the best imagined placements compete to be measured."""

_ONE_BY_ONE = 16
"""How many placements are measured one by one: the first measurements teach the most."""


class GuidedDRLPP(DRLPP):
    """An agent that plans, corrects what it plans with, and practises in between if asked to.

    ``total_timesteps`` counts measured placements, as for :class:`DRLPP`. What is declared of costs
    and accelerators comes from the environment, and may be wrong or guessed. Learning ends early
    when the search has settled.

    Args:
        policy: ``"TransferPolicy"``.
        env: a ``PlacementEnv``, or several in a ``VecEnv``.
        proposals: placements measured in a rollout, after the first sixteen (default 4).
        partitions_per_rollout: partition schemes imagined for each update (default 8).
        placements_per_partition: imagined placements of each scheme (default 2).
        give_up: where a measurement is several runs, a candidate that is this many times as slow as
            the fastest measured is not run again; 0 for never (default 1.5).
        practice: whether the policy imagines placements and learns; without it, the agent plans
            and searches only (default False).
        imitation_coef: weight of self-imitation: minus the mean log-probability of the choices that
            lead to the best measured placements (default 0).
        elites: how many of these are imitated (default 8).
        search: the parts of the search (default all).
        options: all other arguments are those of :class:`DRLPP`.

    Raises:
        InvalidInput: as :class:`DRLPP`.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"TransferPolicy": TransferPolicy}
    policy: TransferPolicy

    def __init__(
        self,
        policy: str | type[TransferPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 3e-4,
        proposals: int = 4,
        partitions_per_rollout: int = 8,
        placements_per_partition: int = 2,
        give_up: float = 1.5,
        practice: bool = False,
        imitation_coef: float = 0.0,
        elites: int = 8,
        search: Options | None = None,
        _init_setup_model: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(
            policy,
            env,
            learning_rate,
            partitions_per_rollout,
            placements_per_partition,
            _init_setup_model=False,
            **options,
        )
        self.proposals = proposals
        self.give_up = give_up
        self.practice = practice
        self.imitation_coef = imitation_coef
        self.elites = elites
        self.search = search or Options()
        self.best_action: list[int] | None = None
        self._recalibration: Recalibration | None = None
        self._imitated: list[Trajectory] = []
        if _init_setup_model:
            self._setup_model()

    def _take_graph(self, env: VecEnv) -> None:
        super()._take_graph(env)
        declared: CostPrior = env.get_attr("declared")[0]
        self.policy_kwargs.setdefault(
            "context",
            PlacementContext.of_workload(declared.problem.workload, declared.problem.cluster),
        )
        self._recalibration = None

    def _setup_model(self) -> None:
        super()._setup_model()
        # A saved agent has weights of its own.
        self.policy_kwargs.pop("pretrained", None)

    def predict(
        self,
        observation: NDArray[np.float32] | dict[str, NDArray[np.float32]],
        state: tuple[NDArray[np.float32], ...] | None = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[np.int64], tuple[NDArray[np.float32], ...] | None]:
        """Return the fastest placement measured so far, or one that the policy samples.

        Args:
            observation: of one environment, or of several.
            state: not used.
            episode_start: not used.
            deterministic: for the fastest measured; the policy's likeliest before any is.
        """
        if deterministic and self.best_action is not None:
            assert isinstance(observation, np.ndarray)
            best = np.array(self.best_action)
            return (np.tile(best, (len(observation), 1)) if observation.ndim > 1 else best), state
        return super().predict(observation, state, episode_start, deterministic)

    def _excluded_save_params(self) -> list[str]:
        # It is made again from what the environment remembers.
        return [*super()._excluded_save_params(), "_recalibration"]

    def recalibration(self, env: VecEnv) -> Recalibration:
        """Return the search, which knows everything that the environments remember."""
        if self._recalibration is None:
            known: CostPrior = env.get_attr("declared")[0]
            declared = known.with_seed(self.seed or 0)
            space = declared.space or Space(self._codec(env).methods[0], frozenset())
            found = Recalibration(
                declared.problem,
                space,
                self.search,
                planned=(lambda: declared.planned) if declared.space else None,
            )
            for outcomes in env.get_attr("outcomes"):
                for candidate, outcome in outcomes.items():
                    found.tell(candidate, outcome)
            self._recalibration = found
        return self._recalibration

    def confidence(self) -> Confidence | None:
        """Return how sure the search is of the fastest that was measured; None if nothing was."""
        search = self._recalibration
        if search is None or not (best := search.best(1)):
            return None
        belief = search.last_word()
        return Confidence(
            configuration=best[0][0].configuration,
            method=best[0][0].method,
            share=belief.confidence,
            expected_gain=belief.gain,
        )

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: TrajectoryBuffer,  # type: ignore[override]
        n_rollout_steps: int,
    ) -> bool:
        """Imagine placements, and measure the most promising; false if a callback stops it."""
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        callback.on_rollout_start()
        before = self._totals(env)
        search, codec = self.recalibration(env), self._codec(env)
        imagined = self._imagine(search, codec) if self.practice else []
        count = 1 if len(search.measured) < _ONE_BY_ONE else self.proposals
        count += -count % env.num_envs
        candidates = search.propose(count, imagined)
        if not candidates:
            return False
        if (belief := search.last_belief) is not None:
            self.logger.record("placement/expected_gain", belief.gain)
            self.logger.record("placement/confidence", belief.confidence)
        # Every environment takes a step; those that are left over repeat one.
        filled = candidates + [candidates[-1]] * (-len(candidates) % env.num_envs)
        if self.give_up and (fastest := search.best(1)):
            env.env_method("give_up_above", self.give_up * fastest[0][1])
        # By steps, which callbacks and the log of episodes follow.
        results, stopped = self._measure(list(map(codec.encode, filled)), env, callback)
        for candidate, (_, info) in zip(candidates, results, strict=False):
            search.tell(candidate, outcome_in(info))
        if search.best(1):
            self.best_action = codec.encode(search.best(1)[0][0]).tolist()
        self._log_rollout(env, before, len(filled))
        if stopped:
            return False
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def train(self) -> None:
        """Train by PPO on imagined placements, with self-imitation of measured ones."""
        if self.rollout_buffer.content:
            self._imitated = self._best_measured()
            super().train()

    def _loss(self, update: Update) -> Tensor:
        loss = super()._loss(update)
        if not (self.imitation_coef and self._imitated):
            return loss
        replayed = self.policy.evaluate([one.walk for one in self._imitated], self._imitated)
        chosen = mean(replayed.partitioner_log_probs), mean(replayed.scheduler_log_probs)
        return loss + self.imitation_coef * (-chosen[0] - chosen[1])

    @staticmethod
    def _codec(env: VecEnv) -> ActionCodec:
        codec: ActionCodec = env.get_attr("codec")[0]
        return codec

    def _imagine(self, search: Recalibration, codec: ActionCodec) -> list[Candidate]:
        """Fill the buffer with the policy's placements; returns the best of them."""
        surrogate = search.surrogate
        problem = surrogate.problem
        self.policy.set_context(PlacementContext.of_workload(problem.workload, problem.cluster))
        found: dict[Candidate, float] = {}
        for trajectory in self.policy.sample(
            self.partitions_per_rollout, self.placements_per_partition
        ):
            candidate = codec.decode(trajectory.action)
            seconds = found[candidate] = surrogate(candidate)
            fits = surrogate.fits(candidate, seconds)
            self.rollout_buffer.content.append(
                Rewarded(
                    trajectory,
                    -math.log(seconds) if fits else self._penalty,
                    None if fits else "out of memory",
                )
            )
        fitting = [c for c in found if surrogate.fits(c, found[c])]
        return sorted(fitting, key=lambda candidate: found[candidate])[:_CANDIDATES]

    @property
    def _penalty(self) -> float:
        assert self.env is not None
        return float(self.env.get_attr("invalid_reward")[0])

    def _best_measured(self) -> list[Trajectory]:
        """Return walks to the best that was measured; none gives an accelerator two stages."""
        assert self._recalibration is not None
        search = self._recalibration
        draw = random.Random(int(torch.randint(2**31, ()).item()))

        def objective(placement: Placement) -> float:
            return search.surrogate(Candidate(placement, search.space.method))

        best = search.best(len(search.measured))
        walked = [one.placement for one, _ in best if not one.placement.is_folded]
        accelerators, context = self.policy.accelerators, self.policy.context
        return [
            retrace(context, assign_idle_accelerators(one, accelerators, objective), draw)
            for one in walked[: self.elites]
        ]
