"""Emulating slower accelerators with CPU workers: where they compute, and how long they rest.

A worker of speed 0.25 takes four times the processor time that a pass needs and sleeps the rest of
it, so four of them do the work of one core. They share that core: on cores of their own they would
slow each other down through shared caches and execution units, now and then, and no profile could
tell when. Threads that send and receive are left where they are.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from drlpp.errors import InvalidInput
from drlpp.specs.cluster import Cluster

MOST_LOAD = 0.9
"""The largest load of a core by emulated accelerators that share it; passes wait for others."""

_ROUNDING = 1e-3


def available_cores() -> list[int]:
    """Return the cores of this machine that this process may use."""
    return sorted(os.sched_getaffinity(0))


def cores_for(
    speeds: Sequence[float], machines: Sequence[tuple[str, Sequence[int]]]
) -> list[int | None]:
    """Return every worker's core; None leaves it to the system, as for workers of full speed.

    ``machines`` are those of every worker, by name, and the cores that may be used there.
    """
    free = {
        machine: dict.fromkeys(sorted(cores, reverse=True), MOST_LOAD + _ROUNDING)
        for machine, cores in machines
    }
    found: list[int | None] = []
    for speed, (machine, _) in zip(speeds, machines, strict=True):
        loads = free[machine]
        core = next((core for core, load in loads.items() if load >= speed), None)
        if core is not None:
            loads[core] -= speed
        found.append(core)
    return found


def fitting_speeds(relative: Sequence[float], cores: Sequence[int]) -> tuple[float, ...]:
    """Return the largest speeds in these proportions that workers can emulate on these cores.

    Raises:
        InvalidInput: there are too many.
    """
    largest, machines = max(relative), [("here", cores)] * len(relative)
    for part in range(round(MOST_LOAD * 100), 0, -1):
        # Rounded first: rounded up they may no longer fit.
        speeds = tuple(float(f"{part / 100 * speed / largest:.3g}") for speed in relative)
        if None not in cores_for(speeds, machines):
            return speeds
    raise InvalidInput(
        f"{len(cores)} cores cannot emulate {len(relative)} accelerators of the relative speeds "
        f"{', '.join(f'{speed:g}' for speed in relative)}; give fewer"
    )


def checked_speeds(speeds: Sequence[float] | None, workers: int) -> tuple[float, ...]:
    """Return the speed of every worker, 1 each if none are given.

    Raises:
        InvalidInput: for another number of speeds, or one that no worker can emulate.
    """
    if speeds is None:
        return (1.0,) * workers
    if len(speeds) != workers or not all(0 < speed <= 1 for speed in speeds):
        raise InvalidInput(
            f"speeds are {list(speeds)}; expected one for each of {workers} workers, above 0 and "
            "at most 1"
        )
    return tuple(speeds)


def checked_links(links: Cluster | None, workers: int, ray: str | None) -> Cluster | None:
    """Return the cluster whose links are to be emulated.

    Raises:
        InvalidInput: it has another number of accelerators, or the workers are on a Ray cluster,
            whose hosts have clocks of their own.
    """
    if links is not None and ray is not None:
        raise InvalidInput("links are emulated on this machine alone; leave out the Ray cluster")
    if links is not None and links.accelerators != workers:
        raise InvalidInput(
            f"the links are of {links.accelerators} accelerators, for {workers} workers; give as "
            "many workers"
        )
    return links


@contextmanager
def computing_on(core: int | None) -> Iterator[None]:
    """Keep the calling thread on a core."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class EmulatedAccelerator:
    """An accelerator that rests after computing, so that everything takes as long as at its speed.

    A worker that shares its core, or is woken late, ends an action later than the accelerator
    would have; the next action then ends as if it had begun that much earlier. What the worker has
    waited for in between, it would have waited for anyway: that makes up for the delay first.

    Args:
        speed: of the accelerator, in units of this processor's; at 1 there is no rest.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._ended = self._due = -math.inf
        self._used_by_end = 0.0
        self._begun = self._used_by_begin = 0.0

    def begin(self) -> None:
        """Note that computing begins."""
        self._begun, self._used_by_begin = time.perf_counter(), time.thread_time()

    def rest(self) -> None:
        """Note that computing has ended."""
        used = time.thread_time() - self._used_by_begin
        if self._speed < 1:
            idle = self._begun - self._ended - (self._used_by_begin - self._used_by_end)
            late = max(0.0, self._ended - self._due - idle) if math.isfinite(idle) else 0.0
            self._due = self._begun - late + used / self._speed
            if (left := self._due - time.perf_counter()) > 0:
                time.sleep(left)
            self._ended, self._used_by_end = time.perf_counter(), time.thread_time()
