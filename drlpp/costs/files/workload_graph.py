"""The operators of a workload as a graph, for those that come without one."""

from __future__ import annotations

from collections import Counter

from drlpp.capturing.graph import Edge, Operator, OpGraph, TensorSpec
from drlpp.costs.workload import Workload

_UNKNOWN = TensorSpec(shape=(0,), dtype="float32", bytes_=0)


def graph_of_workload(workload: Workload) -> OpGraph:
    """Return operators, weights and their order; what tensors hold is not known.

    It is what a placement file needs. Operators of the same name are told apart by their numbers.
    """
    times = Counter(workload.names)
    return OpGraph(
        model=workload.model,
        operators=tuple(
            Operator(
                id=number,
                name=name if times[name] == 1 else f"{name} ({number})",
                type="node",
                module="",
                parameter_bytes=round(workload.parameter_bytes[number]),
                outputs=(_UNKNOWN,),
            )
            for number, name in enumerate(workload.names)
        ),
        edges=tuple(Edge(source=a, target=b, outputs=(0,)) for a, b in sorted({*workload.edges})),
        outputs=tuple((number, 0) for number, read in enumerate(workload.successors) if not read),
    )
