"""Actions that choose the method with the placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from drlpp.envs.action_codec import ActionCodec
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.schedule.method import Method


@dataclass(frozen=True)
class MethodCodec(ActionCodec):
    """Actions of a placement, and behind it the number of a method.

    An action without that number, such as a policy gives that places only, has the first method.
    With a method whose accelerators hold two stages each, S in all, that of stage k holds stage
    S − 1 − k as well. The stages of the second half are then nobody's first, so an accelerator that
    is given one of these is idle.

    Attributes:
        methods: to choose from; the first is ``method``.
    """

    methods: tuple[Method, ...] = ()

    @property
    def space(self) -> spaces.MultiDiscrete:
        """All actions: ``[A] * N + [A] * A + [M]``, or ``[2 A] * N`` where some method folds."""
        most = max(method.schedule_kind.stages_held for method in self.methods)
        stages = [most * self.accelerators] * self.operators
        held = [self.accelerators] * self.accelerators
        return spaces.MultiDiscrete([*stages, *held, len(self.methods)])

    def encode(self, candidate: Candidate) -> NDArray[np.int64]:
        """Return the action that decodes to ``candidate``.

        Raises:
            InvalidInput: its method is none of those that may be chosen.
        """
        if candidate.method not in self.methods:
            raise InvalidInput(
                f"a candidate runs with {candidate.method}, which is none of the "
                f"{len(self.methods)} methods that actions choose from"
            )
        number = self.methods.index(candidate.method)
        operators, accelerators = self.split(super().encode(candidate))
        if candidate.placement.is_folded:
            behind = len(candidate.placement.stages) // 2
            accelerators = tuple(min(stage, behind) for stage in accelerators)
        return np.array([*operators, *accelerators, number])

    def decode(self, action: Sequence[int] | NDArray[np.int64]) -> Candidate:
        """Return the candidate that an action describes, which may be one that cannot be run."""
        chosen = list(action[self.operators + self.accelerators :]) or [0]
        placement, method = super().decode(action).placement, self.methods[int(chosen[0])]
        if method.schedule_kind.stages_held > 1:
            placement = placement.folded()
        return Candidate(placement, method)
