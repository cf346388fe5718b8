"""What every weight policy does: it lends a stage its weights, keeps versions, performs updates.

Every stage holds leaf tensors, which its optimizer updates. A policy lends weights to the forward
and backward passes, keeps what they need, and performs the updates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor
from torch.optim import Optimizer

from drlpp.runtime.device.clocks import Clock, ProcessorClock, Span
from drlpp.runtime.weights.displacements import PolicyState
from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.weight_policies import WeightUse


class WeightPolicy(ABC):
    """The weights of one stage on one worker.

    Args:
        weights: leaf tensors, the parameters of ``optimizer``.
        optimizer: updates them from their ``grad``.

    Attributes:
        clock: of the run.
        predictions: begin and end of every time that this run moved weights to those that a pass
            uses, or back, marked on the clock.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        self.weights = list(weights)
        self.optimizer = optimizer
        self.clock: Clock = ProcessorClock()
        self.predictions: list[Span] = []
        self._rates: Sequence[float] = ()
        self._version = 0

    def begin(
        self, uses: Mapping[MicrobatchId, WeightUse], rates: Sequence[float], version: int = 0
    ) -> None:
        """Prepare for a run.

        Args:
            uses: of all parts of which a forward or a backward is still to come.
            rates: the learning rate of every update, from that which makes version 1.
            version: of the weights now.
        """
        self.predictions = []
        self._rates = rates
        self._version = version

    @property
    def stashes(self) -> bool:
        """Whether it keeps the version that a forward used for the backward."""
        return False

    @property
    def predicts(self) -> bool:
        """Whether it moves weights for a pass, and back."""
        return False

    @property
    def reads_last_gradient(self) -> bool:
        """Whether the gradients of the newest update have to stay in ``grad`` until the next."""
        return False

    @contextmanager
    def forward_weights(self, use: WeightUse) -> Iterator[list[Tensor]]:
        """Lend the weights for a forward."""
        yield self.weights

    @contextmanager
    def backward_weights(self, use: WeightUse) -> Iterator[list[Tensor]]:
        """Lend the leaf tensors with respect to which a backward differentiates.

        A recomputation uses the same weights as its backward.
        """
        yield self.weights

    def done_with(self, use: WeightUse) -> None:
        """Note that a part has made its backward."""

    def update(self) -> None:
        """Perform one update from the gradients in ``weights``."""
        if self._rates:
            rate = self._rates[min(self._version, len(self._rates) - 1)]
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        self._step()
        self._version += 1

    def skip_update(self) -> None:
        """Count an update that changes neither weights nor optimizer.

        The schedule of learning rates moves on, and predictions follow the last step that was made.
        """
        self._stay()
        self._version += 1

    @abstractmethod
    def _step(self) -> None:
        """Make one step of the optimizer."""

    def _stay(self) -> None:
        """Carry the weights over to a version without a step; nothing to do by default."""

    def rate_sum(self, lead: int) -> float:
        """Return Σ of the rates of the next ``lead`` updates; negative for a negative lead."""
        if not self._rates:
            return lead * float(self.optimizer.param_groups[0]["lr"])
        last = len(self._rates) - 1
        ahead = range(self._version, self._version + abs(lead))
        total = sum(self._rates[min(update, last)] for update in ahead)
        return total if lead >= 0 else -total

    def copies(self) -> list[Tensor]:
        """Return tensors that hold weights, other than the newest."""
        return []

    def versions(self) -> dict[int, list[Tensor]]:
        """Return older versions that are held, for a checkpoint with parts in flight."""
        return {}

    def load_versions(self, versions: Mapping[int, Sequence[Tensor]]) -> None:
        """Take over versions; :meth:`begin` has to follow."""

    def state(self) -> PolicyState:
        """Return the part of a checkpoint besides weights and optimizer, for every weight."""
        return [{} for _ in self.weights]

    def load_state(self, state: PolicyState) -> None:
        """Take over what :meth:`state` gave."""
