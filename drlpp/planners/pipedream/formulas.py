"""What PipeDream's planner minimises: seconds of the slowest stage, or bytes of the largest.

The formulas of :mod:`drlpp.planners.pipedream.pipedream`, for all stages between two states at
once. Matrices are (states, states), infinite where there is no stage or its accelerators cannot
hold it.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import Literal, Protocol

import numpy
from numpy.typing import NDArray

from drlpp.costs.memory import MemoryModel
from drlpp.costs.stage_work import Array
from drlpp.planners.pipedream.cut_points import States
from drlpp.planners.pipedream.levels import Level
from drlpp.schedule.per_stage import most

Variant = Literal["paper", "printed", "code"]

Fits = Callable[[Fraction], NDArray[numpy.bool_]]
"""A function of the accelerators in later stages, for every replica of a stage. It returns,
(states, states), whether the memory holds it."""


class Formula(Protocol):
    """The two functions of the dynamic program: A⁰, and T with the cut before it.

    ``knows_what_follows`` says whether a stage's cost depends on what stands behind it.
    """

    knows_what_follows: bool

    def single(self, behind: Fraction) -> Array:
        """Return A⁰(i → j): the cost on one accelerator.

        Args:
            behind: accelerators in later stages, for every replica of this one.
        """

    def stage(self, level: Level, replicas: int, after: int, inner: Array, first: bool) -> Array:
        """Return T(i → j, m), and what is to be paid for its cuts.

        Args:
            level: whose components hold the stage.
            replicas: m, of those components.
            after: components behind it, in its component of the next level.
            inner: A(i → j) of a component, with all that it holds.
            first: whether it begins the pipeline of its component of the next level.
        """

    def inner_limit(
        self, level: Level, replicas: int, stage: tuple[int, int], first: bool, limit: float
    ) -> float:
        """Return how much A(i → j) of its components may be if the stage is to cost ``limit``."""


class PaperSeconds:
    """The formula of pipedream §3.1, with the time of the all-reduce to choose."""

    def __init__(self, states: States, speed: float, variant: Variant, fits: Fits | None) -> None:
        self._compute = numpy.where(
            states.is_stage, states.sums(states.workload.seconds) / speed, numpy.inf
        )
        self._weights = states.work.parameter_bytes
        self._cut = states.cut_bytes
        self._variant = variant
        self._fits = fits
        self.knows_what_follows = fits is not None

    def single(self, behind: Fraction) -> Array:
        """Return the stage's seconds, infinite where the memory does not hold it."""
        if self._fits is None:
            return self._compute
        return numpy.where(self._fits(behind), self._compute, numpy.inf)

    def stage(self, level: Level, replicas: int, after: int, inner: Array, first: bool) -> Array:
        """Return the slowest of its compute, its all-reduce and the cut before it."""
        volume = 2 * (replicas - 1) if self._variant == "printed" else _ring(replicas)
        cost = numpy.maximum(inner, volume * self._weights / level.bandwidth) / replicas
        if first:
            return cost
        return numpy.maximum(cost, self._cut[:, None] / level.bandwidth)

    def inner_limit(
        self, level: Level, replicas: int, stage: tuple[int, int], first: bool, limit: float
    ) -> float:
        """Return what a component may take: its replicas take turns."""
        return limit * replicas


class PaperBytes:
    """The memory of the largest stage of pipedream §3.1."""

    knows_what_follows = True

    def __init__(self, states: States, needs: Callable[[Fraction], Array]) -> None:
        self._is_stage = states.is_stage
        self._needs = needs

    def single(self, behind: Fraction) -> Array:
        """Return its bytes, with the minibatches in flight that what follows asks for."""
        return numpy.where(self._is_stage, self._needs(behind), numpy.inf)

    def stage(self, level: Level, replicas: int, after: int, inner: Array, first: bool) -> Array:
        """Return what a component's largest stage needs."""
        return inner

    def inner_limit(
        self, level: Level, replicas: int, stage: tuple[int, int], first: bool, limit: float
    ) -> float:
        """Return ``limit``: a component may need as much as the stage."""
        return limit


class CodeSeconds:
    """The formula of the released optimizer."""

    def __init__(
        self, states: States, speed: float, levels: tuple[Level, ...], memory: float | None
    ) -> None:
        self._compute = numpy.where(
            states.is_stage, states.sums(states.workload.seconds) / speed, numpy.inf
        )
        self._weights = states.work.parameter_bytes
        self._cut = states.cut_bytes
        self._shared = dict(zip(levels[1:], (level.components for level in levels), strict=False))
        self._bytes = CodeBytes(states)
        self._memory = memory
        self.knows_what_follows = memory is not None

    def single(self, behind: Fraction) -> Array:
        """Return the stage's seconds."""
        return self._compute

    def stage(self, level: Level, replicas: int, after: int, inner: Array, first: bool) -> Array:
        """Compute and all-reduce one after the other, and the cuts."""
        cost = (inner + self._all_reduce(level, replicas, first)) / replicas
        if not first:
            cut = numpy.maximum(self._cut[:, None], self._cut[None, :])
            cost = numpy.maximum(cost, cut / (replicas * level.bandwidth))
        if self._memory is not None:
            cost[self._bytes.copies(replicas, after) > self._memory] = numpy.inf
        return cost

    def _all_reduce(self, level: Level, replicas: int, first: bool) -> Array:
        seconds = _ring(replicas) * self._weights / level.bandwidth
        return seconds / self._shared.get(level, 1) if first else seconds

    def inner_limit(
        self, level: Level, replicas: int, stage: tuple[int, int], first: bool, limit: float
    ) -> float:
        """Return what a component may take: replicas take turns, less the all-reduce."""
        return limit * replicas - float(self._all_reduce(level, replicas, first)[stage])


class CodeBytes:
    """What the released optimizer compares with the memory: copies for further minibatches."""

    knows_what_follows = True

    def __init__(self, states: States) -> None:
        workload = states.workload
        self._nothing = numpy.where(states.is_stage, 0.0, numpy.inf)
        self._copy = states.sums(workload.kept_bytes) + states.work.parameter_bytes

    def copies(self, replicas: int, after: int) -> Array:
        """Return bytes of outputs and weights, for the minibatches in flight beyond the first."""
        return ceil(Fraction(after, replicas)) * self._copy

    def single(self, behind: Fraction) -> Array:
        """Return 0, since :meth:`stage` counts the copies; infinite for what is no stage."""
        return self._nothing

    def stage(self, level: Level, replicas: int, after: int, inner: Array, first: bool) -> Array:
        """Return the larger of its own copies and of those within a component."""
        return numpy.maximum(inner, self.copies(replicas, after))

    def inner_limit(
        self, level: Level, replicas: int, stage: tuple[int, int], first: bool, limit: float
    ) -> float:
        """Return ``limit``: a component may need as much as the stage."""
        return limit


def bytes_of(states: States, memory: MemoryModel) -> Callable[[Fraction], Array]:
    """Return a function of the accelerators behind each replica of a stage.

    It returns the bytes of every stage on one accelerator.

    A stage has one more minibatch in flight than replicas of it follow, their links included.
    """
    each = 1 + most(memory.in_flight_per_link)
    return lambda behind: memory.stage_bytes(states.work_with_limits, 1 + ceil(each * behind))


def _ring(replicas: int) -> float:
    """Return what a ring all-reduce moves through an accelerator both ways.

    It is given as a part of the weights.
    """
    return 4 * (replicas - 1) / replicas
