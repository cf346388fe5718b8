"""Actions that choose the method with the placement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from drlpp.envs.action_codec import ActionCodec
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.schedule.method import Method
from drlpp.schedule.per_stage import collapsed, most, of_links, of_stages


@dataclass(frozen=True)
class MethodCodec(ActionCodec):
    """Actions of a placement, and behind it the number of a method, or one for each stage.

    Where methods differ in depth or recomputation, every stage has a number, and with it its own
    recomputation and the depth of the links into it; all else is that of the first stage's method.
    What is behind the last stage does not matter. An action without numbers, such as a policy gives
    that places only, has the first method.

    With a method whose accelerators hold two stages each, S in all, that of stage k holds stage
    S − 1 − k as well. The stages of the second half are then nobody's first, so an accelerator that
    is given one of these is idle.

    Attributes:
        methods: to choose from; the first is ``method``.
    """

    methods: tuple[Method, ...] = ()

    @property
    def space(self) -> spaces.MultiDiscrete:
        """All actions: ``[A] * N + [A] * A + [M]``, or ``[2 A] * N`` where some method folds.

        They end with ``[M] * A``, or ``[M] * 2 A``, where every stage has a number.
        """
        stages = [self._most_stages] * self.operators
        held = [self.accelerators] * self.accelerators
        return spaces.MultiDiscrete([*stages, *held, *[len(self.methods)] * self._numbers])

    @cached_property
    def _most_stages(self) -> int:
        held = max(method.schedule_kind.stages_held for method in self.methods)
        return held * self.accelerators

    @cached_property
    def _numbers(self) -> int:
        of_stages = {(method.in_flight_per_link, method.recompute) for method in self.methods}
        return self._most_stages if len(of_stages) > 1 else 1

    def encode(self, candidate: Candidate) -> NDArray[np.int64]:
        """Return the action that decodes to ``candidate``.

        Raises:
            InvalidInput: its method is none of those that may be chosen.
        """
        numbers = []
        for method in _by_stage(candidate.method, len(candidate.placement.stages)):
            if method not in self.methods:
                raise InvalidInput(
                    f"a candidate runs with {candidate.method}, which is none of the "
                    f"{len(self.methods)} methods that actions choose from"
                )
            numbers.append(self.methods.index(method))
        behind_last = numbers[:1] * (self._numbers - len(numbers))
        operators, accelerators = self.split(super().encode(candidate))
        if candidate.placement.is_folded:
            behind = len(candidate.placement.stages) // 2
            accelerators = tuple(min(stage, behind) for stage in accelerators)
        numbers = [*numbers, *behind_last][: self._numbers]
        return np.array([*operators, *accelerators, *numbers])

    def decode(self, action: Sequence[int] | NDArray[np.int64]) -> Candidate:
        """Return the candidate that an action describes, which may be one that cannot be run."""
        numbers = list(action[self.operators + self.accelerators :]) or [0]
        chosen = [self.methods[int(number)] for number in numbers]
        placement, method = super().decode(action).placement, chosen[0]
        if method.schedule_kind.stages_held > 1:
            placement = placement.folded()
        stages = len(placement.stages)
        if len(chosen) > 1 and stages > 1:
            method = method.model_copy(
                update={
                    "in_flight_per_link": collapsed(
                        [most(one.in_flight_per_link) for one in chosen[1:stages]]
                    ),
                    "recompute": collapsed([most(one.recompute) for one in chosen[:stages]]),
                }
            )
        return Candidate(placement, method)


def _by_stage(method: Method, stages: int) -> Iterator[Method]:
    """Yield what every stage has of a method; the first has the depth of the links out of it."""
    depths = of_links(method.in_flight_per_link, stages) or (most(method.in_flight_per_link),)
    for stage, again in enumerate(of_stages(method.recompute, stages)):
        own = {"in_flight_per_link": depths[max(stage - 1, 0)], "recompute": again}
        yield method.model_copy(update=own)
