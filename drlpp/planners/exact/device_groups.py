"""Which groups of accelerators a stage can stand on, when many are alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy
from numpy.typing import NDArray

from drlpp.costs.stage_cost import Group
from drlpp.specs.cluster import Cluster, Link

Counts = tuple[int, ...]
"""How many accelerators of every kind."""


@dataclass(frozen=True)
class Fleet:
    """The accelerators of a cluster by kind: those of one speed and one memory are alike.

    Attributes:
        cluster: that they are of.
        link: between any two of them; where a cluster has several levels, planners choose one.
        replicate: whether a stage may have more than one.
        extra_bytes: added to the memory of each.
        most_choices: that a stage is given; of more, some of every size are left out.
    """

    cluster: Cluster
    link: Link
    replicate: bool = True
    extra_bytes: float = 0.0
    most_choices: int | None = None

    @cached_property
    def kinds(self) -> tuple[tuple[float, float | None], ...]:
        """Speed and memory of every kind, the fastest first."""
        pairs = set(zip(self.cluster.speeds, self.cluster.memory_bytes, strict=True))
        return tuple(sorted(pairs, key=lambda kind: (-kind[0], -(kind[1] or numpy.inf))))

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The accelerators of every kind."""
        each = list(zip(self.cluster.speeds, self.cluster.memory_bytes, strict=True))
        return tuple(tuple(a for a, own in enumerate(each) if own == kind) for kind in self.kinds)

    @cached_property
    def available(self) -> Counts:
        """How many there are of every kind."""
        return tuple(len(accelerators) for accelerators in self.members)

    @cached_property
    def choices(self) -> tuple[Counts, ...]:
        """What a stage can stand on, the fewest accelerators first."""
        found = sorted(self._choices(), key=lambda counts: (sum(counts), counts[::-1]))
        if self.most_choices is not None and len(found) > self.most_choices:
            kept = numpy.geomspace(1, len(found), max(self.most_choices, 1)).round().astype(int)
            found = [found[number - 1] for number in numpy.unique(kept)]
        return tuple(found)

    def _choices(self) -> Iterator[Counts]:
        for counts in product(*(range(count + 1) for count in self.available)):
            if sum(counts) == 1 or (self.replicate and sum(counts) > 1):
                yield counts

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """What a stage can stand on, as far as costs go, without listing every choice."""
        speeds = sorted({speed for speed, _ in self.kinds}, reverse=True)
        as_fast = {slowest: sum(v >= slowest for v in self.cluster.speeds) for slowest in speeds}
        return tuple(
            Group(replicas, slowest, self.link, self.link)
            for slowest in speeds
            for replicas in range(1, as_fast[slowest] + 1 if self.replicate else 2)
        )

    @cached_property
    def states(self) -> int:
        """The number of ways in which accelerators can be taken, by kind."""
        return prod(count + 1 for count in self.available)

    def group(self, counts: Counts) -> Group:
        """Return the group of accelerators that a choice stands for."""
        taken = [kind for kind, count in zip(self.kinds, counts, strict=True) if count]
        return Group(sum(counts), min(speed for speed, _ in taken), self.link, self.link)

    def memory(self, counts: Counts) -> float:
        """Return the bytes of a choice's smallest accelerator; infinite without a limit."""
        limits = [kind[1] for kind, count in zip(self.kinds, counts, strict=True) if count]
        return min(numpy.inf if limit is None else limit + self.extra_bytes for limit in limits)

    @property
    def limits_memory(self) -> bool:
        """Whether any accelerator has a limit."""
        return any(limit is not None for _, limit in self.kinds)

    def index(self, counts: Counts) -> int:
        """Return a number for the accelerators taken so far; those of two choices add up."""
        number = 0
        for count, available in zip(counts, self.available, strict=True):
            number = number * (available + 1) + count
        return number

    @cached_property
    def sizes(self) -> NDArray[numpy.intp]:
        """The number of accelerators that are taken, for every number of :meth:`index`."""
        shape = [count + 1 for count in self.available]
        return numpy.indices(shape).sum(axis=0).ravel()

    @cached_property
    def fits(self) -> NDArray[numpy.bool_]:
        """``(choices, states)``: whether a choice is available when others are taken already."""
        shape = [count + 1 for count in self.available]
        taken = numpy.indices(shape).reshape(len(shape), -1)
        free = numpy.array(self.available)[:, None] - taken
        return numpy.array([(numpy.array(c)[:, None] <= free).all(axis=0) for c in self.choices])

    def hand_out(self, stages: list[Counts]) -> list[tuple[int, ...]]:
        """Return accelerators for stages, numbered along the stages.

        ``stages`` tells how many of every kind each of them takes.
        """
        left = [list(accelerators) for accelerators in self.members]
        found = []
        for counts in stages:
            taken = []
            for kind, count in enumerate(counts):
                taken += left[kind][:count]
                del left[kind][:count]
            found.append(tuple(sorted(taken)))
        return found
