"""The planners that other planners are held against: data parallelism, and GPipe's even split."""

from __future__ import annotations

from itertools import pairwise

import numpy
from numpy.typing import NDArray

from drlpp.errors import InvalidInput
from drlpp.placement.placement import Placement, Stage
from drlpp.placement.plan import Plan
from drlpp.planners.problem import PlanningProblem

# Sums of the same seconds in another order may differ by rounding; they count as equal.
_TOLERANCE = 1e-9


def data_parallel(problem: PlanningProblem) -> Plan:
    """Place all operators in one stage that all accelerators hold; costs do not matter."""
    stage = Stage(
        operators=tuple(range(len(problem.workload))),
        accelerators=tuple(range(problem.cluster.accelerators)),
    )
    return Plan(Placement(stages=(stage,)))


def gpipe(problem: PlanningProblem) -> Plan:
    """Split the operators, in their order, so that the slowest stage is as fast as possible.

    GPipe takes a partitioned model as given (pipedream §2.2); its users balance the stages by
    measured time, and so does this. The stages are runs of consecutive operators in topological
    order, as many as there are accelerators (or operators, if these are fewer), unreplicated.
    *Even* means: of all such splits the one with the smallest maximum of forward plus backward
    seconds, among those the one with the smallest sum of squares, and then the earliest cuts.
    Communication, memory and the speeds of accelerators do not count. Where accelerators hold two
    stages there are twice as many, there and back.

    Raises:
        InvalidInput: accelerators are to hold two stages, and there are too few for that.
    """
    workload, held = problem.workload, problem.workload.stages_held
    count = min(problem.cluster.accelerators, len(workload) // held)
    if held > 1 and count < 2:
        raise InvalidInput(
            f"two stages on each accelerator need two accelerators and four operators at least; "
            f"there are {problem.cluster.accelerators} and {len(workload)}"
        )
    cuts = _even_cuts(workload.seconds, count * held)
    last = count * held - 1
    return Plan(
        Placement(
            stages=tuple(
                Stage(
                    operators=tuple(range(begin, end)),
                    accelerators=(index if index < count else last - index,),
                )
                for index, (begin, end) in enumerate(pairwise(cuts))
            )
        )
    )


def _even_cuts(seconds: NDArray[numpy.float64], stages: int) -> list[int]:
    """Return positions 0 = c₀ < c₁ < … < c_stages = N of the even split."""
    count = len(seconds)
    sums = numpy.concatenate(([0.0], numpy.cumsum(seconds)))
    # block[s, e]: seconds of operators s … e − 1; a stage needs at least one operator.
    block = sums[None, :] - sums[:, None]
    block[numpy.tril_indices(count + 1)] = numpy.inf

    slowest = block[0]
    for _ in range(stages - 1):
        slowest = numpy.maximum(slowest[:, None], block).min(axis=0)
    within = block <= slowest[count] * (1 + _TOLERANCE)

    squares = numpy.where(within, block**2, numpy.inf)
    total = squares[0]
    totals = [total]
    for _ in range(stages - 1):
        total = (total[:, None] + squares).min(axis=0)
        totals.append(total)

    cuts = [count]
    for total in reversed(totals[:-1]):
        through = total + squares[:, cuts[0]]
        # argmax gives the first position that is as good as the best: the earliest cut.
        best = through.min() * (1 + _TOLERANCE)
        cuts.insert(0, int(numpy.argmax(through <= best)))
    return [0, *cuts]
