"""The policy: encoder, partitioner and scheduler behind stable-baselines3's interface."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor

from drlpp.agents.paper.encoder import GraphEncoder
from drlpp.agents.paper.features import node_features, undirected_edges
from drlpp.agents.paper.partitioner import RecurrentPartitioner
from drlpp.agents.paper.scheduler import PipelineScheduler
from drlpp.agents.paper.trajectory import Trajectory
from drlpp.agents.paper.walk import PartitionWalk
from drlpp.capturing.graph import OpGraph
from drlpp.envs import ActionCodec


class PolicyEvaluation(NamedTuple):
    """Log-probabilities and entropies of replayed choices, forced ones left out.

    Attributes:
        partitioner_log_probs: ``(choices of the walks,)``, walk by walk.
        partitioner_entropies: the same.
        scheduler_log_probs: ``(free choices of accelerators,)``, placement by placement.
        scheduler_entropies: the same.
        scheduler_free: which choices those are, ``(placements, accelerators)``.
    """

    partitioner_log_probs: Tensor
    partitioner_entropies: Tensor
    scheduler_log_probs: Tensor
    scheduler_entropies: Tensor
    scheduler_free: Tensor


class TrajectoryPolicy(BasePolicy):
    """What DRLPP trains: it samples trajectories and replays them."""

    optimizer: torch.optim.Optimizer

    @abstractmethod
    def sample(
        self, partitions: int, placements: int = 1, deterministic: bool = False
    ) -> list[Trajectory]:
        """Sample partition schemes, and several placements of each (drl-pp §3.4).

        Returns:
            ``partitions · placements`` trajectories; those of one scheme stand next to each other
            and share its walk.
        """

    @abstractmethod
    def resample(self, walks: Sequence[PartitionWalk]) -> list[Trajectory]:
        """Sample another placement of every given partition scheme (drl-pp §3.3).

        Args:
            walks: of the schemes; one that is listed twice gets two placements.
        """

    @abstractmethod
    def evaluate(
        self, walks: Sequence[PartitionWalk], trajectories: Sequence[Trajectory]
    ) -> PolicyEvaluation:
        """Replay the choices of ``walks`` and the placements of ``trajectories`` in one pass."""

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> Tensor:
        assert isinstance(observation, Tensor)
        trajectories = self.sample(len(observation), deterministic=deterministic)
        actions = torch.stack([torch.from_numpy(found.action) for found in trajectories])
        # Where actions choose the method as well, it is the first: this policy places only.
        missing = len(self.action_space.nvec) - actions.shape[1]  # type: ignore[attr-defined]
        return torch.nn.functional.pad(actions, (0, missing))


class PlacementPolicy(TrajectoryPolicy):
    """Encodes a graph, partitions it and places the partitions (drl-pp figure 2).

    The defaults are the paper's (§4.2); ``temperature`` and ``feasible`` are explained in
    :class:`~drlpp.agents.paper.partitioner.RecurrentPartitioner` and
    :class:`~drlpp.agents.paper.scheduler.PipelineScheduler`. There is no critic: the baseline is
    the average reward (figure 5).

    Args:
        observation_space: of ``PlacementEnv``; the observation tells nothing and is not read.
        action_space: of ``PlacementEnv``.
        lr_schedule: learning rate by remaining progress.
        graph: the model to place.
        encoder_units: widths of the graph convolutions; the last is that of all other layers.
        temperature: T of Algorithm 1, or ``"auto"``.
        feasible: whether every partition is sure to get an accelerator.
        optimizer_class: of ``torch.optim``.
        optimizer_kwargs: further arguments of the optimizer.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.MultiDiscrete,
        lr_schedule: Schedule,
        graph: OpGraph,
        encoder_units: Sequence[int] = (32, 64, 128),
        temperature: float | Literal["auto"] = "auto",
        feasible: bool = False,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs or {},
        )
        self.graph = graph
        self.accelerators = ActionCodec.accelerators_of(action_space, len(graph))
        self._options = {
            "encoder_units": tuple(encoder_units),
            "temperature": temperature,
            "feasible": feasible,
        }
        features = node_features(graph)
        self.register_buffer("features", features, persistent=False)
        self.register_buffer("edges", undirected_edges(graph), persistent=False)
        units = encoder_units[-1]
        self.encoder = GraphEncoder(features.shape[1], encoder_units)
        self.partitioner = RecurrentPartitioner(graph, self.accelerators, units, temperature)
        self.scheduler = PipelineScheduler(self.accelerators, units, feasible)
        self.partitioner.calibrate(self.encode())
        self.optimizer = self.optimizer_class(
            self.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )

    def encode(self) -> Tensor:
        """Return H: the representations of all operators, ``(operators, units)``."""
        return self.encoder(self.features, self.edges)

    @torch.no_grad()
    def sample(
        self, partitions: int, placements: int = 1, deterministic: bool = False
    ) -> list[Trajectory]:
        """Sample partition schemes, and several placements of each (drl-pp §3.4)."""
        nodes = self.encode()
        walks = self.partitioner.sample(nodes, partitions, deterministic)
        scores = self._scores(nodes, walks).repeat_interleave(placements, dim=0)
        stage_of, log_probs = self.scheduler.sample(scores, deterministic)
        return [
            Trajectory(walks[index // placements], tuple(stages), tuple(values))
            for index, (stages, values) in enumerate(
                zip(stage_of.tolist(), log_probs.tolist(), strict=True)
            )
        ]

    @torch.no_grad()
    def resample(self, walks: Sequence[PartitionWalk]) -> list[Trajectory]:
        """Sample another placement of every given partition scheme (drl-pp §3.3)."""
        if not walks:
            return []
        stage_of, log_probs = self.scheduler.sample(self._scores(self.encode(), walks))
        return [
            Trajectory(walk, tuple(stages), tuple(values))
            for walk, stages, values in zip(
                walks, stage_of.tolist(), log_probs.tolist(), strict=True
            )
        ]

    def evaluate(
        self, walks: Sequence[PartitionWalk], trajectories: Sequence[Trajectory]
    ) -> PolicyEvaluation:
        """Replay the choices of ``walks`` and the placements of ``trajectories`` in one pass."""
        nodes = self.encode()
        walk_log_probs, walk_entropies = self.partitioner.evaluate(nodes, walks)
        stage_of = torch.tensor(
            [trajectory.stage_of_accelerator for trajectory in trajectories], device=self.device
        )
        scores = self._scores(nodes, [trajectory.walk for trajectory in trajectories])
        assignment = self.scheduler.evaluate(scores, stage_of)
        return PolicyEvaluation(
            walk_log_probs,
            walk_entropies,
            assignment.log_probs[assignment.free],
            assignment.entropies[assignment.free],
            assignment.free,
        )

    def _scores(self, nodes: Tensor, walks: Sequence[PartitionWalk]) -> Tensor:
        """Score all pairs of accelerators and partitions, by the partitions' summaries.

        A walk that is there several times is scored once: redraws make hundreds of a few schemes.
        """
        distinct = {id(walk): walk for walk in walks}
        row_of = {key: row for row, key in enumerate(distinct)}
        rows = torch.tensor([row_of[id(walk)] for walk in walks], device=nodes.device)
        members = [walk.stage_of_operator for walk in distinct.values()]
        stage_of = torch.tensor(members, device=nodes.device)
        member = torch.nn.functional.one_hot(stage_of, self.accelerators).to(nodes.dtype)
        summaries = member.transpose(1, 2) @ nodes / len(self.graph)
        stages = torch.tensor([walk.stages for walk in distinct.values()], device=nodes.device)
        return self.scheduler(summaries, stages).index_select(0, rows)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "lr_schedule": self._dummy_schedule,
            "graph": self.graph,
            **self._options,
            "optimizer_class": self.optimizer_class,
            "optimizer_kwargs": self.optimizer_kwargs,
        }
