"""DRL-PP's training: PPO over whole trajectories (drl-pp §3.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle, islice
from random import Random
from typing import Any, ClassVar, Self

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from drlpp.agents.paper.policy import PlacementPolicy, TrajectoryPolicy
from drlpp.agents.paper.rollout import (
    SMALLEST_SPREAD,
    Rewarded,
    StageBaselines,
    Trajectory,
    TrajectoryBuffer,
    best_of,
)
from drlpp.agents.paper.scalars import log_rollout, log_totals, log_updates, totals_of
from drlpp.agents.paper.update import Batch, Update, evaluate_batch, imitation_loss, surprise
from drlpp.agents.paper.walk import Walk
from drlpp.capturing.graph import OpGraph
from drlpp.errors import InvalidInput
from drlpp.placement.measurement import Measurement

_PASSES_OF_A_RESTART = 200
"""The most passes over the best placements in which new weights learn to draw them."""


class DRLPP(OnPolicyAlgorithm):
    """The agent of drl-pp: encoder, partitioner and scheduler trained jointly with PPO.

    A rollout samples ``partitions_per_rollout`` partition schemes and ``placements_per_partition``
    placements of each, and steps the environment once for every placement, so ``total_timesteps``
    counts placements. Where one leaves a partition without an accelerator, "we penalize the
    pipeline scheduler with a negative reward and sample a new placement" (§3.3): the rollout keeps
    both, the penalised one for the scheduler to learn from and the new one, so its length varies.
    A scheduler's choice is rewarded with R_{i,j} = −ln r_{i,j} of its own
    placement, a partitioner's with the mean over the placements of its scheme (§3.4). The ratio
    is clipped by choice, forced choices are left out, and γ = λ = 1: the one reward is at the end.

    The baseline is the average reward (figure 5): an exponential moving average over rollouts of
    the rewards of measured placements. Penalties stay out of it, and out of the scale by which
    advantages are normalised, so that one failed placement does not drown the differences between
    the others; ``advantage_clip`` bounds what it weighs itself.

    Args:
        policy: ``"PlacementPolicy"``, or another ``TrajectoryPolicy``.
        env: a ``PlacementEnv``, or several in a ``VecEnv``.
        learning_rate: of Adam, or its schedule by remaining progress (default 1e-3).
        partitions_per_rollout: n, partition schemes for each update (default 8).
        placements_per_partition: m, placements of each scheme that can run (default 4).
        redraws: how often a placement that cannot run is drawn again at most (default 16). Four
            partitions on four accelerators need 11 draws on average from a uniform policy, and a
            scheme that no schedule can run would be drawn for ever. A scheme that is left with
            fewer placements is rewarded with the mean over those it has.
        n_epochs: passes over a rollout (default 4).
        clip_range: of the probability ratio, or its schedule (default 0.2).
        ent_coef: weight of the mean entropy of the partitioner's choices (default 0.01).
        scheduler_ent_coef: weight of the mean entropy of the scheduler's (default 0.01).
        advantage_clip: bound of advantages, in the rollout's standard deviations, or in 0.02 if
            that is more, so that the noise of a settled policy is not blown up (default 3).
        baseline_decay: weight of the past in the baseline; 0 is the rollout's own average
            (default 0.5).
        max_grad_norm: to which the gradient is clipped (default 0.5).
        imitation_coef: weight of self-imitation, which is not the paper's: minus the mean
            log-probability of the choices that led to the best placements so far (default 0).
        elites: how many of the best distinct placements are imitated (default 8).
        stage_baselines: take the average over placements with as many stages for the baseline, and
            reward the number of stages by the best seen with it, which is not the paper's
            (:class:`~drlpp.agents.paper.rollout.StageBaselines`; default False).
        restart_after: begin with new weights, which first learn to draw the best placements so far,
            when as many rollouts in a row brought no new placement while their average was worse
            than the best by more than 2%; 0, the paper's, is never (default 0).
        policy_kwargs: arguments of the policy; its ``graph`` is taken from ``env``.
        device: of the policy (default "cpu"; it is small).
        options: those of every algorithm of stable-baselines3: ``tensorboard_log``, ``seed``,
            ``verbose``, ``stats_window_size``.

    Raises:
        InvalidInput: if ``env`` is no placement environment, or one of another graph than the
            agent was saved with.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"PlacementPolicy": PlacementPolicy}
    policy: TrajectoryPolicy  # type: ignore[assignment]
    rollout_buffer: TrajectoryBuffer  # type: ignore[assignment]
    clip_range: Schedule

    def __init__(
        self,
        policy: str | type[TrajectoryPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 1e-3,
        partitions_per_rollout: int = 8,
        placements_per_partition: int = 4,
        redraws: int = 16,
        n_epochs: int = 4,
        clip_range: float | Schedule = 0.2,
        ent_coef: float = 0.01,
        scheduler_ent_coef: float = 0.01,
        advantage_clip: float = 3.0,
        baseline_decay: float = 0.5,
        max_grad_norm: float = 0.5,
        imitation_coef: float = 0.0,
        elites: int = 8,
        stage_baselines: bool = False,
        restart_after: int = 0,
        policy_kwargs: dict[str, Any] | None = None,
        device: torch.device | str = "cpu",
        _init_setup_model: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(
            policy=policy,  # type: ignore[arg-type]
            env=env,  # type: ignore[arg-type]
            learning_rate=learning_rate,
            n_steps=partitions_per_rollout * placements_per_partition,
            gamma=1.0,
            gae_lambda=1.0,
            ent_coef=ent_coef,
            vf_coef=0.0,
            max_grad_norm=max_grad_norm,
            use_sde=False,
            sde_sample_freq=-1,
            # A copy, since the graph is added to it.
            policy_kwargs=dict(policy_kwargs or {}),
            device=device,
            supported_action_spaces=(spaces.MultiDiscrete,),
            _init_setup_model=False,
            **options,
        )
        self.partitions_per_rollout = partitions_per_rollout
        self.placements_per_partition = placements_per_partition
        self.redraws = redraws
        self.n_epochs = n_epochs
        self.clip_range = FloatSchedule(clip_range)
        self.scheduler_ent_coef = scheduler_ent_coef
        self.advantage_clip = advantage_clip
        self.baseline_decay = baseline_decay
        self.imitation_coef = imitation_coef
        self.elites = elites
        self.stage_baselines = StageBaselines(baseline_decay) if stage_baselines else None
        self.restart_after = restart_after
        self.restarts = 0
        self.baseline: float | None = None
        self._elites: list[Rewarded] = []
        self._rollouts_stuck = 0
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        if self.env is not None:
            self._take_graph(self.env)
        self.rollout_buffer = TrajectoryBuffer()
        self.policy = self._new_policy()

    def _new_policy(self) -> TrajectoryPolicy:
        return self.policy_class(  # type: ignore[return-value]
            self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs
        ).to(self.device)

    def _take_graph(self, env: VecEnv) -> None:
        if not env.has_attr("graph") or not env.has_attr("summary"):
            raise InvalidInput(
                "DRLPP needs a placement environment, such as drlpp/PlacementLive-v0; this one has "
                "no graph"
            )
        graph: OpGraph = env.get_attr("graph")[0]
        known: OpGraph = self.policy_kwargs.setdefault("graph", graph)
        if known.fingerprint != graph.fingerprint:
            raise InvalidInput(
                f"the agent was trained on {known.model} (graph {known.fingerprint}), but the "
                f"environment places {graph.model} ({graph.fingerprint}); train a new agent"
            )

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Change the environment, to one of the same graph."""
        super().set_env(env, force_reset)
        assert self.env is not None
        self._take_graph(self.env)

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: TrajectoryBuffer,  # type: ignore[override]
        n_rollout_steps: int,
    ) -> bool:
        """Sample trajectories and measure their placements; false if a callback stops it."""
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        callback.on_rollout_start()
        before = totals_of(env)
        walks = self.policy.partition(self.partitions_per_rollout)
        missing = [walk for walk in walks for _ in range(self.placements_per_partition)]
        redraws_left = self.redraws
        while missing:
            # Further placements of the same schemes fill up the last step of all environments.
            idle = -len(missing) % env.num_envs
            trajectories = self.policy.place([*missing, *islice(cycle(missing), idle)])
            results, stopped = self._measure([t.action for t in trajectories], env, callback)
            rollout_buffer.content += [
                Rewarded(trajectory, reward, info.get("error_type"))
                for trajectory, (reward, info) in zip(trajectories, results, strict=False)
            ]
            if stopped:
                return False
            # Those that cannot run are drawn again (§3.3).
            again = redraws_left > 0
            missing = rollout_buffer.missing(self.placements_per_partition) if again else []
            redraws_left -= 1
        after = totals_of(env)
        self._rollouts_stuck = 0 if after.distinct > before.distinct else self._rollouts_stuck + 1
        log_totals(self.logger, before, after, len(rollout_buffer.content))
        log_rollout(self.logger, rollout_buffer, self.baseline)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _measure(
        self, actions: Sequence[NDArray[np.int64]], env: VecEnv, callback: BaseCallback
    ) -> tuple[list[tuple[float, dict[str, Any]]], bool]:
        """Return reward and info of every action, of fewer if a callback stops it; and whether."""
        for index in range(env.num_envs):
            env.env_method("prefetch", np.stack(actions[index :: env.num_envs]), indices=index)
        results: list[tuple[float, dict[str, Any]]] = []
        for start in range(0, len(actions), env.num_envs):
            batch = actions[start : start + env.num_envs]
            observations, rewards, dones, infos = env.step(np.stack(batch))
            self._last_obs = observations  # type: ignore[assignment]
            self._last_episode_starts = dones
            self.num_timesteps += env.num_envs
            results += zip(map(float, rewards), infos, strict=True)
            callback.update_locals(locals())
            if not callback.on_step():
                return results, True
            self._update_info_buffer(infos, dones)
        return results, False

    def train(self) -> None:
        """Make PPO's update on the rollout, all of it in every pass."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        clip_range = self.clip_range(self._current_progress_remaining)
        buffer = self.rollout_buffer
        self._update_baseline(buffer.measured_rewards)
        if self.stage_baselines is not None:
            self.stage_baselines.update(buffer.content)
        self._elites = self._choose_elites()
        if self.restart_after:
            self.logger.record("placement/restarts", self.restarts)
        if self._stuck:
            self._restart()
            return
        batch = self._batch()
        updates: list[Update] = []
        losses: list[float] = []
        for _ in range(self.n_epochs):
            evaluation = self.policy.evaluate(batch.walks, batch.trajectories)
            update = evaluate_batch(batch, evaluation, clip_range)
            updates.append(update)
            loss = (
                update.policy_gradient_loss
                - self.ent_coef * update.partitioner_entropy
                - self.scheduler_ent_coef * update.scheduler_entropy
            )
            if self.imitation_coef and self._elites:
                loss = loss + self.imitation_coef * imitation_loss(self.policy, self._elites)
            losses.append(loss.item())
            self._step(loss)
        self._n_updates += len(updates)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        log_updates(self.logger, updates, losses, clip_range)

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "DRLPP",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Sample, measure and update until ``total_timesteps`` placements have been asked for.

        torch runs on one thread meanwhile: the networks are small, and the workers of a live
        cluster may need the other cores.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            own = total_timesteps, callback, log_interval, tb_log_name
            return super().learn(*own, reset_num_timesteps, progress_bar)
        finally:
            torch.set_num_threads(threads)

    def remember(self) -> None:
        """Take the placements that the environments remember for what this agent has found."""
        assert self.env is not None
        graph, draw, found = self.policy.graph, Random(self.seed), []
        for outcomes in self.env.get_attr("outcomes"):
            for candidate, outcome in outcomes.items():
                placement = candidate.placement
                idle = len(placement.accelerators) < self.policy.accelerators
                if isinstance(outcome, Measurement) and not idle and not placement.is_folded:
                    walk = Walk(graph, self.policy.accelerators).retraced(placement, draw)
                    held = placement.stage_of_accelerator(self.policy.accelerators)
                    trajectory = Trajectory(walk, held, (math.nan,) * len(held))
                    reward = -math.log(outcome.seconds_per_minibatch)
                    found.append(Rewarded(trajectory, reward, None))
        self._elites = best_of(found, self.elites)
        if self.stage_baselines is not None:
            self.stage_baselines.update(found)

    def _choose_elites(self) -> list[Rewarded]:
        """Return the best distinct placements so far."""
        return best_of([*self._elites, *self.rollout_buffer.content], self.elites)

    @property
    def _stuck(self) -> bool:
        """Whether the policy has settled on something worse than the best that was found."""
        measured = self.rollout_buffer.measured_rewards
        settled = 0 < self.restart_after <= self._rollouts_stuck and len(measured) > 0
        return settled and measured.mean() < self._elites[0].reward - SMALLEST_SPREAD

    def _restart(self) -> None:
        """Begin with new weights, which learn to draw the best placements half of the time."""
        self.restarts += 1
        self._rollouts_stuck = 0
        self.policy = self._new_policy()
        enough = math.log(2 * len(self._elites))
        for _ in range(_PASSES_OF_A_RESTART):
            loss = surprise(self.policy, self._elites)
            if loss.item() <= enough:
                break
            self._step(loss)

    def _step(self, loss: Tensor) -> None:
        self.policy.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()

    def _update_baseline(self, measured: NDArray[np.float64]) -> None:
        if len(measured):
            average = float(measured.mean())
            past = average if self.baseline is None else self.baseline
            self.baseline = self.baseline_decay * past + (1 - self.baseline_decay) * average

    def _batch(self) -> Batch:
        """Return the rollout with how much better than expected each reward is.

        Where nine placements in ten cannot run, pushing away from those nine is mostly noise, and
        the tenth has to stand out: so the average of the penalties is taken off all placements'.
        """
        buffer = self.rollout_buffer
        walks, partition_rewards = buffer.partition_rewards()
        stages = [walk.stages for walk in walks]
        if self.stage_baselines is not None:
            partition_rewards += self.stage_baselines.standings(stages)
        trajectories = [rewarded.trajectory for rewarded in buffer.content]
        placed = self._advantages(buffer.rewards, [t.walk.stages for t in trajectories])
        invalid = torch.tensor([rewarded.invalid for rewarded in buffer.content])
        return Batch(
            walks,
            self._advantages(partition_rewards, stages),
            trajectories,
            placed - (placed * invalid).mean(),
        )

    def _advantages(self, rewards: NDArray[np.float64], stages: Sequence[int]) -> Tensor:
        by_stages = self.stage_baselines
        baseline = self.baseline if by_stages is None else by_stages.averages(stages)
        measured = self.rollout_buffer.measured_rewards
        if baseline is None or not len(measured):
            # Nothing was measured: every choice was bad, and there is no scale.
            return torch.full((len(rewards),), -1.0)
        spread = max(measured.std(), SMALLEST_SPREAD)
        above = ((rewards - baseline) / spread).clip(-self.advantage_clip, self.advantage_clip)
        return torch.from_numpy(above.astype(np.float32))
