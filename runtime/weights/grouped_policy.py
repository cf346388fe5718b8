"""A stage whose parameters are in groups: each group has an optimizer and a policy of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from drlpp.runtime.device.clocks import Clock, ProcessorClock
from drlpp.runtime.weights.displacements import PolicyState
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.runtime.weights.policies import build_policy
from drlpp.runtime.weights.weight_policy import WeightPolicy
from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import WeightUse
from drlpp.specs.optimizer_spec import OptimizerSpec
from drlpp.specs.parameter_groups import GroupMembers, divided

Value = TypeVar("Value")


@dataclass(frozen=True)
class _Part:
    """A group of a stage.

    Attributes:
        group: what it is.
        places: of its weights among those of the stage.
        policy: of its weights.
    """

    group: GroupMembers
    places: Sequence[int]
    policy: WeightPolicy


class GroupedWeights(WeightPolicy):
    """The weights of a stage, in groups that are updated, kept and predicted each by itself."""

    def __init__(self, weights: Sequence[Tensor], groups: Sequence[_Part]) -> None:
        self._clock: Clock = ProcessorClock()
        self._groups = groups
        self.weights = list(weights)
        self.predictions = []

    @property
    def parts(self) -> Sequence[WeightPolicy]:
        """The policies of the groups."""
        return [part.policy for part in self._groups]

    @property
    def clock(self) -> Clock:
        """Of the run."""
        return self._clock

    @clock.setter
    def clock(self, clock: Clock) -> None:
        self._clock = clock
        for policy in self.parts:
            policy.clock = clock

    def begin(
        self, uses: Mapping[MicrobatchId, WeightUse], rates: Sequence[float], version: int = 0
    ) -> None:
        """Prepare for a run; every group has its own multiple of the rates."""
        self.predictions = []
        for part in self._groups:
            part.policy.begin(uses, part.group.rates(rates), version)
            # In the order of time over all groups.
            part.policy.predictions = self.predictions

    @property
    def stashes(self) -> bool:
        """Whether the groups keep versions."""
        return any(policy.stashes for policy in self.parts)

    @property
    def predicts(self) -> bool:
        """Whether any group moves weights for a pass."""
        return any(policy.predicts for policy in self.parts)

    @property
    def reads_last_gradient(self) -> bool:
        """Whether the policy of any group does."""
        return any(policy.reads_last_gradient for policy in self.parts)

    @contextmanager
    def forward_weights(self, use: WeightUse) -> Iterator[list[Tensor]]:
        """Lend what the groups lend."""
        with ExitStack() as lent:
            yield self._joined(
                [lent.enter_context(policy.forward_weights(use)) for policy in self.parts]
            )

    @contextmanager
    def backward_weights(self, use: WeightUse) -> Iterator[list[Tensor]]:
        """Lend what the groups lend."""
        with ExitStack() as lent:
            yield self._joined(
                [lent.enter_context(policy.backward_weights(use)) for policy in self.parts]
            )

    def done_with(self, use: WeightUse) -> None:
        """Tell every group."""
        for policy in self.parts:
            policy.done_with(use)

    def update(self) -> None:
        """Update every group."""
        for policy in self.parts:
            policy.update()

    def skip_update(self) -> None:
        """Skip it in every group."""
        for policy in self.parts:
            policy.skip_update()

    def _step(self) -> None:
        raise AssertionError("groups make their own steps")

    def copies(self) -> list[Tensor]:
        """Return the copies of all groups."""
        return [copy for policy in self.parts for copy in policy.copies()]

    def versions(self) -> dict[int, list[Tensor]]:
        """Return versions of all weights; groups keep the same ones."""
        held = [policy.versions() for policy in self.parts]
        return {version: self._joined([each[version] for each in held]) for version in held[0]}

    def load_versions(self, versions: Mapping[int, Sequence[Tensor]]) -> None:
        """Take over versions of all weights."""
        for part in self._groups:
            part.policy.load_versions(
                {version: [leaves[i] for i in part.places] for version, leaves in versions.items()}
            )

    def state(self) -> PolicyState:
        """Return the state of every weight."""
        return self._joined([policy.state() for policy in self.parts])

    def load_state(self, state: PolicyState) -> None:
        """Take over the state of every weight."""
        for part in self._groups:
            part.policy.load_state([state[i] for i in part.places])

    def _joined(self, found: Sequence[Sequence[Value]]) -> list[Value]:
        """Return what groups gave for their weights in the order of the stage's."""
        by_place = {
            place: value
            for part, values in zip(self._groups, found, strict=True)
            for place, value in zip(part.places, values, strict=True)
        }
        return [by_place[place] for place in range(len(self.weights))]


def grouped_policy(
    method: Method,
    names: Sequence[str],
    weights: Sequence[Tensor],
    optimizer: OptimizerSpec,
    delay: int,
) -> WeightPolicy:
    """Build the policy of a stage whose optimizer has groups.

    Args:
        method: names it.
        names: of the parameters.
        weights: leaf tensors.
        optimizer: updates them.
        delay: s of the stage in steady state.
    """
    places = {name: place for place, name in enumerate(names)}
    groups = []
    for group in divided(optimizer, names):
        own = [places[name] for name in group.names]
        chosen = [weights[place] for place in own]
        built = build_optimizer(group.optimizer, chosen)
        groups.append(_Part(group, own, build_policy(method, chosen, built, delay)))
    return GroupedWeights(weights, groups)
