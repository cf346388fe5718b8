"""How long workers were busy, as they were measured, with what was declared of their work.

They are divided by what short runs took longer than operators alone, which the simulator multiplies
with again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy

from drlpp.costs.stage_work import Array, StageWork
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement


@dataclass(frozen=True)
class BusyTime:
    """Seconds that a worker is busy for a minibatch of its own, and what they are declared to be.

    ``noise`` is the standard deviation of their logarithm.
    """

    operators: tuple[int, ...]
    operator_seconds: Array
    passes: int
    parameter_seconds: float
    accelerator: int
    seconds: float
    noise: float


def busy_times(
    workload: Workload,
    candidate: Candidate,
    measurement: Measurement,
    works: Sequence[StageWork],
    in_flight: Sequence[int],
    noise: float,
) -> Iterator[BusyTime]:
    """Yield those of the workers that were busy at all.

    Args:
        workload: as it was declared, under the candidate's method.
        candidate: that was measured.
        measurement: of it.
        works: of its stages.
        in_flight: the parts that every stage has in flight.
        noise: standard deviation of the logarithm of a measured busy time.
    """
    minibatches = measurement.minibatches
    overhead = workload.microbatches * (
        workload.forward_overhead_seconds + workload.backward_overhead_seconds
    )
    longer = workload.run_factors(candidate.placement)
    for usage in measurement.workers:
        if usage.busy_seconds <= 0:
            continue
        held = candidate.placement.stages_of(usage.worker)
        replicas = len(candidate.placement.stages[held[0]].accelerators)
        operators: list[int] = []
        operator_seconds: list[float] = []
        extra = 0.0
        for stage in held:
            work, chosen = works[stage], list(candidate.placement.stages[stage].operators)
            seconds = workload.seconds[chosen]
            # What has just been computed is not computed again.
            if candidate.method.recomputes(stage) and in_flight[stage] > 1:
                seconds = seconds + workload.forward_seconds[chosen]
            operators += chosen
            operator_seconds += seconds.tolist()
            updates = float(work.updates_in_a_round(replicas) * work.update_seconds)
            of_parameters = float(work.seconds) - float(workload.seconds[chosen].sum()) - overhead
            of_parameters += updates + float(work.sharing_seconds) * (replicas > 1)
            extra += max(of_parameters, 0.0)
        busy_seconds = usage.busy_seconds * replicas / minibatches
        # Without whole rounds, a replica had one minibatch more or less than its share.
        uneven = replicas / minibatches * (minibatches % replicas > 0)
        yield BusyTime(
            operators=tuple(operators),
            operator_seconds=numpy.array(operator_seconds),
            passes=len(held) * workload.microbatches,
            parameter_seconds=extra,
            accelerator=usage.worker,
            seconds=busy_seconds / longer[usage.stage].passes,
            noise=math.hypot(noise, uneven),
        )
