"""A measurer with a formula, and graphs for it, for the tests of environments and agents."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import hypothesis.strategies as st

from drlpp.capturing.graph import Edge, Operator, OpGraph, TensorSpec
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.schedule.method import DEFAULT_METHOD


def graph_of(count: int, edges: Sequence[tuple[int, int]]) -> OpGraph:
    """Operators of three types and uneven sizes, each with one output."""
    draw = random.Random(count)
    return OpGraph(
        model="made-up",
        operators=tuple(
            Operator(
                id=i,
                name=f"op{i}",
                type=("conv2d", "relu", "linear")[i % 3],
                module=f"layers.{i}",
                parameter_bytes=draw.randrange(1000),
                outputs=(
                    TensorSpec(shape=(1,), dtype="float32", bytes_=draw.randrange(100, 1000)),
                ),
            )
            for i in range(count)
        ),
        edges=tuple(Edge(source=a, target=b, outputs=(0,)) for a, b in edges),
        outputs=((count - 1, 0),),
    )


def chain(count: int) -> OpGraph:
    return graph_of(count, [(i, i + 1) for i in range(count - 1)])


def branching(count: int) -> OpGraph:
    """Two branches that read operator 0 and are joined by the last one."""
    middle = range(1, count - 1)
    edges = [(0 if i < 3 else i - 2, i) for i in middle]
    return graph_of(count, [*edges, *((i, count - 1) for i in middle[-2:])])


@st.composite
def graphs(draw: st.DrawFn, max_operators: int = 12) -> OpGraph:
    """Any DAG: several inputs, several outputs, skips, parts that are not joined."""
    count = draw(st.integers(1, max_operators))
    edges = [
        (source, target)
        for target in range(1, count)
        for source in sorted(draw(st.sets(st.integers(0, target - 1), max_size=3)))
    ]
    return graph_of(count, edges)


def of(placement: Placement) -> Candidate:
    """A placement as the measurer runs it."""
    return Candidate(placement, DEFAULT_METHOD)


class FakeMeasurer:
    """Seconds of the slowest stage plus those of all crossing tensors.

    Like a live session it holds what cannot be copied. ``failures`` are outcomes to return
    instead, by configuration.
    """

    def __init__(
        self,
        graph: OpGraph,
        accelerators: int = 4,
        failures: dict[str, FailedMeasurement] | None = None,
    ) -> None:
        draw = random.Random(len(graph))
        self.graph = graph
        self.accelerators = accelerators
        self.method = DEFAULT_METHOD
        self.seconds = [draw.uniform(0.001, 0.01) for _ in graph.operators]
        self.failures = failures or {}
        self.measured: list[Placement] = []
        self.closed = 0
        self._uncopyable = threading.Lock()

    def measure(self, plan: ExecutionPlan, minibatches: int = 30) -> Outcome:
        placement = plan.placement
        self.measured.append(placement)
        if placement.configuration in self.failures:
            return self.failures[placement.configuration]
        slowest = max(
            sum(self.seconds[operator] for operator in stage.operators) / len(stage.accelerators)
            for stage in placement.stages
        )
        crossing = crossing_bytes(self.graph, placement.stage_of_operator(len(self.graph)))
        seconds = slowest + 1e-6 * crossing
        return Measurement(
            seconds_per_minibatch=seconds,
            median_seconds=seconds,
            standard_deviation_seconds=0.0,
            minibatches=minibatches,
        )

    def close(self) -> None:
        self.closed += 1

    def __deepcopy__(self, memo: dict[int, object]) -> FakeMeasurer:
        return self


def crossing_bytes(graph: OpGraph, stage_of: Sequence[int]) -> int:
    """Bytes that go from stage to stage; a tensor is sent once to each stage that reads it."""
    tensors = {
        (edge.source, output, stage_of[edge.target])
        for edge in graph.edges
        for output in edge.outputs
        if stage_of[edge.source] != stage_of[edge.target]
    }
    return sum(graph.operators[source].outputs[output].bytes_ for source, output, _ in tensors)
