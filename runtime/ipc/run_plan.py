"""What a worker needs to know of a run in addition to its actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.weight_policies import WeightUse


@dataclass(frozen=True)
class WeightPlan:
    """What a run does to weights that are updated together.

    Attributes:
        uses: which of their versions every part uses that is still to pass.
        rates: the learning rate of every update of the run, from that which makes version 1.
        version: of the weights at its beginning, if it continues an earlier run.
        shared: whether several parts or replicas contribute to one update.
    """

    uses: Mapping[MicrobatchId, WeightUse]
    rates: Sequence[float]
    version: int = 0
    shared: bool = False


@dataclass(frozen=True, kw_only=True)
class TiedPlan(WeightPlan):
    """What a run does to a copy of weights that other stages hold too.

    Attributes:
        root: the stage that sums the gradients.
        others: the other stages, in the order in which their gradients are added.
    """

    root: int
    others: tuple[int, ...]


@dataclass(frozen=True)
class RunPlan:
    """What a worker needs to know of a run in addition to its actions.

    Attributes:
        own: of the weights that only this stage holds.
        tied: of its copies of weights that other stages hold too, by tie.
        recomputed: parts whose activations are computed again.
        kept: parts that a checkpoint at the end of this run finds in flight.
        finite: whether to stop at a loss that is infinite or not a number.
    """

    own: WeightPlan
    tied: Mapping[int, TiedPlan] = field(default_factory=dict)
    recomputed: frozenset[MicrobatchId] = frozenset()
    kept: frozenset[MicrobatchId] = frozenset()
    finite: bool = False
