"""The layout of actions: candidates become actions of an environment and the other way round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from drlpp.schedule.per_stage import collapsed, most, of_links, of_stages


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


class ActionCodec:
    """Encodes candidates as actions, and decodes actions.

    An action is the stage of every operator, then the stage of every accelerator. With several
    ``methods`` to choose from, the number of one stands behind these. Where methods differ in depth
    or recomputation, every stage has a number, and with it its own recomputation and the depth of
    the links into it; all else is that of the first stage's method, and what is behind the last
    stage does not matter. An action without numbers, such as a policy gives that places only, has
    the first method.

    With a method whose accelerators hold two stages each, S in all, that of stage k holds stage
    S − 1 − k as well. The stages of the second half are then nobody's first, so an accelerator that
    is given one of these is idle.

    Args:
        operators: N, of the model.
        accelerators: A.
        methods: to choose from; one of them is that of every candidate.

    Raises:
        InvalidInput: accelerators are to hold two stages each with the first of ``methods``, which
            no policy draws.
    """

    def __init__(self, operators: int, accelerators: int, methods: Sequence[Method]) -> None:
        check_one_stage_each(methods[0])
        self.operators = operators
        self.accelerators = accelerators
        self.methods = tuple(methods)

    @property
    def space(self) -> spaces.MultiDiscrete:
        """All actions: ``[A] * N + [A] * A``, with ``[M]`` behind where methods are chosen.

        They begin with ``[2 A] * N`` where some method folds, and end with ``[M] * A``, or
        ``[M] * 2 A``, where every stage has a number.
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
        return self._most_stages if len(of_stages) > 1 else int(len(self.methods) > 1)

    def encode(self, candidate: Candidate) -> NDArray[np.int64]:
        """Return the action that decodes to ``candidate``, operators of its stages sorted.

        An idle accelerator has the number of stages as its stage, which no operator has.

        Raises:
            InvalidInput: its method is none of those that may be chosen.
        """
        placement, numbers = candidate.placement, []
        by_stage = _by_stage(candidate.method, len(placement.stages))
        for method in by_stage if self._numbers else ():
            if method not in self.methods:
                raise InvalidInput(
                    f"a candidate runs with {candidate.method}, which is none of the "
                    f"{len(self.methods)} methods that actions choose from"
                )
            numbers.append(self.methods.index(method))
        behind_last = numbers[:1] * (self._numbers - len(numbers))
        accelerators = placement.stage_of_accelerator(self.accelerators)
        if placement.is_folded:
            behind = len(placement.stages) // 2
            accelerators = tuple(min(stage, behind) for stage in accelerators)
        operators = placement.stage_of_operator(self.operators)
        return np.array([*operators, *accelerators, *[*numbers, *behind_last][: self._numbers]])

    def decode(self, action: Sequence[int] | NDArray[np.int64]) -> Candidate:
        """Return the candidate that an action describes, which may be one that cannot be run.

        Stages may be numbered with gaps; their order counts. An accelerator that holds a stage
        without operators is idle.
        """
        numbers = [int(number) for number in action]
        stages, rest = numbers[: self.operators], numbers[self.operators :]
        held, chosen = rest[: self.accelerators], rest[self.accelerators :]
        methods = [self.methods[number] for number in chosen or (0,)]
        placement, method = Placement.from_assignment(stages, held), methods[0]
        if method.schedule_kind.stages_held > 1:
            placement = placement.folded()
        count = len(placement.stages)
        if len(methods) > 1 and count > 1:
            depths = [most(one.in_flight_per_link) for one in methods[1:count]]
            again = [most(one.recompute) for one in methods[:count]]
            update = {"in_flight_per_link": collapsed(depths), "recompute": collapsed(again)}
            method = method.model_copy(update=update)
        return Candidate(placement, method)


def _by_stage(method: Method, stages: int) -> Iterator[Method]:
    """Yield what every stage has of a method; the first has the depth of the links out of it."""
    depths = of_links(method.in_flight_per_link, stages) or (most(method.in_flight_per_link),)
    for stage, again in enumerate(of_stages(method.recompute, stages)):
        own = {"in_flight_per_link": depths[max(stage - 1, 0)], "recompute": again}
        yield method.model_copy(update=own)
