"""Hypothesis strategies for planning problems: workloads, clusters of several hosts, memory."""

from __future__ import annotations

import numpy
from hypothesis import strategies as st

from drlpp.capturing.graph import SharedParameter
from drlpp.costs.memory import MemoryModel
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.planners.problem import PlanningProblem
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Host, Link

amounts = st.integers(0, 9).map(float)


@st.composite
def workloads(
    draw: st.DrawFn, max_operators: int = 6, overheads: bool = True, divided: bool = False
) -> Workload:
    """Tensors may have any members, the loss among them; edges are a part of what they imply."""
    count = draw(st.integers(1, max_operators))
    members = st.lists(st.integers(0, count), min_size=2, max_size=4, unique=True)
    transfers = []
    edges = set()
    for found in draw(st.lists(members, max_size=2 * count)):
        # The loss reads, and makes nothing.
        source, *readers = sorted(found)
        transfers.append(Transfer((source, *readers), draw(amounts), draw(amounts)))
        edges |= {(source, reader) for reader in readers if reader < count and draw(st.booleans())}

    def column() -> numpy.ndarray:
        return numpy.array(draw(st.lists(amounts, min_size=count, max_size=count)))

    parameter_bytes, update_seconds = column(), column()
    ties = draw(_ties(count)) if count > 1 else []
    for tie in ties:
        parameter_bytes[list(tie.operators)] += tie.bytes_
    if ties:
        # A weight takes the same time whoever reads it.
        update_seconds = parameter_bytes * draw(st.sampled_from([0.0, 0.25]))
    forward_seconds, backward_seconds, kept_bytes = column(), column(), column()
    working_bytes = numpy.zeros(count + 1)
    if draw(st.booleans()):
        busy = forward_seconds + backward_seconds + kept_bytes + parameter_bytes > 0
        working_bytes = numpy.append(column() * busy, draw(amounts))
    return Workload(
        model="made-up",
        names=tuple(f"op{i}" for i in range(count)),
        forward_seconds=forward_seconds,
        backward_seconds=backward_seconds,
        update_seconds=update_seconds,
        parameter_bytes=parameter_bytes,
        kept_bytes=kept_bytes,
        working_bytes=working_bytes,
        ties=tuple(ties),
        edges=tuple(sorted(edges)),
        transfers=tuple(transfers),
        method=Method(microbatches=draw(_PARTS) if divided else 1),
        **{name: draw(st.sampled_from([0.0, 0.5])) for name in _OVERHEADS if overheads},
    )


@st.composite
def _ties(draw: st.DrawFn, count: int) -> list[SharedParameter]:
    """Weights that two or three operators read, in half of the draws."""
    readers = st.lists(st.integers(0, count - 1), min_size=2, max_size=3, unique=True)
    found = draw(st.just([]) | st.lists(readers, min_size=1, max_size=2))
    return [
        SharedParameter(
            name=f"tied{n}",
            operators=tuple(sorted(members)),
            bytes_=int(draw(amounts)),
            trained=draw(st.booleans()),
        )
        for n, members in enumerate(found)
    ]


_PARTS = st.sampled_from([1, 2, 3])
_OVERHEADS = (
    "forward_overhead_seconds",
    "backward_overhead_seconds",
    "update_overhead_seconds",
    "prediction_seconds_per_byte",
    "sharing_seconds_per_byte",
)


@st.composite
def clusters(draw: st.DrawFn, max_accelerators: int = 4, hosts: int = 2) -> Cluster:
    """Up to ``hosts`` hosts of different speeds, memories and networks."""
    links = st.builds(
        Link,
        bandwidth_bytes_per_second=st.sampled_from([0.5, 1.0, 4.0]),
        latency_seconds=st.sampled_from([0.0, 0.25]),
    )
    left = draw(st.integers(1, max_accelerators))
    lines = []
    while left:
        taken = left if len(lines) == hosts - 1 else draw(st.integers(1, left))
        left -= taken
        lines.append(
            Host(
                name=f"host{len(lines)}",
                accelerators=taken,
                speed=draw(st.sampled_from([0.5, 1.0, 2.0])),
                memory_bytes=draw(st.none() | st.sampled_from([10.0, 40.0, 200.0])),
                network=draw(st.none() | links),
            )
        )
    return Cluster(hosts=tuple(lines), within_host=draw(links), between_hosts=draw(links))


@st.composite
def problems(
    draw: st.DrawFn,
    max_operators: int = 6,
    max_accelerators: int = 4,
    hosts: int = 2,
    overheads: bool = True,
    divided: bool = False,
) -> PlanningProblem:
    """Any problem, where minibatches are ``divided`` with up to three microbatches."""
    return PlanningProblem(
        workload=draw(workloads(max_operators, overheads, divided)),
        cluster=draw(clusters(max_accelerators, hosts)),
        replicate=draw(st.booleans()),
        memory=draw(
            st.builds(
                MemoryModel,
                st.builds(
                    Method,
                    policy=st.sampled_from(["vanilla", "pipeoptim", "stash"]),
                    in_flight_per_link=st.sampled_from([0, 0, 1]),
                    microbatches=_PARTS if divided else st.just(1),
                    accumulate=_PARTS if divided else st.just(1),
                ),
                st.sampled_from([0, 1, 2]),
            )
        ),
        seed=draw(st.integers(0, 9)),
    )


def check_placement(problem: PlanningProblem, placement: Placement) -> None:
    """Fails unless a pipeline can run the placement and the problem allows it."""
    held = [a for stage in placement.stages for a in stage.accelerators]
    assert len(held) == len(set(held))
    assert problem.replicate or len(held) == len(placement.stages)
    workload = problem.workload
    placed = sorted(op for stage in placement.stages for op in stage.operators)
    assert placed == list(range(len(workload)))
    assert set(placement.accelerators) <= set(range(problem.cluster.accelerators))
    assert all(stage.operators and stage.accelerators for stage in placement.stages)
    stage_of = placement.stage_of_operator(len(workload))
    assert all(stage_of[source] <= stage_of[target] for source, target in workload.edges)
