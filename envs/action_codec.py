"""The layout of actions: candidates become actions of an environment and the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method

Stages = tuple[tuple[int, ...], tuple[int, ...]]
"""The stage of every operator, and the stage of every accelerator."""


def check_one_stage_each(method: Method) -> None:
    """Raise if ``method`` is not for what policies draw.

    Raises:
        InvalidInput: accelerators are to hold two stages each.
    """
    if method.schedule_kind.stages_held > 1:
        raise InvalidInput(
            f"an agent's policy gives every accelerator one stage, and schedule "
            f"{method.schedule} needs two; plan such a placement with `drlpp plan`, or "
            "let the guided agent choose it: another schedule that flushes, --vary schedule"
        )


@dataclass(frozen=True)
class ActionCodec:
    """Encodes candidates as actions, and decodes actions; all run with one method.

    An action is the stage of every operator, then the stage of every accelerator. A codec whose
    actions choose more derives from this one, as
    :class:`~drlpp.envs.method_codec.MethodCodec` does: it extends :attr:`space`, :meth:`encode` and
    :meth:`decode`, and an environment takes it as ``codec``.

    Attributes:
        operators: N, of the model.
        accelerators: A, which is also the largest number of stages.
        method: of every candidate.

    Raises:
        InvalidInput: accelerators are to hold two stages each with ``method``, which no policy
            draws.
    """

    operators: int
    accelerators: int
    method: Method

    def __post_init__(self) -> None:
        check_one_stage_each(self.method)

    @property
    def space(self) -> spaces.MultiDiscrete:
        """All actions: ``[A] * N + [A] * A``."""
        return spaces.MultiDiscrete([self.accelerators] * (self.operators + self.accelerators))

    def encode(self, candidate: Candidate) -> NDArray[np.int64]:
        """Return the action that decodes to ``candidate``, operators of its stages sorted.

        An idle accelerator has the number of stages as its stage, which no operator has.
        """
        placement = candidate.placement
        return self.join(
            placement.stage_of_operator(self.operators),
            placement.stage_of_accelerator(self.accelerators),
        )

    def decode(self, action: Sequence[int] | NDArray[np.int64]) -> Candidate:
        """Return the candidate that an action describes, which may be one that cannot be run.

        Stages may be numbered with gaps; their order counts. An accelerator that holds a stage
        without operators is idle.
        """
        return Candidate(Placement.from_assignment(*self.split(action)), self.method)

    def split(self, action: Sequence[int] | NDArray[np.int64]) -> Stages:
        """Return the stages of operators and of accelerators, as far as an action has them."""
        stages = tuple(int(stage) for stage in action[: self.operators + self.accelerators])
        return stages[: self.operators], stages[self.operators :]

    @staticmethod
    def join(
        stage_of_operator: Sequence[int], stage_of_accelerator: Sequence[int]
    ) -> NDArray[np.int64]:
        """Return the action of these stages."""
        return np.array([*stage_of_operator, *stage_of_accelerator])

    @staticmethod
    def accelerators_of(space: spaces.MultiDiscrete, operators: int) -> int:
        """Return A, the number of accelerators, of a space that places ``operators``."""
        return int(space.nvec[operators])
