"""One policy for many models and clusters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy
import torch
from gymnasium import spaces
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from drlpp.agents.paper.policy import PolicyEvaluation, TrajectoryPolicy
from drlpp.agents.paper.rollout import Trajectory
from drlpp.agents.paper.scheduler import AssignmentEvaluation, entropies
from drlpp.agents.paper.walk import PartitionWalk
from drlpp.agents.transfer.context import ContextBatch, PlacementContext
from drlpp.agents.transfer.priced_walk import PricedWalk
from drlpp.agents.transfer.transfer_encoder import Encoded, OptimumEstimator, TransferEncoder
from drlpp.agents.transfer.transfer_partitioner import TransferPartitioner
from drlpp.agents.transfer.transfer_scheduler import Partitions, TransferScheduler
from drlpp.agents.transfer.weights import load_weights
from drlpp.capturing.graph import OpGraph
from drlpp.errors import InvalidInput

UNITS = 64
HIDDEN = 128


class TransferNetwork(nn.Module):
    """Encoder, partitioner and scheduler whose weights fit every model and cluster.

    Methods take a batch of contexts, and for every walk or trajectory the index of its context.
    Walks have the costs of these contexts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.estimator = OptimumEstimator()
        self.encoder = TransferEncoder((UNITS, UNITS, UNITS), HIDDEN)
        self.partitioner = TransferPartitioner(UNITS, HIDDEN)
        self.scheduler = TransferScheduler(UNITS, HIDDEN, HIDDEN)

    def encode(self, batch: ContextBatch) -> Encoded:
        """Return the operators' and contexts' representations, and the guesses of the optima."""
        with torch.no_grad():
            estimate = self.estimator(batch)
        nodes, contexts = self.encoder(batch, estimate)
        optima = estimate.optima.exp().cpu().numpy().astype(numpy.float64)
        return Encoded(batch, nodes, contexts, optima)

    @torch.inference_mode()
    def partition(
        self, batch: ContextBatch, contexts: Sequence[int], deterministic: bool = False
    ) -> list[PricedWalk]:
        """Sample a partition scheme for every index in ``contexts``."""
        return self.partitioner.sample(self.encode(batch), contexts, deterministic)

    @torch.inference_mode()
    def place(
        self,
        batch: ContextBatch,
        contexts: Sequence[int],
        walks: Sequence[PartitionWalk],
        deterministic: bool = False,
    ) -> list[Trajectory]:
        """Sample a placement of every one of ``walks``."""
        encoded = self.encode(batch)
        partitions = Partitions.of(encoded, contexts, cast("Sequence[PricedWalk]", walks))
        stage_of, log_probs = self.scheduler.sample(encoded, partitions, deterministic)
        return list(map(Trajectory, walks, stage_of, log_probs))

    def sample(
        self, batch: ContextBatch, contexts: Sequence[int], deterministic: bool = False
    ) -> list[Trajectory]:
        """Sample a partition scheme for every index in ``contexts``, and a placement of each."""
        walks = self.partition(batch, contexts, deterministic)
        return self.place(batch, contexts, walks, deterministic)

    def evaluate(
        self,
        batch: ContextBatch,
        walk_contexts: Sequence[int],
        walks: Sequence[PartitionWalk],
        trajectory_contexts: Sequence[int],
        trajectories: Sequence[Trajectory],
    ) -> PolicyEvaluation:
        """Replay walks and placements of several contexts in one pass."""
        encoded = self.encode(batch)
        partitioned = cast("Sequence[PricedWalk]", walks)
        placed = cast("Sequence[PricedWalk]", [t.walk for t in trajectories])
        walk_log_probs, walk_entropies = encoded.nodes.new_zeros(2, 0)
        if any(walk.standings for walk in partitioned):
            logits, chosen = self.partitioner.logits(encoded, walk_contexts, partitioned)
            log_probs = logits.log_softmax(dim=1)
            walk_log_probs = log_probs.gather(1, chosen[:, None]).squeeze(1)
            walk_entropies = entropies(log_probs)
        partitions = Partitions.of(encoded, trajectory_contexts, placed)
        scores, stages = self.scheduler.scores(
            encoded, partitions, [trajectory.stage_of_accelerator for trajectory in trajectories]
        )
        found = AssignmentEvaluation.of(scores, stages)
        free = found.free
        return PolicyEvaluation(
            walk_log_probs, walk_entropies, found.log_probs[free], found.entropies[free], free
        )


class TransferPolicy(TrajectoryPolicy):
    """A policy whose weights fit every model and cluster: it sees them in numbers without units.

    The context says what is known of the model and the cluster, profile and links included; it may
    change while the policy is used (:meth:`set_context`). The walk, the choices and their
    log-probabilities are those of :class:`~drlpp.agents.paper.policy.PlacementPolicy`, so ``DRLPP``
    trains it unchanged.

    Args:
        observation_space: of ``PlacementEnv``; the observation tells nothing and is not read.
        action_space: of ``PlacementEnv``.
        lr_schedule: learning rate by remaining progress.
        graph: the model to place.
        context: of this model on the cluster.
        pretrained: a file of weights, such as :data:`~drlpp.agents.transfer.weights.PRETRAINED`.
        optimizer: ``optimizer_class`` and ``optimizer_kwargs``; Adam if left out.

    Raises:
        InvalidInput: if the context is of another size than the spaces.
        InvalidFile: if the file holds no weights of this network.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.MultiDiscrete,
        lr_schedule: Schedule,
        graph: OpGraph,
        context: PlacementContext,
        pretrained: Path | None = None,
        **optimizer: Any,
    ) -> None:
        options = {"context": context}
        super().__init__(observation_space, action_space, graph, options, **optimizer)
        self.network = TransferNetwork()
        if pretrained is not None:
            load_weights(self.network, pretrained)
        self.set_context(context)
        self._make_optimizer(lr_schedule)

    @property
    def context(self) -> PlacementContext:
        """What the policy sees at present."""
        context: PlacementContext = self._options["context"]
        return context

    def set_context(self, context: PlacementContext) -> None:
        """Use ``context`` as the description of the model and the cluster from now on."""
        if (len(context), context.accelerators) != (len(self.graph), self.accelerators):
            raise InvalidInput(
                f"the context is of {len(context)} operators on {context.accelerators} "
                f"accelerators, but the environment places {len(self.graph)} operators on "
                f"{self.accelerators}"
            )
        self._options["context"] = context

    def partition(self, count: int, deterministic: bool = False) -> list[PartitionWalk]:
        """Sample ``count`` partition schemes (after drl-pp §3.2)."""
        return [*self.network.partition(self._batch(), [0] * count, deterministic)]

    def place(
        self, walks: Sequence[PartitionWalk], deterministic: bool = False
    ) -> list[Trajectory]:
        """Sample a placement of every given scheme (after drl-pp §3.3)."""
        return self.network.place(self._batch(), [0] * len(walks), walks, deterministic)

    def evaluate(
        self, walks: Sequence[PartitionWalk], trajectories: Sequence[Trajectory]
    ) -> PolicyEvaluation:
        """Replay the choices of ``walks`` and the placements of ``trajectories`` in one pass."""
        return self.network.evaluate(
            self._batch(), [0] * len(walks), walks, [0] * len(trajectories), trajectories
        )

    def _batch(self) -> ContextBatch:
        return ContextBatch.of([self.context], self.device)
