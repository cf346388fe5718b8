"""The policy: encoder, partitioner and scheduler behind stable-baselines3's interface."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor

from drlpp.agents.paper.encoder import GraphEncoder
from drlpp.agents.paper.features import node_features, undirected_edges
from drlpp.agents.paper.partitioner import RecurrentPartitioner
from drlpp.agents.paper.scheduler import MethodChooser, PairChooser, PipelineScheduler
from drlpp.agents.paper.trajectory import MethodTrajectory, Trajectory
from drlpp.agents.paper.walk import PartitionWalk
from drlpp.capturing.graph import OpGraph
from drlpp.envs import ActionCodec
from drlpp.errors import InvalidInput


class PolicyEvaluation(NamedTuple):
    """Log-probabilities and entropies of replayed choices, forced ones left out.

    Attributes:
        partitioner_log_probs: ``(choices of the walks,)``, walk by walk.
        partitioner_entropies: the same.
        scheduler_log_probs: ``(free choices of accelerators,)``, placement by placement; where the
            policy chooses the method, a placement's are followed by those of methods.
        scheduler_entropies: the same.
        scheduler_free: which choices those are, ``(placements, accelerators)``, or with the numbers
            of methods behind the accelerators.
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
        # Where actions choose the method as well, it is the first if a policy places only.
        missing = len(self.action_space.nvec) - actions.shape[1]  # type: ignore[attr-defined]
        return torch.nn.functional.pad(actions, (0, missing))


class PlacementPolicy(TrajectoryPolicy):
    """Encodes a graph, partitions it and places the partitions (drl-pp figure 2).

    Where actions choose the method as well, which the paper's do not, it chooses that last
    (:class:`~drlpp.agents.paper.scheduler.MethodChooser`).

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

    Raises:
        InvalidInput: with some of the methods accelerators hold two stages each; partitions are as
            many as accelerators.
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
        self.method_chooser = self._method_chooser(action_space.nvec, units)
        self.partitioner.calibrate(self.encode())
        self.optimizer = self.optimizer_class(
            self.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )

    def _method_chooser(self, sizes: NDArray[np.int64], units: int) -> MethodChooser | None:
        """Return what chooses methods, if there are any in actions of these sizes."""
        if sizes[0] > self.accelerators:
            raise InvalidInput(
                "a policy that gives every accelerator one stage cannot draw methods with two on "
                "each; leave these out, Space(…, folds=False)"
            )
        numbers = len(sizes) - len(self.graph) - self.accelerators
        return MethodChooser(int(sizes[-1]), numbers, units) if numbers else None

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
        again = [walk for walk in walks for _ in range(placements)]
        return self._placed(nodes, again, deterministic)

    @torch.no_grad()
    def resample(self, walks: Sequence[PartitionWalk]) -> list[Trajectory]:
        """Sample another placement of every given partition scheme (drl-pp §3.3)."""
        return self._placed(self.encode(), walks) if walks else []

    def _placed(
        self, nodes: Tensor, walks: Sequence[PartitionWalk], deterministic: bool = False
    ) -> list[Trajectory]:
        """Draw what is chosen for the partitions of every walk."""
        drawn = [
            chooser.sample(scores, deterministic)
            for chooser, scores in zip(self._choosers, self._scores(nodes, walks), strict=True)
        ]
        # Stages of accelerators, then numbers of methods.
        chosen = torch.cat([choices for choices, _ in drawn], dim=1).tolist()
        log_probs = torch.cat([values for _, values in drawn], dim=1).tolist()
        found = []
        for walk, choices, values in zip(walks, chosen, log_probs, strict=True):
            stages, methods = choices[: self.accelerators], choices[self.accelerators :]
            placed = walk, tuple(stages), tuple(values)
            found.append(
                MethodTrajectory(*placed, tuple(methods)) if methods else Trajectory(*placed)
            )
        return found

    def evaluate(
        self, walks: Sequence[PartitionWalk], trajectories: Sequence[Trajectory]
    ) -> PolicyEvaluation:
        """Replay the choices of ``walks`` and the placements of ``trajectories`` in one pass."""
        nodes = self.encode()
        walk_log_probs, walk_entropies = self.partitioner.evaluate(nodes, walks)
        chosen = torch.tensor([trajectory.choices for trajectory in trajectories])
        placed = [trajectory.walk for trajectory in trajectories]
        of_all = self._scores(nodes, placed)
        each = chosen.to(self.device).split([scores.shape[1] for scores in of_all], dim=1)
        evaluated = [
            chooser.evaluate(scores, choices)
            for chooser, scores, choices in zip(self._choosers, of_all, each, strict=True)
        ]
        log_probs, entropies, free = (
            torch.cat(parts, dim=1) for parts in zip(*evaluated, strict=True)
        )
        return PolicyEvaluation(
            walk_log_probs, walk_entropies, log_probs[free], entropies[free], free
        )

    @property
    def _choosers(self) -> list[PairChooser]:
        """What chooses for the partitions, in the order of a trajectory's choices."""
        chooser = self.method_chooser
        return [self.scheduler] if chooser is None else [self.scheduler, chooser]

    def _scores(self, nodes: Tensor, walks: Sequence[PartitionWalk]) -> list[Tensor]:
        """Score all that every chooser may choose, by the partitions' summaries.

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
        return [c(summaries, stages).index_select(0, rows) for c in self._choosers]

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
