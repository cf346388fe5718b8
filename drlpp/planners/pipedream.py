"""PipeDream's planner (pipedream §3.1) for one level of links, where all accelerators are equal.

Over the chain of layers 1 … N, with T the seconds and w the parameter bytes of the layers i … j,
a_s the activation bytes behind layer s, B the bandwidth, and m replicas:

    T(i → j, m) = 1/m · max(Σ T_l, 2(m − 1) Σ w_l / B)
    A(1 → j, m) = min( T(1 → j, m),
                       min over s < j, m' < m of
                           max(A(1 → s, m − m'), 2 a_s / B, T(s + 1 → j, m')) )

A(1 → N, m) uses all m accelerators. The code that its authors released computes something else
(``variant="code"``): compute and all-reduce add up, T(i → j, m) = 1/m · (Σ T_l + 4(m − 1) Σ w_l /
(m B)), and for every stage but the first, the activations that enter and leave it are shared by
its own m' replicas, 2 a / (B m'). Its search over downsets, which may cut through branches, is not
here: both variants work on the same chain. Neither has the paper's memory constraint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy
from numpy.typing import NDArray

from drlpp.cluster import Cluster
from drlpp.graph import OpGraph
from drlpp.placement import Placement, Stage
from drlpp.planners.chain import Layer, chain_of_layers
from drlpp.profile import Profile
from drlpp.simulator import check_profile

Variant = Literal["paper", "code"]

# Equal costs may differ by the rounding of prefix sums.
_TOLERANCE = 1e-9

_Matrix = NDArray[numpy.float64]


def pipedream(
    graph: OpGraph, profile: Profile, cluster: Cluster, variant: Variant = "paper"
) -> Placement:
    """Plan the chain of layers that minimises PipeDream's cost of the slowest stage or cut.

    B is the bandwidth between hosts where there are several, and latency does not count. Plans of
    equal cost are told apart so that the result is always the same: fewer stages, then earlier
    cuts (the last cut first), then more replicas for earlier stages.

    Args:
        graph: the model; its branches are compressed first.
        profile: its costs.
        cluster: all of whose accelerators are used, numbered along the stages.
        variant: the formulas of the ``paper`` or of the released ``code``.

    Raises:
        InvalidInput: if the profile belongs to another graph.
    """
    check_profile(graph, profile)
    link = cluster.between_hosts or cluster.within_host
    layers = chain_of_layers(graph, profile)
    costs = _Costs.of(layers, link.bandwidth_bytes_per_second)
    plan = _plan([costs.stage(m, variant) for m in range(1, cluster.accelerators + 1)])
    stages, first = [], 0
    for begin, end, replicas in plan:
        operators = sorted(operator for layer in layers[begin:end] for operator in layer.operators)
        accelerators = range(first, first + replicas)
        stages.append(Stage(operators=tuple(operators), accelerators=tuple(accelerators)))
        first += replicas
    return Placement(stages=tuple(stages))


@dataclass(frozen=True)
class _Costs:
    """What the formulas take: matrices ``[s, j]`` are sums over layers s … j − 1.

    They are infinite where s ≥ j, as a stage has at least one layer. ``cut[s]`` is the seconds
    that the activations and gradients at the cut before layer s take, zero at both ends.
    """

    compute: _Matrix
    weights: _Matrix
    cut: _Matrix

    @classmethod
    def of(cls, layers: Sequence[Layer], bandwidth: float) -> _Costs:
        nothing = numpy.tri(len(layers) + 1, dtype=bool)

        def spans(values: Sequence[float]) -> _Matrix:
            sums = numpy.concatenate(([0.0], numpy.cumsum(values, dtype=float)))
            return numpy.where(nothing, numpy.inf, sums[None, :] - sums[:, None])

        activations = [0.0, *(2 * layer.activation_bytes / bandwidth for layer in layers)]
        activations[-1] = 0.0
        return cls(
            compute=spans([layer.seconds for layer in layers]),
            weights=spans([layer.parameter_bytes / bandwidth for layer in layers]),
            cut=numpy.array(activations),
        )

    def stage(self, m: int, variant: Variant) -> _Matrix:
        """Cost of a stage of layers s … j − 1 on m replicas, with the cut before it."""
        if variant == "paper":
            # A factor of 0 times an infinite sum would not be a number.
            ring = 2 * (m - 1) * self.weights if m > 1 else 0.0
            return numpy.maximum(numpy.maximum(self.compute, ring) / m, self.cut[:, None])
        ring = 4 * (m - 1) / m * self.weights if m > 1 else 0.0
        cost = (self.compute + ring) / m
        transfer = numpy.maximum(self.cut[:, None], self.cut[None, :]) / m
        cost[1:] = numpy.maximum(cost, transfer)[1:]
        return cost


def _plan(stage: Sequence[_Matrix]) -> list[tuple[int, int, int]]:
    """Solve the dynamic program; ``stage[m − 1][s, j]`` is the cost of a stage on m replicas.

    Returns:
        For every stage its layers ``begin`` to ``end`` (exclusive) and its number of replicas.
    """
    accelerators, layers = len(stage), len(stage[0]) - 1

    slowest = numpy.full((accelerators + 1, layers + 1), numpy.inf)
    slowest[0, 0] = 0.0
    for m in range(1, accelerators + 1):
        for own in range(1, m + 1):
            through = numpy.maximum(slowest[m - own][:, None], stage[own - 1])
            slowest[m] = numpy.minimum(slowest[m], through.min(axis=0))
    best = slowest[accelerators, layers] * (1 + _TOLERANCE)

    # A maximum hides what its smaller terms cost, so the fewest stages are a second program, over
    # the stages that are as fast as the best plan needs them.
    allowed = [cost <= best for cost in stage]
    fewest = numpy.full((accelerators + 1, layers + 1), numpy.inf)
    fewest[0, 0] = 0.0
    for m in range(1, accelerators + 1):
        for own in range(1, m + 1):
            through = numpy.where(allowed[own - 1], fewest[m - own][:, None] + 1, numpy.inf)
            fewest[m] = numpy.minimum(fewest[m], through.min(axis=0))

    plan: list[tuple[int, int, int]] = []
    m, end = accelerators, layers
    while end > 0:
        begin, own = min(
            (begin, own)
            for own in range(1, m + 1)
            for begin in numpy.flatnonzero(allowed[own - 1][:, end])
            if fewest[m - own, begin] + 1 == fewest[m, end]
        )
        plan.insert(0, (int(begin), end, own))
        m, end = m - own, int(begin)
    return plan
