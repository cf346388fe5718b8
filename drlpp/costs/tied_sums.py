"""What copies of weights on several stages take for a minibatch of a placement.

All copies make an update together (:mod:`drlpp.schedule.ties`), of as many minibatches as make
whole updates of each stage that holds one. For it every stage but the root sends its gradients to
each replica of the root, and gets the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy

from drlpp.costs.stage_work import Array, StageWork
from drlpp.costs.workload import Workload


@dataclass(frozen=True)
class TiedSums:
    """The sums of a placement's copies.

    Attributes:
        updates: of copies, for each of a stage's own; ``(stages,)``.
        bytes_: stages that hold copies, and the bytes of a message between two of them, in a
            minibatch.
    """

    updates: Array
    bytes_: tuple[tuple[tuple[int, ...], float], ...]

    @classmethod
    def of(
        cls, workload: Workload, work: StageWork, stage_of: Sequence[int], replicas: Sequence[int]
    ) -> TiedSums:
        """Look at all stages of a placement.

        Args:
            workload: with the weights.
            work: of any stage.
            stage_of: the stage of every operator.
            replicas: of every stage.
        """
        own = [work.minibatches_of_update(count) for count in replicas]
        all_bytes, rates, found = numpy.zeros(len(own)), numpy.zeros(len(own)), []
        for stages, ties in workload.ties_between(stage_of).items():
            together = math.lcm(*(own[stage] for stage in stages))
            bytes_ = sum(tie.bytes_ for tie in ties)
            found.append((stages, bytes_ / together))
            for stage in stages:
                all_bytes[stage] += bytes_
                rates[stage] += bytes_ * own[stage] / together
        updates = numpy.divide(rates, all_bytes, out=numpy.ones(len(own)), where=all_bytes > 0)
        return cls(updates, tuple(found))

    def applied(self, work: StageWork, stages: int | Sequence[int]) -> StageWork:
        """Return the work of some stages, which now know how often their copies are updated."""
        return replace(work, tied_updates=numpy.take(self.updates, stages))
