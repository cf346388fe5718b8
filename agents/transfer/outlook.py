"""Where an operator stands in its model: what comes before it, what after, where cuts are cheap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from drlpp.agents.transfer.relative_costs import RelativeCosts, logarithm
from drlpp.costs.stage_cost import Array

_AHEAD = (0.25, 0.5, 1.0, 2.0)
"""Work, in accelerators' worth, that is looked ahead."""


def operator_features(costs: RelativeCosts, predecessors: Sequence[Sequence[int]]) -> Array:
    """Return fourteen numbers for every operator.

    Graph convolutions see three operators far; these numbers see all operators.

    * the share of the work of all that it depends on, and of all that depends on it;
    * the share of work and of weights up to it in the order of the operators;
    * what a cut behind it would send, in that order; the least that any cut would send within the
      next 0.25, 0.5, 1 and 2 accelerators' worth of work;
    * the weights within the next 0.5, 1 and 2 accelerators' worth of work, as ideals;
    * the most work of one operator within the next accelerator's worth, and of all that follow.

    Returns:
        ``(operators, 14)``.
    """
    count = len(costs.work)
    total = max(float(costs.work.sum()), 1e-12)
    before = numpy.zeros((count, count), dtype=bool)
    for operator, read in enumerate(predecessors):
        before[operator, operator] = True
        for source in read:
            before[operator] |= before[source]
    ancestors = before @ costs.work / total
    descendants = before.T @ costs.work / total
    work, weights = costs.work.cumsum(), costs.weights.cumsum()
    crossing = _crossing(costs)
    columns = [
        ancestors,
        descendants,
        work / total,
        weights / max(float(weights[-1]), 1e-12),
        logarithm(crossing),
    ]
    ends = [numpy.searchsorted(work, work + ahead, side="right") for ahead in _AHEAD]
    for end in ends:
        # Behind the last operator there is nothing to cut.
        least = [
            crossing[first + 1 : min(last, count - 1)].min(initial=1e4)
            for first, last in enumerate(end)
        ]
        columns.append(logarithm(numpy.array(least)))
    padded = numpy.append(weights, weights[-1])
    columns += [logarithm(padded[numpy.minimum(end, count) - 1] - weights) for end in ends[1:]]
    following = numpy.append(costs.work[1:], 0.0)
    largest = [following[at:last].max(initial=0.0) for at, last in enumerate(ends[2])]
    columns.append(numpy.minimum(largest, 2.0))
    columns.append(numpy.minimum(numpy.maximum.accumulate(following[::-1])[::-1], 2.0))
    return numpy.column_stack(columns)


def _crossing(costs: RelativeCosts) -> Array:
    """Return the ideals of what a cut behind every operator would send, in operator order."""
    change = numpy.zeros(len(costs.work) + 1)
    for tensor in costs.tensors:
        if tensor.readers:
            change[tensor.source] += tensor.forward + tensor.backward
            change[max(tensor.readers)] -= tensor.forward + tensor.backward
    return change[:-1].cumsum()
