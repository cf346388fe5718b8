"""Costs for users who have measured none: made up from sizes."""

from __future__ import annotations

from drlpp.capturing.graph import OpGraph
from drlpp.costs.profile import OperatorProfile, Profile

_BYTES_PER_SECOND = 2e10


def estimate_profile(graph: OpGraph, bytes_per_second: float = _BYTES_PER_SECOND) -> Profile:
    """Return costs in proportion to the bytes that an operator reads and writes.

    Only ratios mean anything, and those not much: it is a start for planners whose placements are
    measured anyway.
    """
    read = [0] * len(graph)
    for edge in graph.edges:
        outputs = graph.operators[edge.source].outputs
        read[edge.target] += sum(outputs[index].bytes_ for index in edge.outputs)
    seconds = [
        (op.parameter_bytes + op.output_bytes + read[op.id]) / bytes_per_second
        for op in graph.operators
    ]
    return Profile(
        graph=graph,
        device="estimated from sizes",
        batch_size=1,
        operators=tuple(
            OperatorProfile(forward_seconds=value, backward_seconds=2 * value) for value in seconds
        ),
    )
