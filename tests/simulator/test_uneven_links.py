"""Links and stages that differ: what the simulator says, against a recurrence written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.schedule.method import Method
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.simulated_chains import FAST, chain_workload, straight
from tests.support.strategies.graphs import depths, recomputing

MINIBATCHES = 240
LONGEST_PERIOD = 12


def steady_seconds(
    forward: Sequence[int],
    backward: Sequence[int],
    latency: Sequence[int],
    in_flight: Sequence[int],
    recomputed: Sequence[bool],
) -> float:
    """Seconds per minibatch of a chain whose messages take a latency, and nothing else.

    A stage with d in flight makes d forwards, then a backward and a forward in turns. What it
    computes again it does before the gradient is there. Whole seconds repeat themselves after a few
    minibatches, whose number is looked for.
    """
    stages = len(forward)
    orders = []
    for depth, again in zip(in_flight, recomputed, strict=True):
        order = [("F", n) for n in range(depth)]
        for n in range(MINIBATCHES):
            order += [("R", n)] * (again and depth > 1) + [("B", n)]
            if n + depth < MINIBATCHES:
                order.append(("F", n + depth))
        orders.append(order)
    ends: list[dict[tuple[str, int], int]] = [{} for _ in range(stages)]
    now, position = [0] * stages, [0] * stages
    moved = True
    while moved:
        moved = False
        for k, order in enumerate(orders):
            while position[k] < len(order):
                kind, n = order[position[k]]
                other = {"F": k - 1, "R": k, "B": k + 1}[kind]
                begin = now[k]
                if 0 <= other < stages and other != k:
                    arrives = ends[other].get((kind, n))
                    if arrives is None:
                        break
                    begin = max(begin, arrives + latency[min(k, other)])
                took = backward[k] if kind == "B" else forward[k]
                now[k] = ends[k][kind, n] = begin + took
                position[k] += 1
                moved = True
    # Before it drains; by the slowest stage, behind which nothing piles up for ever.
    rates = []
    for k in range(stages):
        times = [ends[k]["B", n] for n in range(MINIBATCHES // 2, 3 * MINIBATCHES // 4)]
        rates.append(
            next(
                (times[period] - times[0]) / period
                for period in range(1, LONGEST_PERIOD + 1)
                if len({late - early for early, late in zip(times, times[period:], strict=False)})
                == 1
            )
        )
    return max(rates)


def with_a_slow_link(stages: int, before: int, near: int, far: int) -> Cluster:
    """Accelerators in a row, whose messages take ``far`` seconds into stage ``before``."""
    return Cluster(
        hosts=(
            Host(name="one", accelerators=before),
            Host(name="other", accelerators=stages - before),
        ),
        within_host=Link(bandwidth_bytes_per_second=FAST, latency_seconds=near),
        between_hosts=Link(bandwidth_bytes_per_second=FAST, latency_seconds=far),
    )


whole = st.integers(1, 6)


@given(st.data())
@settings(max_examples=40)
def test_seconds_are_those_of_the_recurrence(data: st.DataObject) -> None:
    stages = data.draw(st.integers(2, 4))
    each = st.lists(whole, min_size=stages, max_size=stages)
    forward, backward = data.draw(each), data.draw(each)
    near, far = data.draw(st.integers(0, 2)), data.draw(st.integers(2, 12))
    before = data.draw(st.integers(1, stages - 1))
    method = Method(
        policy="vanilla",
        in_flight_per_link=data.draw(depths(stages)),
        recompute=data.draw(recomputing(stages)),
    )
    found = simulate(
        chain_workload(forward, backward, [1] * (stages - 1)),
        with_a_slow_link(stages, before, near, far),
        straight(stages),
        method,
    )
    expected = steady_seconds(
        forward,
        backward,
        [far if link == before - 1 else near for link in range(stages - 1)],
        method.in_flight(found.pipeline),
        [method.recomputes(stage) for stage in range(stages)],
    )
    assert found.seconds_per_minibatch == pytest.approx(expected, rel=1e-9)
    assert found.program.in_flight == method.in_flight(found.pipeline)
    noam = simulate(
        chain_workload(forward, backward, [1] * (stages - 1)),
        with_a_slow_link(stages, before, near, far),
        straight(stages),
        method.model_copy(update={"in_flight_per_link": 0}),
    )
    # A deeper straight pipeline is never slower.
    assert expected <= noam.seconds_per_minibatch * (1 + 1e-9)
