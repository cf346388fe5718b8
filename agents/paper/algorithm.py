"""DRL-PP's training: PPO over whole trajectories (drl-pp §3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any, ClassVar, NamedTuple, Self

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

from drlpp.agents.paper.policy import PlacementPolicy, PolicyEvaluation
from drlpp.agents.paper.rollout import Rewarded, Trajectory, TrajectoryBuffer
from drlpp.agents.paper.walk import PartitionWalk
from drlpp.capturing.graph import OpGraph
from drlpp.envs import MemorySummary
from drlpp.errors import InvalidInput

_SMALLEST_SPREAD = 0.02
"""Standard deviation of −ln(seconds) below which differences are taken for noise: 2%."""


class Batch(NamedTuple):
    """A rollout, ready for several passes.

    Attributes:
        walks: of the partition schemes whose reward is known.
        walk_advantages: of every scheme, ``(walks,)``.
        trajectories: all placements.
        placement_advantages: of every placement, ``(trajectories,)``.
    """

    walks: list[PartitionWalk]
    walk_advantages: Tensor
    trajectories: list[Trajectory]
    placement_advantages: Tensor


class Update(NamedTuple):
    """One pass over the rollout: the loss without entropies, and what is logged."""

    policy_gradient_loss: Tensor
    partitioner_entropy: Tensor
    scheduler_entropy: Tensor
    approx_kl: float
    clip_fraction: float


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
        policy: ``"PlacementPolicy"``, or a class that extends it.
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
        policy_kwargs: arguments of the policy; its ``graph`` is taken from ``env``.
        device: of the policy (default "cpu"; it is small).
        options: those of every algorithm of stable-baselines3: ``tensorboard_log``, ``seed``,
            ``verbose``, ``stats_window_size``.

    Raises:
        InvalidInput: if ``env`` is no placement environment, or one of another graph than the
            agent was saved with.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"PlacementPolicy": PlacementPolicy}
    policy: PlacementPolicy  # type: ignore[assignment]
    rollout_buffer: TrajectoryBuffer  # type: ignore[assignment]
    clip_range: Schedule

    def __init__(
        self,
        policy: str | type[PlacementPolicy],
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
        self.baseline: float | None = None
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        if self.env is not None:
            self._take_graph(self.env)
        self.rollout_buffer = TrajectoryBuffer()
        self.policy = self.policy_class(  # type: ignore[assignment]
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
        before = self._totals(env)
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
        self._log_rollout(env, before, len(rollout_buffer.content))
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
        self._update_baseline(self.rollout_buffer.measured_rewards)
        batch = self._batch()
        updates: list[Update] = []
        for _ in range(self.n_epochs):
            evaluation = self.policy.evaluate(batch.walks, batch.trajectories)
            update = evaluate_batch(batch, evaluation, clip_range)
            updates.append(update)
            loss = (
                update.policy_gradient_loss
                - self.ent_coef * update.partitioner_entropy
                - self.scheduler_ent_coef * update.scheduler_entropy
            )
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
        self._n_updates += len(updates)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        means = {
            name: float(np.mean([v.item() if isinstance(v, Tensor) else v for v in values]))
            for name, values in zip(Update._fields, zip(*updates, strict=True), strict=True)
        }
        for name, value in means.items():
            self.logger.record(f"train/{name}", value)
        entropies = means["partitioner_entropy"] + means["scheduler_entropy"]
        self.logger.record("train/entropy_loss", -entropies)
        self.logger.record("train/loss", loss.item())
        self.logger.record("train/clip_range", clip_range)

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
        placed = self._advantages(buffer.rewards)
        invalid = torch.tensor([rewarded.invalid for rewarded in buffer.content])
        return Batch(
            walks,
            self._advantages(partition_rewards),
            [rewarded.trajectory for rewarded in buffer.content],
            placed - (placed * invalid).mean(),
        )

    def _advantages(self, rewards: NDArray[np.float64]) -> Tensor:
        measured = self.rollout_buffer.measured_rewards
        if self.baseline is None or not len(measured):
            # Nothing was measured: every choice was bad, and there is no scale.
            return torch.full((len(rewards),), -1.0)
        spread = max(measured.std(), _SMALLEST_SPREAD)
        above = (rewards - self.baseline) / spread
        clipped = above.clip(-self.advantage_clip, self.advantage_clip)
        return torch.from_numpy(clipped.astype(np.float32))

    @staticmethod
    def _totals(env: VecEnv) -> MemorySummary:
        """Return the counts of the memories of all environments together."""
        summaries: list[MemorySummary] = env.get_attr("summary")
        return MemorySummary(
            sum(summary.distinct for summary in summaries),
            sum(summary.failed for summary in summaries),
            min((s.best_seconds for s in summaries if s.best_seconds is not None), default=None),
        )

    def _log_rollout(self, env: VecEnv, before: MemorySummary, steps: int) -> None:
        """Log the totals, the share of new placements in ``steps``, and what the policy drew."""
        after, record = self._totals(env), self.logger.record
        if after.best_seconds is not None:
            record("placement/best_seconds", after.best_seconds)
        record("placement/distinct", after.distinct)
        record("placement/failed", after.failed)
        record("placement/new_share", (after.distinct - before.distinct) / max(steps, 1))
        content = self.rollout_buffer.content
        if stages := [one.trajectory.walk.stages for one in content if one.measured]:
            rewards = self.rollout_buffer.measured_rewards
            record("placement/mean_reward", float(rewards.mean()))
            record("placement/mean_stages", float(np.mean(stages)))
        if self.baseline is not None:
            record("placement/baseline", self.baseline)
        record("placement/invalid_share", float(np.mean([one.invalid for one in content])))
        different = {one.trajectory.action.tobytes() for one in content}
        record("placement/distinct_share", len(different) / len(content))


def evaluate_batch(batch: Batch, evaluation: PolicyEvaluation, clip_range: float) -> Update:
    """Compare the policy as it is now with the one that sampled ``batch``.

    Every choice of a walk has the advantage of its scheme, every choice of an accelerator that of
    its placement. The means over the two kinds of choices are added, so that neither weighs more
    for being more numerous.
    """
    free = [walk.free_log_probs for walk in batch.walks]
    choices = torch.tensor([len(log_probs) for log_probs in free], dtype=torch.int64)
    partitioner = clipped_surrogate(
        evaluation.partitioner_log_probs,
        torch.tensor([log_prob for log_probs in free for log_prob in log_probs]),
        batch.walk_advantages.repeat_interleave(choices),
        clip_range,
    )
    old = torch.tensor([trajectory.log_probs for trajectory in batch.trajectories])
    chosen = evaluation.scheduler_free.cpu()
    scheduler = clipped_surrogate(
        evaluation.scheduler_log_probs,
        old[chosen],
        batch.placement_advantages[:, None].expand_as(old)[chosen],
        clip_range,
    )
    total = len(evaluation.partitioner_log_probs) + len(evaluation.scheduler_log_probs)
    loss, kl, clipped = (
        of_walks + placed for of_walks, placed in zip(partitioner, scheduler, strict=True)
    )
    return Update(
        policy_gradient_loss=loss,
        partitioner_entropy=mean(evaluation.partitioner_entropies),
        scheduler_entropy=mean(evaluation.scheduler_entropies),
        approx_kl=kl.item() / max(total, 1),
        clip_fraction=clipped.item() / max(total, 1),
    )


def clipped_surrogate(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_range: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return PPO's clipped loss, and the sums over the choices of their KL and of those clipped.

    The ratio is clipped by choice. All tensors have shape ``(choices,)``.
    """
    log_ratio = log_probs - old_log_probs.to(log_probs.device)
    advantages = advantages.to(log_probs.device)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    loss = -mean(torch.min(advantages * ratio, advantages * clipped))
    with torch.no_grad():
        kl = (ratio - 1 - log_ratio).sum().double()
        outside = ((ratio - 1).abs() > clip_range).sum()
    return loss, kl, outside


def mean(values: Tensor) -> Tensor:
    """Return the mean, or 0 if there are no values."""
    return values.sum() / max(len(values), 1)
