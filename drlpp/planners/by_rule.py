"""The fastest pipeline by the rule, on accelerators of one speed: where a search may begin.

Branches may become stages side by side, and stages may be replicated: a pipeline is a chain of
downsets (:mod:`drlpp.planners.pipedream.cuts`), and all of them are looked at. Memory, and copies
of weights that stages share, are left to the search; of links of several levels all count as the
fastest, or all as the slowest.
"""

from __future__ import annotations

from math import inf

import numpy

from drlpp.costs.stage_cost import Array, Group, StageSeconds
from drlpp.errors import InvalidInput
from drlpp.placement.placement import Placement, Stage
from drlpp.placement.plan import Plan
from drlpp.planners.pipedream.cuts import States, all_states
from drlpp.planners.problem import PlanningProblem
from drlpp.specs.cluster import Cluster, Link

_MOST_STATES = 6_000
_MOST_COSTS = 120_000_000
"""Costs of stages on numbers of accelerators that are kept in memory, 8 bytes each."""

_FEW = 20_000
"""Costs that are looked at one by one, or by halves; of more, the range is halved."""


def by_rule(problem: PlanningProblem) -> Plan:
    """Find the fastest placement by the problem's rule.

    Raises:
        InvalidInput: accelerators differ, or there are too many stages to look at each.
    """
    cluster, states = problem.cluster, all_states(problem.workload, _MOST_STATES)
    replicas = range(1, cluster.accelerators + 1) if problem.replicate else range(1, 2)
    if len(set(cluster.speeds)) > 1 or states is None:
        raise InvalidInput("accelerators differ, or there are too many sets of operators")
    if len(states.begin) * len(replicas) > _MOST_COSTS:
        raise InvalidInput("there are too many stages")
    placements = []
    for link in dict.fromkeys(_extremes(cluster)):
        bandwidth, latency = link.bandwidth_bytes_per_second, link.latency_seconds
        groups = [Group(m, cluster.speeds[0], bandwidth, latency, bandwidth) for m in replicas]
        seconds = numpy.array([StageSeconds.of(states.work, group).total() for group in groups])
        placements.append(_fastest(states, seconds, cluster.accelerators))
    return Plan(min(placements, key=lambda one: problem.predict(one).seconds_per_minibatch))


def _extremes(cluster: Cluster) -> tuple[Link, Link]:
    """Return a link that none is faster than, and one that none is slower than."""
    fastest = Link(
        bandwidth_bytes_per_second=max(link.bandwidth_bytes_per_second for link in cluster.levels),
        latency_seconds=min(link.latency_seconds for link in cluster.levels),
    )
    slowest = cluster.levels[0]
    networks = [host.network for host in cluster.hosts if host.network is not None]
    for link in (*cluster.levels[1:], *(networks if len(cluster.host_names) > 1 else ())):
        slowest = slowest.slower(link)
    return fastest, slowest


def _fastest(states: States, seconds: Array, accelerators: int) -> Placement:
    """Return the chain whose slowest stage is the fastest; it is one of the stages' costs.

    Args:
        states: all downsets.
        seconds: of every stage on 1, 2, … accelerators, ``(numbers, stages)``.
        accelerators: that there are.
    """
    found = _within(states, seconds, accelerators, inf)
    assert found is not None, "everything on one accelerator is a chain"
    (best, high), low, candidates = found, 0.0, seconds.ravel()
    while high > low:
        candidates = candidates[(candidates > low) & (candidates < high)]
        if not len(candidates):
            break
        half = len(candidates) // 2
        few = len(candidates) <= _FEW
        limit = float(numpy.partition(candidates, half)[half]) if few else (low + high) / 2
        if (found := _within(states, seconds, accelerators, limit)) is None:
            low = limit
        else:
            best, high = found
    return best


def _within(
    states: States, seconds: Array, accelerators: int, limit: float
) -> tuple[Placement, float] | None:
    """Return a chain within ``limit`` seconds on the fewest accelerators, and its slowest stage.

    Going from the last state to the first, every state asks how many accelerators suffice for all
    that is behind it: those of a stage that begins there, and those that suffice behind its end.
    """
    allowed, end = seconds <= limit, states.end
    choice = allowed.argmax(axis=0)
    # Accelerators count first, then stages.
    worth = len(states) + 1
    needed = numpy.where(allowed.any(axis=0), (choice + 1) * worth + 1, inf)
    firsts = numpy.searchsorted(states.begin, numpy.arange(len(states) + 1))
    suffices = numpy.full(len(states), inf)
    suffices[-1] = 0
    stage_at = numpy.zeros(len(states), dtype=int)
    for state in range(len(states) - 2, -1, -1):
        stages = slice(firsts[state], firsts[state + 1])
        total = needed[stages] + suffices[end[stages]]
        best = int(total.argmin())
        suffices[state], stage_at[state] = total[best], stages.start + best
    if suffices[0] >= (accelerators + 1) * worth:
        return None
    found, slowest, state, taken = [], 0.0, 0, 0
    while state < len(states) - 1:
        number = int(stage_at[state])
        replicas, behind = int(choice[number]) + 1, int(end[number])
        held = tuple(range(taken, taken + replicas))
        found.append(Stage(operators=states.operators(state, behind), accelerators=held))
        slowest = max(slowest, float(seconds[choice[number], number]))
        state, taken = behind, taken + replicas
    return Placement(stages=tuple(found)), slowest
