"""What a worker needs to know of a run in addition to its actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.weight_policies import WeightUse


@dataclass(frozen=True)
class RunPlan:
    """What a worker needs to know of a run in addition to its actions.

    Attributes:
        uses: which weights every part uses that is still to pass, forwards or backwards.
        rates: the learning rate of every update of the run, from that which makes version 1.
        recomputed: parts whose activations are computed again.
        kept: parts that a checkpoint at the end of this run finds in flight.
        version: of the weights at its beginning, if it continues an earlier run.
        shared: whether several parts or replicas contribute to one update.
        finite: whether to stop at a loss that is infinite or not a number.
    """

    uses: Mapping[MicrobatchId, WeightUse]
    rates: Sequence[float]
    recomputed: frozenset[MicrobatchId] = frozenset()
    kept: frozenset[MicrobatchId] = frozenset()
    version: int = 0
    shared: bool = False
    finite: bool = False
