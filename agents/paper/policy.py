"""The policy: encoder, partitioner and scheduler behind stable-baselines3's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor

from drlpp.agents.paper.encoder import GraphEncoder, node_features, undirected_edges
from drlpp.agents.paper.partitioner import RecurrentPartitioner
from drlpp.agents.paper.rollout import Trajectory
from drlpp.agents.paper.scheduler import PipelineScheduler
from drlpp.agents.paper.walk import PartitionWalk
from drlpp.capturing.graph import OpGraph


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


class PlacementPolicy(BasePolicy):
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

    optimizer: torch.optim.Optimizer

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
        self.accelerators = int(action_space.nvec[len(graph)])
        # They rebuild it when a saved policy is loaded.
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
    def partition(self, count: int, deterministic: bool = False) -> list[PartitionWalk]:
        """Sample ``count`` partition schemes (drl-pp §3.2)."""
        return self.partitioner.sample(self.encode(), count, deterministic)

    @torch.no_grad()
    def place(
        self, walks: Sequence[PartitionWalk], deterministic: bool = False
    ) -> list[Trajectory]:
        """Sample a placement of every given scheme (drl-pp §3.3); one listed twice gets two."""
        scores = self._scores(self.encode(), walks)
        stages, log_probs = self.scheduler.sample(scores, deterministic)
        return [
            Trajectory(walk, tuple(chosen), tuple(values))
            for walk, chosen, values in zip(walks, stages.tolist(), log_probs.tolist(), strict=True)
        ]

    def sample(
        self, partitions: int, placements: int = 1, deterministic: bool = False
    ) -> list[Trajectory]:
        """Sample partition schemes, and several placements of each (drl-pp §3.4).

        Returns:
            ``partitions · placements`` trajectories; those of one scheme stand next to each other
            and share its walk.
        """
        walks = self.partition(partitions, deterministic)
        return self.place([walk for walk in walks for _ in range(placements)], deterministic)

    def evaluate(
        self, walks: Sequence[PartitionWalk], trajectories: Sequence[Trajectory]
    ) -> PolicyEvaluation:
        """Replay the choices of ``walks`` and the placements of ``trajectories`` in one pass."""
        nodes = self.encode()
        of_walks = self.partitioner.evaluate(nodes, walks)
        placed = self._scores(nodes, [trajectory.walk for trajectory in trajectories])
        stages = torch.tensor([t.stage_of_accelerator for t in trajectories]).to(self.device)
        log_probs, spread, free = self.scheduler.evaluate(placed, stages)
        return PolicyEvaluation(*of_walks, log_probs[free], spread[free], free)

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> Tensor:
        assert isinstance(observation, Tensor)
        trajectories = self.sample(len(observation), deterministic=deterministic)
        return torch.stack([torch.from_numpy(found.action) for found in trajectories])

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

    def _scores(self, nodes: Tensor, walks: Sequence[PartitionWalk]) -> Tensor:
        """Score accelerators and partitions of walks, each walk once: ``(walks, A, K)``."""
        distinct = {id(walk): walk for walk in walks}
        row_of = {key: row for row, key in enumerate(distinct)}
        rows = torch.tensor([row_of[id(walk)] for walk in walks], device=nodes.device)
        members = [walk.stage_of_operator for walk in distinct.values()]
        stage_of = torch.tensor(members, device=nodes.device)
        member = torch.nn.functional.one_hot(stage_of, self.accelerators).to(nodes.dtype)
        summaries = member.transpose(1, 2) @ nodes / len(self.graph)
        stages = torch.tensor([walk.stages for walk in distinct.values()], device=nodes.device)
        return self.scheduler(summaries, stages).index_select(0, rows)
