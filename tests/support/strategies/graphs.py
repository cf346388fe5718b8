"""Hypothesis strategies for operator graphs, profiles, clusters and pipelines."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from drlpp.capturing.graph import Edge, Operator, OpGraph, SharedParameter, TensorSpec
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline, StageEdge
from drlpp.specs.cluster import Cluster, Link, local_cluster


def graph_of(
    edges: Sequence[tuple[int, int]],
    *,
    parameter_bytes: Sequence[int],
    output_bytes: Sequence[int],
    dtypes: Sequence[str] | None = None,
    shared: Sequence[SharedParameter] = (),
) -> OpGraph:
    """A graph of one-output operators ``op0``, ``op1``, …; sinks are what the model returns.

    Their parameters that are ``shared`` are among ``parameter_bytes``.
    """
    count = len(parameter_bytes)
    dtypes = dtypes or ["float32"] * count
    return OpGraph(
        model="made-up",
        operators=tuple(
            Operator(
                id=i,
                name=f"op{i}",
                type="linear",
                module=f"layers.{i}",
                parameter_bytes=parameter_bytes[i],
                outputs=(TensorSpec(shape=(1,), dtype=dtypes[i], bytes_=output_bytes[i]),),
            )
            for i in range(count)
        ),
        edges=tuple(Edge(source=a, target=b, outputs=(0,)) for a, b in edges),
        outputs=tuple((i, 0) for i in range(count) if all(a != i for a, _ in edges)),
        shared_parameters=tuple(shared),
    )


def chain_of(
    *, seconds: Sequence[float], parameter_bytes: Sequence[int], output_bytes: Sequence[int]
) -> tuple[OpGraph, Profile]:
    graph = graph_of(
        [(i, i + 1) for i in range(len(seconds) - 1)],
        parameter_bytes=parameter_bytes,
        output_bytes=output_bytes,
    )
    return graph, profile_of(graph, seconds)


def profile_of(graph: OpGraph, seconds: Sequence[float]) -> Profile:
    """A third of the time goes to the forward pass."""
    return Profile(
        graph=graph,
        device="cpu",
        batch_size=1,
        operators=tuple(
            OperatorProfile(forward_seconds=value / 3, backward_seconds=value * 2 / 3)
            for value in seconds
        ),
    )


def tied_chain(
    seconds: Sequence[int], bytes_: int, *, first: int = 0, trained: bool = True
) -> Profile:
    """A chain whose ``first`` and last operator read a weight of so many bytes."""
    last = len(seconds) - 1
    graph = graph_of(
        [(i, i + 1) for i in range(last)],
        parameter_bytes=[bytes_ if op in (first, last) else 2 for op in range(len(seconds))],
        output_bytes=[1] * len(seconds),
        shared=[
            SharedParameter(name="wte", bytes_=bytes_, operators=(first, last), trained=trained)
        ],
    )
    return profile_of(graph, seconds).model_copy(update={"update_seconds_per_byte": 0.5})


def cluster_of(accelerators: int, bandwidth: float = 1.0) -> Cluster:
    return local_cluster(accelerators, Link(bandwidth_bytes_per_second=bandwidth))


@st.composite
def graphs(draw: st.DrawFn, max_operators: int = 8, chain: bool = False) -> OpGraph:
    count = draw(st.integers(1, max_operators))
    edges = {(i, i + 1) for i in range(count - 1)} if chain else set()
    if not chain:
        for target in range(1, count):
            edges |= {(s, target) for s in draw(st.sets(st.integers(0, target - 1), max_size=2))}
    sizes = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    return graph_of(sorted(edges), parameter_bytes=draw(sizes), output_bytes=draw(sizes))


@st.composite
def shared_parameters(draw: st.DrawFn, count: int) -> list[SharedParameter]:
    """Up to two weights that two or three of so many operators read; none in half of the draws."""
    if count < 2:
        return []
    readers = st.lists(st.integers(0, count - 1), min_size=2, max_size=3, unique=True)
    return [
        SharedParameter(
            name=f"shared{number}",
            bytes_=draw(st.integers(1, 9)),
            operators=tuple(sorted(members)),
            trained=draw(st.booleans()),
        )
        for number, members in enumerate(draw(st.just([]) | st.lists(readers, max_size=2)))
    ]


@st.composite
def profiles(draw: st.DrawFn, graph: OpGraph) -> Profile:
    count = len(graph)
    return profile_of(graph, draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)))


@st.composite
def placements(draw: st.DrawFn, graph: OpGraph, accelerators: int) -> Placement:
    """A valid placement on some of the accelerators: every operator not before what it reads."""
    stage_of: list[int] = []
    limit = min(accelerators, len(graph)) - 1
    for operator in range(len(graph)):
        earliest = max((stage_of[p] for p in graph.predecessors[operator]), default=0)
        stage_of.append(draw(st.integers(earliest, limit)))
    stages = sorted(set(stage_of))
    free = draw(st.permutations(range(accelerators)))
    holds = dict(zip(free, stages, strict=False))
    for accelerator in free[len(stages) :]:
        holds[accelerator] = draw(st.sampled_from(stages))
    return Placement.from_assignment(stage_of, [holds[a] for a in range(accelerators)])


@st.composite
def pipelines(draw: st.DrawFn, max_stages: int = 5, max_replicas: int = 4) -> Pipeline:
    """Stage DAGs whose edges go to later stages and in which every stage reaches the last."""
    count = draw(st.integers(1, max_stages))
    edges = set()
    for source in range(count - 1):
        targets = st.integers(source + 1, count - 1)
        edges |= {(source, t) for t in draw(st.sets(targets, min_size=1, max_size=2))}
    replicas = draw(st.lists(st.integers(1, max_replicas), min_size=count, max_size=count))
    numbers = iter(draw(st.permutations(range(sum(replicas)))))
    return Pipeline(
        stages=tuple(tuple(next(numbers) for _ in range(size)) for size in replicas),
        edges=tuple(StageEdge(*edge, differentiable=draw(st.booleans())) for edge in sorted(edges)),
    )


def depths(stages: int) -> st.SearchStrategy[int | tuple[int, ...]]:
    """One number for all links, or one for each."""
    one = st.integers(0, 3)
    if stages == 1:
        return one
    return one | st.lists(one, min_size=stages - 1, max_size=stages - 1).map(tuple)


def recomputing(stages: int) -> st.SearchStrategy[bool | tuple[bool, ...]]:
    """One answer for all stages, or one for each."""
    each = st.lists(st.booleans(), min_size=stages, max_size=stages).map(tuple)
    return st.booleans() | each


@st.composite
def uneven(draw: st.DrawFn, method: Method, stages: int) -> Method:
    """The method as it is, or with other depths and recomputation for so many stages."""
    if draw(st.booleans()):
        return method
    values = {**method.model_dump(), "recompute": draw(recomputing(stages))}
    if not method.flushes:
        values["in_flight_per_link"] = draw(depths(stages))
    return Method.model_validate(values)
