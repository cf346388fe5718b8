"""The weights of a stage in the reference executor where parameters are in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor

from drlpp.runtime.reference.reference_weights import StageHistory, Weights
from drlpp.schedule.weight_policies import WeightUse
from drlpp.specs.optimizer_spec import OptimizerSpec
from drlpp.specs.parameter_groups import divided


class GroupedHistory:
    """The histories of the groups of a stage, each with its optimizer, in step with each other.

    Args:
        initial: the weights that training begins with, by name.
        optimizer: makes the updates, with groups by the names of parameters.
        delay: s of the weights in steady state.
        history: makes the history of weights that one optimizer updates.
    """

    def __init__(
        self,
        initial: Weights,
        optimizer: OptimizerSpec,
        delay: int,
        history: Callable[[Weights, OptimizerSpec], StageHistory],
    ) -> None:
        self.initial = initial
        self.delay = delay
        self._base_rate = float(optimizer.value("lr"))
        self._groups = [
            (
                history({name: initial[name] for name in group.names}, group.optimizer),
                float(group.optimizer.value("lr")),
            )
            for group in divided(optimizer, initial)
        ] or [(history({}, optimizer), self._base_rate)]

    @property
    def newest(self) -> int:
        """The number of the newest version."""
        return self._groups[0][0].newest

    @property
    def weights(self) -> Weights:
        """The newest weights by name."""
        return _merged(history.versions[history.newest] for history, _ in self._groups)

    def take_over(self, other: GroupedHistory) -> None:
        """Continue from what another history, of the same training, has of the same weights."""
        for history, _ in self._groups:
            for known, _ in other._groups:
                history.take_over(known)

    def begin(self) -> None:
        """Begin a run with an empty pipeline."""
        for history, _ in self._groups:
            history.begin()

    def for_forward(self, use: WeightUse, rates: Sequence[float]) -> Weights:
        """Return the weights of a forward; ``rates`` are those of parameters in no group."""
        return _merged(
            history.for_forward(use, [self._of_group(rate, own) for rate in rates])
            for history, own in self._groups
        )

    def for_backward(self, use: WeightUse, rates: Sequence[float]) -> Weights:
        """Return the weights of a backward, and of a recomputation."""
        return _merged(
            history.for_backward(use, [self._of_group(rate, own) for rate in rates])
            for history, own in self._groups
        )

    def update(self, gradient: Weights, rate: float, needed_from: int) -> None:
        """Compute the next version of every group, at the group's multiple of ``rate``."""
        for history, own in self._groups:
            found = {name: gradient[name] for name in history.initial if name in gradient}
            history.update(found, self._of_group(rate, own), needed_from)

    def skip_update(self, needed_from: int) -> None:
        """Carry all weights over to the next version."""
        for history, _ in self._groups:
            history.skip_update(needed_from)

    def _of_group(self, rate: float, own: float) -> float:
        """Return what a schedule makes of a group's own rate as it makes ``rate`` of the base."""
        return own if rate == self._base_rate else own * rate / self._base_rate


def _merged(groups: Iterable[Mapping[str, Tensor]]) -> Weights:
    return {name: weight for group in groups for name, weight in group.items()}
