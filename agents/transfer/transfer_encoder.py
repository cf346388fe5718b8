"""The encoders that fit every graph."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from drlpp.agents.paper.encoder import GraphEncoder
from drlpp.agents.transfer.context import GLOBAL_FEATURES, OPERATOR_FEATURES, ContextBatch
from drlpp.costs.stage_cost import Array

_SCANNED = 32
_ESTIMATOR_UNITS = (32, 32, 32)


class Encoded(NamedTuple):
    """Contexts as the networks see them.

    Attributes:
        batch: the contexts.
        nodes: representations of all operators, ``(all operators, units)``.
        contexts: representations of the contexts, ``(C, hidden)``.
        estimates: of their optima, in ideals, ``(C,)``.
    """

    batch: ContextBatch
    nodes: Tensor
    contexts: Tensor
    estimates: Array


class Estimate(NamedTuple):
    """What :class:`OptimumEstimator` makes of contexts.

    Attributes:
        optima: the logarithm of every context's guess, ``(C,)``.
        nodes: of every operator, what was seen up to it from both ends, ``(all operators, 64)``.
        contexts: of every context, what was seen of it, ``(C, 128)``.
    """

    optima: Tensor
    nodes: Tensor
    contexts: Tensor


class OptimumEstimator(nn.Module):
    """Guesses a model's best seconds per minibatch on a cluster, in ideals (at least 1).

    Where a graph is best cut depends on all of it, and convolutions see a few operators far. So a
    GRU goes along the operators in their (topological) order and back, before the convolutions of
    drl-pp eq. 1. The policy aims at multiples of the guess, and is shown what the GRU has seen. The
    estimator is trained on known optima; no gradient of the policy reaches it, so that training
    the policy does not move its targets.
    """

    def __init__(self) -> None:
        super().__init__()
        width = OPERATOR_FEATURES + GLOBAL_FEATURES
        self.scan = nn.GRU(width, _SCANNED, batch_first=True, bidirectional=True)
        self.convolutions = GraphEncoder(width + 2 * _SCANNED, _ESTIMATOR_UNITS)
        self.guess = nn.Sequential(
            nn.Linear(2 * _SCANNED + 2 * _ESTIMATOR_UNITS[-1] + GLOBAL_FEATURES, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, batch: ContextBatch) -> Estimate:
        """Guess the optimum, and return what was seen as well."""
        told = batch.global_features[batch.node_context]
        features = torch.cat([batch.node_features, told], dim=1)
        sizes = torch.bincount(batch.node_context).tolist()
        packed = nn.utils.rnn.pack_sequence(features.split(sizes), enforce_sorted=False)
        outputs, last = self.scan(packed)
        scanned = torch.cat(nn.utils.rnn.unpack_sequence(outputs))
        nodes = self.convolutions(torch.cat([features, scanned], dim=1), batch.edges)
        ends = last.transpose(0, 1).flatten(start_dim=1)
        contexts = torch.cat([ends, batch.pooled(nodes)], dim=1)
        guess = self.guess(torch.cat([contexts, batch.global_features], dim=1)).squeeze(1)
        return Estimate(nn.functional.softplus(guess - 2.0), scanned, contexts)


class TransferEncoder(nn.Module):
    """The graph convolutions of drl-pp eq. 1 over features, and over what the estimator has seen.

    Args:
        units: widths of the convolutions.
        hidden: width of the contexts' representations.

    Shapes:
        - result: representations of all operators, ``(all operators, units[-1])``, and of the
          contexts, ``(C, hidden)``
    """

    def __init__(self, units: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        width = OPERATOR_FEATURES + GLOBAL_FEATURES + 2 * _SCANNED
        seen = 2 * _SCANNED + 2 * _ESTIMATOR_UNITS[-1] + 1
        self.convolutions = GraphEncoder(width, units)
        self.context = nn.Sequential(
            nn.Linear(seen + 2 * units[-1] + GLOBAL_FEATURES, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
        )

    def forward(self, batch: ContextBatch, estimate: Estimate) -> tuple[Tensor, Tensor]:
        """Encode operators and contexts."""
        told = batch.global_features[batch.node_context]
        features = torch.cat([batch.node_features, told, estimate.nodes], dim=1)
        nodes = self.convolutions(features, batch.edges)
        seen = [estimate.contexts, estimate.optima[:, None], batch.global_features]
        return nodes, self.context(torch.cat([batch.pooled(nodes), *seen], dim=1))
