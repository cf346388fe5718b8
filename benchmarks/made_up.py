"""Made-up models and placements.

Models are graphs with costs, in families that resemble those of real networks.

What agents and searches are compared and trained on, without a device to profile real models on. A
model is given by its family, its number of operators and a seed; times and sizes are those of a
network on a GPU, drawn with the heavy tails that real ones have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from random import Random

import numpy
from numpy.random import Generator

from drlpp.capturing.graph import Edge, Operator, OpGraph, TensorSpec
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.problem import PlanningProblem

_Edges = set[tuple[int, int]]
_Family = Callable[[int, Generator], _Edges]


def generate(family: str, operators: int, seed: int) -> Profile:
    """Return a model of a family; the same arguments always give the same model.

    Raises:
        InvalidInput: if there is no such family, or for less than one operator.
    """
    if family not in FAMILIES:
        raise InvalidInput(f"family {family!r} is unknown; there are {', '.join(FAMILIES)}")
    if operators < 1:
        raise InvalidInput(f"{operators} operators asked for; a model has at least 1")
    draw = numpy.random.default_rng([list(FAMILIES).index(family), operators, seed])
    edges = FAMILIES[family](operators, draw)
    return with_costs(f"{family}-{operators}-{seed}", operators, sorted(edges), draw)


def _chain(count: int, draw: Generator) -> _Edges:
    return {(i, i + 1) for i in range(count - 1)}


def _residual(count: int, draw: Generator) -> _Edges:
    """Return a chain with skips over two to six operators."""
    edges, begin = _chain(count, draw), 0
    while (end := begin + int(draw.integers(2, 7))) < count:
        edges.add((begin, end))
        begin = end
    return edges


def _blocks(count: int, draw: Generator) -> _Edges:
    """Return blocks of two to four branches one after the other, like Inception's."""
    edges: _Edges = set()
    join, following = 0, 1
    while count - following >= 3:
        branches = int(draw.integers(2, 5))
        ends = []
        for _ in range(branches):
            length = min(int(draw.integers(1, 4)), count - following - 1)
            last = join
            for _ in range(length):
                edges.add((last, following))
                last, following = following, following + 1
            ends.append(last)
        edges |= {(end, following) for end in ends}
        join, following = following, following + 1
    return edges | {(i, i + 1) for i in range(join, count - 1)}


def _towers(count: int, draw: Generator) -> _Edges:
    """Return two to four chains that meet at the end, like a model of several inputs."""
    towers = min(int(draw.integers(2, 5)), max(count - 1, 1))
    bounds = [round(i * (count - 1) / towers) for i in range(towers + 1)]
    edges: _Edges = set()
    for begin, end in pairwise(bounds):
        edges |= {(i, i + 1) for i in range(begin, end - 1)}
        if end > begin:
            edges.add((end - 1, count - 1))
    return edges


def _encoder_decoder(count: int, draw: Generator) -> _Edges:
    """Return a chain whose second part attends to the end of the first, like a translator."""
    middle = max(1, int(count * draw.uniform(0.35, 0.65)))
    every = int(draw.integers(2, 5))
    attending = {(middle - 1, i) for i in range(middle + 1, count, every)}
    decoder = {(i, i + 1) for i in range(middle, count - 1)}
    encoder = {(i, i + 1) for i in range(middle - 1)}
    return encoder | decoder | attending | ({(middle - 1, middle)} if middle < count else set())


def _layered(count: int, draw: Generator) -> _Edges:
    """Return layers of one to four operators that read one to three of the layer before."""
    edges: _Edges = set()
    before, following = [0], 1
    while following < count:
        width = min(int(draw.integers(1, 5)), count - following)
        layer = list(range(following, following + width))
        for operator in layer:
            read = draw.choice(
                before, size=min(len(before), int(draw.integers(1, 4))), replace=False
            )
            edges |= {(int(source), operator) for source in read}
        unread = [o for o in before if all(source != o for source, _ in edges)]
        edges |= {(o, layer[0]) for o in unread}
        before, following = layer, following + width
    return edges


FAMILIES: dict[str, _Family] = {
    "chain": _chain,
    "residual": _residual,
    "blocks": _blocks,
    "towers": _towers,
    "encoder-decoder": _encoder_decoder,
    "layered": _layered,
}
"""By name: the edges of a model with a given number of operators, in a topological order."""


def with_costs(model: str, count: int, edges: list[tuple[int, int]], draw: Generator) -> Profile:
    """Return a model of these edges, sorted and in a topological order, with drawn costs."""
    total_seconds = draw.uniform(0.1, 0.5)
    depth = numpy.arange(count) / max(count - 1, 1)
    seconds = draw.lognormal(0.0, draw.uniform(0.3, 1.0), count)
    seconds *= total_seconds / seconds.sum()
    # Convolutional networks begin with large activations and end with large weights; others are
    # the same all along.
    slope = draw.uniform(0.0, 3.0)
    weights = draw.lognormal(0.0, 1.0, count) * numpy.exp(slope * depth)
    weights[draw.random(count) < 0.3] = 0.0
    weights *= math.exp(draw.uniform(math.log(2e7), math.log(1e9))) / max(weights.sum(), 1e-9)
    outputs = draw.lognormal(0.0, 0.7, count) * numpy.exp(-slope * depth)
    outputs *= math.exp(draw.uniform(math.log(1e6), math.log(4e7))) / outputs.mean()
    forward_share = draw.uniform(0.28, 0.4, count)
    types = draw.choice(["convolution", "linear", "relu", "add", "lstm", "softmax"], count)
    returned = sorted({*range(count)} - {source for source, _ in edges})
    sizes = [4 * max(1, round(bytes_ / 4)) for bytes_ in outputs]
    for index in returned:
        # What a model returns is read by the loss, and small.
        sizes[index] = 4000
    graph = OpGraph(
        model=model,
        operators=tuple(
            Operator(
                id=i,
                name=f"op{i}",
                type=str(types[i]),
                module=f"layers.{i}",
                parameter_bytes=4 * round(weights[i] / 4),
                outputs=(TensorSpec(shape=(size // 4,), dtype="float32", bytes_=size),),
            )
            for i, size in enumerate(sizes)
        ),
        edges=tuple(Edge(source=a, target=b, outputs=(0,)) for a, b in edges),
        outputs=tuple((i, 0) for i in returned),
    )
    return Profile(
        graph=graph,
        device="made up",
        batch_size=64,
        operators=tuple(
            OperatorProfile(
                forward_seconds=float(seconds[i] * forward_share[i]),
                backward_seconds=float(seconds[i] * (1 - forward_share[i])),
                kept_bytes=4 * round(outputs[i] / 4),
            )
            for i in range(count)
        ),
    )


def random_placement(problem: PlanningProblem, draw: Random) -> Placement:
    """Draw a valid placement.

    Every placement that holds all accelerators that it may hold has a chance. First the number of
    stages is drawn, then a topological order of the operators and where it is cut, then the
    accelerators: one for each stage, and the others anywhere.
    """
    workload, accelerators = problem.workload, problem.cluster.accelerators
    count = draw.randint(1, min(len(workload), accelerators))
    order = random_order(workload, draw)
    cuts = [0, *sorted(draw.sample(range(1, len(order)), count - 1)), len(order)]
    shuffled = draw.sample(range(accelerators), accelerators)
    held = [[accelerator] for accelerator in shuffled[:count]]
    if problem.replicate:
        for accelerator in shuffled[count:]:
            draw.choice(held).append(accelerator)
    return Placement(
        stages=tuple(
            Stage(
                operators=tuple(sorted(order[cuts[index] : cuts[index + 1]])),
                accelerators=tuple(sorted(held[index])),
            )
            for index in range(count)
        )
    )


def random_order(workload: Workload, draw: Random) -> list[int]:
    """Draw a topological order: again and again one of the operators that may come next."""
    waits_for = [len(found) for found in workload.predecessors]
    ready = [operator for operator, count in enumerate(waits_for) if count == 0]
    order = []
    while ready:
        index = draw.randrange(len(ready))
        ready[index], ready[-1] = ready[-1], ready[index]
        operator = ready.pop()
        order.append(operator)
        for successor in workload.successors[operator]:
            waits_for[successor] -= 1
            if waits_for[successor] == 0:
                ready.append(successor)
    return order
