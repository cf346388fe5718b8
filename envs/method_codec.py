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

    Attributes:
        methods: to choose from; the first is ``method``.
    """

    methods: tuple[Method, ...] = ()

    @property
    def space(self) -> spaces.MultiDiscrete:
        """All actions: ``[A] * N + [A] * A + [M]``."""
        return spaces.MultiDiscrete([*super().space.nvec, len(self.methods)])

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
        return np.array([*super().encode(candidate), number])

    def decode(self, action: Sequence[int] | NDArray[np.int64]) -> Candidate:
        """Return the candidate that an action describes, which may be one that cannot be run."""
        chosen = list(action[self.operators + self.accelerators :]) or [0]
        return Candidate(super().decode(action).placement, self.methods[int(chosen[0])])
