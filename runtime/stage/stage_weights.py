"""All weights of a stage: its own, and its copies of weights that other stages hold too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from drlpp.runtime.ipc.protocol import RunPlan, WeightPlan
from drlpp.runtime.stage.weight_group import WeightGroup
from drlpp.runtime.weights.optimizers import OptimizerState
from drlpp.runtime.weights.weight_policy import WeightPolicy
from drlpp.schedule.actions import MicrobatchId

if TYPE_CHECKING:
    from drlpp.runtime.stage.tied_weights import TiedWeights

_OWN = -1
"""The number of the group of a stage's own weights, where others have that of their tie."""

KeptWeights = Mapping[int, list[Tensor] | None]
"""What the groups lent to a forward, None where their policy keeps it itself."""


class StageWeights:
    """The groups of a stage's weights, each of which is updated apart.

    Args:
        own: the weights that no other stage holds.
        tied: the copies of others, by tie.

    Attributes:
        names: of all weights.
    """

    def __init__(self, own: WeightGroup, tied: Mapping[int, TiedWeights]) -> None:
        self.own = own
        self.tied = tied
        self._groups: dict[int, WeightGroup] = {_OWN: own, **tied}
        self.names = [name for group in self._groups.values() for name in group.names]

    def begin(self, plan: RunPlan) -> None:
        """Prepare for a run."""
        for number, group in self._groups.items():
            group.begin(_plan_of(plan, number))

    @property
    def newest(self) -> list[Tensor]:
        """The newest weights, in the order of ``names``."""
        return [weight for group in self._groups.values() for weight in group.weights]

    @property
    def policies(self) -> list[WeightPolicy]:
        """The weight policies of all groups."""
        return [group.policy for group in self._groups.values()]

    @property
    def bucket_bytes(self) -> int:
        """The bytes of the largest bucket that gradients are summed in, 0 without buckets."""
        return max(group.gradients.bucket_bytes for group in self._groups.values())

    def held_bytes(self) -> int:
        """Return how much memory holds weights now: the newest, and copies of any version."""
        copies = [copy for policy in self.policies for copy in policy.copies()]
        held = {t.untyped_storage().data_ptr(): t.nbytes for t in (*self.newest, *copies)}
        return sum(held.values())

    def for_forward(self, part: MicrobatchId) -> AbstractContextManager[list[Tensor]]:
        """Lend the weights of a forward, in the order of ``names``."""
        return self._lent(lambda group: group.policy.forward_weights(group.use(part)))

    def for_backward(self, part: MicrobatchId) -> AbstractContextManager[list[Tensor]]:
        """Lend the weights of a backward, or of a recomputation, in the order of ``names``."""
        return self._lent(lambda group: group.policy.backward_weights(group.use(part)))

    @contextmanager
    def _lent(
        self, lend: Callable[[WeightGroup], AbstractContextManager[list[Tensor]]]
    ) -> Iterator[list[Tensor]]:
        with ExitStack() as lending:
            yield [w for group in self._groups.values() for w in lending.enter_context(lend(group))]

    def collecting(self, leaves: Sequence[Tensor], *, last: bool) -> AbstractContextManager[None]:
        """Enclose a backward with respect to ``leaves``; ``last`` before a sum over replicas.

        Copies of tied weights are summed behind the stage's own weights, not meanwhile.
        """
        return self.own.gradients.collecting(leaves[: len(self.own.names)], last=last)

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add what a backward found, in the order of ``names``, to the gradients of updates."""
        for number, found in self._divided(gradients):
            self._groups[number].gradients.add(found)

    def done_with(self, part: MicrobatchId) -> None:
        """Note that a part has made its backward."""
        for group in self._groups.values():
            group.policy.done_with(group.use(part))

    def _divided(self, values: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield the number of every group, with its share of what is in the order of ``names``."""
        end = 0
        for number, group in self._groups.items():
            begin, end = end, end + len(group.names)
            yield number, values[begin:end]

    def state(self) -> dict[str, Tensor]:
        """Return the newest weights by name."""
        return {name: w.detach() for name, w in zip(self.names, self.newest, strict=True)}

    def saved(self) -> tuple[dict[str, Tensor], OptimizerState]:
        """Return what no other stage saves: weights by name, and what updates them.

        Copies of tied weights are saved by the root: with parts in flight, others are behind.
        """
        state: dict[str, Tensor] = {}
        optimizer: OptimizerState = {}
        for group in (self.own, *(tied for tied in self.tied.values() if tied.is_root)):
            state |= group.state()
            optimizer |= group.optimizer_state()
        return state, optimizer

    # Parts in flight, for a checkpoint

    def kept_for_replay(self, lent: Sequence[Tensor]) -> KeptWeights:
        """Return what a forward was lent, as :meth:`replaying` needs it."""
        return {n: self._groups[n].kept_for_replay(weights) for n, weights in self._divided(lent)}

    @contextmanager
    def replaying(self, part: MicrobatchId, kept: KeptWeights) -> Iterator[list[Tensor]]:
        """Lend the weights of a forward that was made before."""
        with ExitStack() as lending:
            yield [
                weight
                for number, group in self._groups.items()
                for weight in lending.enter_context(group.replaying(part, kept.get(number)))
            ]

    def in_flight_state(self) -> dict[str, Any]:
        """Return gradients and older versions, and copies of tied weights as they are here."""
        tied = {
            number: {
                **group.in_flight_state(),
                "model": group.state(),
                "optimizer": group.optimizer_state(),
            }
            for number, group in self.tied.items()
        }
        return {**self.own.in_flight_state(), "tied": tied}

    def load_in_flight_state(self, state: Mapping[str, Any], plan: RunPlan) -> None:
        """Begin a run that continues where :meth:`in_flight_state` was taken."""
        for number, group in self._groups.items():
            of_group = state if number == _OWN else state["tied"][number]
            group.load_in_flight_state(of_group, _plan_of(plan, number))


def kept_state(kept: KeptWeights) -> dict[str, Any]:
    """Return kept weights as a checkpoint has them."""
    return {
        "weights": kept.get(_OWN),
        "tied_weights": {number: kept[number] for number in kept if number != _OWN},
    }


def kept_weights(state: Mapping[str, Any]) -> KeptWeights:
    """Return what :func:`kept_state` was given."""
    return {_OWN: state["weights"], **state.get("tied_weights", {})}


def _plan_of(plan: RunPlan, number: int) -> WeightPlan:
    return plan.own if number == _OWN else plan.tied[number]
