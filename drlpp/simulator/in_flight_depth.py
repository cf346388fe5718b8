"""How many minibatches in flight are enough: the depths of a placement's schedule, simulated.

Two neighbouring stages that have d and d′ minibatches in flight pass each other d − d′ + 1 of them
in the time of a round trip: forward and backward of both, and a message each way. With NOAM these
are two. If the messages take the time T of the slowest stage each, the round trip takes up to 4 T,
and four are needed to keep every part busy: two more for the link. Fewer are enough where messages
take less time, and more where latency is longer than the slowest stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drlpp.costs.memory import MemoryModel
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.schedule.kinds.registry import names_to_suggest
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.simulator.simulation import simulate
from drlpp.specs.cluster import Cluster

MOST_PER_LINK = 4

_ENOUGH = 1.01
"""Depths up to this many times the fastest's seconds are as good, with less s and memory."""


@dataclass(frozen=True)
class Depth:
    """A placement played with a certain number of minibatches in flight.

    Attributes:
        per_link: beyond NOAM, for all links or for each
            (:meth:`drlpp.schedule.pipeline.Pipeline.in_flight`).
        in_flight: on a replica of every stage.
        seconds_per_minibatch: simulated.
        memory_bytes: of the accelerator that needs the most.
        obstacle: why it cannot be trained with, if it cannot: the memory that it misses, or what
            the weight policy refuses, or a staleness that is not allowed.
        steadiness: 1 where the seconds are those of a period
            (:class:`drlpp.simulator.steady_state.SteadyState`).
    """

    per_link: int | tuple[int, ...]
    in_flight: tuple[int, ...]
    seconds_per_minibatch: float
    memory_bytes: float
    obstacle: str | None = None
    steadiness: float = 1.0

    @property
    def possible(self) -> bool:
        """Whether it fits into memory, and the weight policy can be run with it."""
        return self.obstacle is None


def simulate_depths(
    workload: Workload,
    cluster: Cluster,
    placement: Placement,
    method: Method,
    memory: MemoryModel | None = None,
    most_per_link: int = MOST_PER_LINK,
    most_staleness: int | None = None,
) -> tuple[Depth, ...]:
    """Play a valid placement with NOAM, and with up to ``most_per_link`` more for each link.

    Args:
        workload: what has to be computed and sent.
        cluster: the accelerators and their links.
        placement: of the workload's operators on them.
        method: asynchronous; its own depth does not matter.
        memory: what a stage keeps; that of ``method`` with SGD and momentum if left out.
        most_per_link: the deepest.
        most_staleness: the largest s of a stage that is possible; None for any.

    Raises:
        InvalidInput: for a schedule that flushes.
    """
    kind = method.schedule_kind
    if not kind.takes_in_flight_per_link:
        able = names_to_suggest(lambda kind: kind.takes_in_flight_per_link)
        raise InvalidInput(
            f"schedule {kind.name} {kind.reason_of_depth} and has no in-flight depth to choose; "
            f"use {able}"
        )
    return tuple(
        depth_of(
            workload,
            cluster,
            placement,
            method.model_copy(update={"in_flight_per_link": per_link}),
            memory,
            most_staleness,
        )
        for per_link in range(most_per_link + 1)
    )


def depth_of(
    workload: Workload,
    cluster: Cluster,
    placement: Placement,
    method: Method,
    memory: MemoryModel | None = None,
    most_staleness: int | None = None,
) -> Depth:
    """Play a valid placement with the depth of its method; arguments as above."""
    played = simulate(workload, cluster, placement, method, memory=memory)
    limits = [cluster.memory_bytes[accelerator] for accelerator in played.accelerators]
    missing = max(
        needed - limit if limit is not None else 0.0
        for needed, limit in zip(played.memory_bytes, limits, strict=True)
    )
    return Depth(
        per_link=method.in_flight_per_link,
        in_flight=method.in_flight(played.pipeline),
        seconds_per_minibatch=played.seconds_per_minibatch,
        memory_bytes=max(played.memory_bytes),
        obstacle=f"an accelerator misses {missing:,.0f} bytes of memory"
        if missing > 0
        else _obstacle(Candidate(placement, method), played.pipeline, most_staleness),
        steadiness=played.steadiness,
    )


def smallest_depth(depths: Sequence[Depth]) -> Depth:
    """Return the smallest possible depth within 1% of the fastest.

    Raises:
        InvalidInput: none is possible.
    """
    possible = [depth for depth in depths if depth.possible]
    if not possible:
        raise InvalidInput(
            "there is no in-flight depth to choose: with the least, "
            f"{depths[0].per_link} for each link beyond NOAM, {depths[0].obstacle}"
        )
    limit = _ENOUGH * min(depth.seconds_per_minibatch for depth in possible)
    return next(depth for depth in possible if depth.seconds_per_minibatch <= limit)


def _obstacle(candidate: Candidate, pipeline: Pipeline, most_staleness: int | None) -> str | None:
    try:
        ExecutionPlan(candidate, pipeline).refuse_staler_than(most_staleness)
    except InvalidInput as error:
        return str(error)
    return None
