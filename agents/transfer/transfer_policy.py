"""One policy for many models and clusters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from gymnasium import spaces
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from drlpp.agents.paper.policy import PolicyEvaluation, TrajectoryPolicy
from drlpp.agents.paper.trajectory import Trajectory
from drlpp.agents.paper.walk import PartitionWalk
from drlpp.agents.transfer.context import PlacementContext
from drlpp.agents.transfer.context_batch import ContextBatch
from drlpp.agents.transfer.transfer_choices import Encoded
from drlpp.agents.transfer.transfer_encoder import OptimumEstimator, TransferEncoder
from drlpp.agents.transfer.transfer_partitioner import TransferPartitioner
from drlpp.agents.transfer.transfer_scheduler import Partitions, TransferScheduler
from drlpp.agents.transfer.walk_record import RecordedWalk, recorded
from drlpp.agents.transfer.weights import load_weights
from drlpp.capturing.graph import OpGraph
from drlpp.envs import ActionCodec
from drlpp.errors import InvalidInput

UNITS = 64
HIDDEN = 128


class TransferNetwork(nn.Module):
    """Encoder, partitioner and scheduler whose weights fit every model and cluster."""

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
    def sample(
        self,
        batch: ContextBatch,
        contexts: Sequence[int],
        placements: int = 1,
        deterministic: bool = False,
    ) -> list[Trajectory]:
        """Sample a partition scheme for every index in ``contexts``, and placements of each."""
        encoded = self.encode(batch)
        walks = self.partitioner.sample(encoded, contexts, deterministic)
        repeated = [walk for walk in walks for _ in range(placements)]
        repeated_contexts = numpy.repeat(contexts, placements).tolist()
        return self._assigned(encoded, repeated_contexts, repeated, deterministic)

    @torch.inference_mode()
    def resample(
        self, batch: ContextBatch, contexts: Sequence[int], walks: Sequence[PartitionWalk]
    ) -> list[Trajectory]:
        """Sample a placement of every one of ``walks``."""
        with_records = [
            recorded(batch.contexts[c], walk) for c, walk in zip(contexts, walks, strict=True)
        ]
        return self._assigned(self.encode(batch), contexts, with_records)

    def _assigned(
        self,
        encoded: Encoded,
        contexts: Sequence[int],
        walks: Sequence[RecordedWalk],
        deterministic: bool = False,
    ) -> list[Trajectory]:
        partitions = Partitions.of(encoded, contexts, walks)
        stage_of, log_probs = self.scheduler.sample(encoded, partitions, deterministic)
        return [
            Trajectory(walk, stages, values)
            for walk, stages, values in zip(walks, stage_of, log_probs, strict=True)
        ]

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
        with_records = [
            recorded(batch.contexts[c], walk) for c, walk in zip(walk_contexts, walks, strict=True)
        ]
        placed = [
            recorded(batch.contexts[c], trajectory.walk)
            for c, trajectory in zip(trajectory_contexts, trajectories, strict=True)
        ]
        walk_log_probs, walk_entropies = encoded.nodes.new_zeros(2, 0)
        if any(len(walk.record.choice) for walk in with_records):
            logits, chosen = self.partitioner.logits(encoded, walk_contexts, with_records)
            log_probs = logits.log_softmax(dim=1)
            walk_log_probs = log_probs.gather(1, chosen[:, None]).squeeze(1)
            # Impossible choices have log-probability −∞, and 0 · ∞ is no number.
            walk_entropies = -(log_probs.exp() * log_probs.clamp(min=-1e9)).sum(dim=1)
        assignment = self.scheduler.evaluate(
            encoded,
            Partitions.of(encoded, trajectory_contexts, placed),
            [trajectory.stage_of_accelerator for trajectory in trajectories],
        )
        return PolicyEvaluation(
            walk_log_probs,
            walk_entropies,
            assignment.log_probs[assignment.free],
            assignment.entropies[assignment.free],
            assignment.free,
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
        context: a transferable one of this model on the cluster.
        pretrained: a file of weights, such as :data:`~drlpp.agents.transfer.weights.PRETRAINED`.
        optimizer_class: of ``torch.optim``.
        optimizer_kwargs: further arguments of the optimizer.

    Raises:
        InvalidInput: if the context is not transferable, or of another size than the spaces, or if
            the file holds no weights of this network.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.MultiDiscrete,
        lr_schedule: Schedule,
        graph: OpGraph,
        context: PlacementContext,
        pretrained: Path | None = None,
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
        self.network = TransferNetwork()
        if pretrained is not None:
            load_weights(self.network, pretrained)
        self.set_context(context)
        self.optimizer = self.optimizer_class(
            self.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )

    @property
    def context(self) -> PlacementContext:
        """What the policy sees at present."""
        return self._context

    def set_context(self, context: PlacementContext) -> None:
        """Use ``context`` as the description of the model and the cluster from now on."""
        if context.costs is None:
            raise InvalidInput(
                "this context tells no costs; a TransferPolicy needs one of "
                "PlacementContext.of_workload"
            )
        if (len(context), context.accelerators) != (len(self.graph), self.accelerators):
            raise InvalidInput(
                f"the context is of {len(context)} operators on {context.accelerators} "
                f"accelerators, but the environment places {len(self.graph)} operators on "
                f"{self.accelerators}"
            )
        self._context = context

    @torch.inference_mode()
    def sample(
        self, partitions: int, placements: int = 1, deterministic: bool = False
    ) -> list[Trajectory]:
        """Sample partition schemes, and several placements of each (drl-pp §3.4)."""
        return self.network.sample(self._batch(), [0] * partitions, placements, deterministic)

    @torch.inference_mode()
    def resample(self, walks: Sequence[PartitionWalk]) -> list[Trajectory]:
        """Sample another placement of every given partition scheme (drl-pp §3.3)."""
        return self.network.resample(self._batch(), [0] * len(walks), walks) if walks else []

    def evaluate(
        self, walks: Sequence[PartitionWalk], trajectories: Sequence[Trajectory]
    ) -> PolicyEvaluation:
        """Replay the choices of ``walks`` and the placements of ``trajectories`` in one pass."""
        return self.network.evaluate(
            self._batch(), [0] * len(walks), walks, [0] * len(trajectories), trajectories
        )

    def _batch(self) -> ContextBatch:
        return ContextBatch.of([self._context], self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "lr_schedule": self._dummy_schedule,
            "graph": self.graph,
            "context": self._context,
            "optimizer_class": self.optimizer_class,
            "optimizer_kwargs": self.optimizer_kwargs,
        }
