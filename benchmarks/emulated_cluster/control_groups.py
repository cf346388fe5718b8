"""Accelerators as control groups: a CPU quota for each, which the Linux kernel keeps.

An accelerator of speed 0.4 may compute for 4 ms of every 10 ms. The quotas together stay below nine
tenths of the cores, so that everyone gets theirs whatever the others do. Both versions of control
groups will do; version 2 takes a root group that other programs leave its CPU controller to.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.emulated_cluster.names import name_in
from drlpp.errors import InvalidCluster, RunFailure
from drlpp.runtime.device.emulation import MOST_LOAD

_PERIOD_SECONDS = 0.01
_PRECEDENCE = 100
"""All accelerators together before any other program, or its work would show in theirs."""

_LEAST_QUOTA_SECONDS = 0.001
_LONGEST_PERIOD_SECONDS = 1.0
_LEAST_SPEED = _LEAST_QUOTA_SECONDS / _LONGEST_PERIOD_SECONDS
"""Of an accelerator, in cores: the kernel allows neither smaller quotas nor longer periods."""

_REMOVING_SECONDS = 5.0


@dataclass(frozen=True)
class Hierarchy:
    """Where control groups with CPU quotas are made.

    Attributes:
        root: the group of everybody.
        version: 1 or 2.
    """

    root: Path
    version: int

    @classmethod
    def found(cls) -> Self | None:
        """Return the machine's hierarchy, if this process may make groups there."""
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount, kind, options, *_ = line.split()
            root = Path(mount)
            if kind == "cgroup" and "cpu" in options.split(","):
                version = 1
            elif kind == "cgroup2" and "cpu" in (root / "cgroup.controllers").read_text().split():
                version = 2
            else:
                continue
            if os.access(root, os.W_OK):
                return cls(root, version)
        return None

    def create(self, path: Path, quota: float | None = None) -> None:
        """Make a group, for ``quota`` of a core or, without one, for groups within it."""
        path.mkdir()
        if quota is None:
            if self.version == 2:
                for parent in (self.root, path):
                    (parent / "cgroup.subtree_control").write_text("+cpu")
                (path / "cpu.weight").write_text(str(100 * _PRECEDENCE))
            else:
                (path / "cpu.shares").write_text(str(1024 * _PRECEDENCE))
            return
        period = max(_PERIOD_SECONDS, _LEAST_QUOTA_SECONDS / quota)
        limit, every = round(period * quota * 1e6), round(period * 1e6)
        if self.version == 2:
            (path / "cpu.max").write_text(f"{limit} {every}")
        else:
            (path / "cpu.cfs_period_us").write_text(str(every))
            (path / "cpu.cfs_quota_us").write_text(str(limit))

    def names(self) -> set[str]:
        """Return the names of the emulated clusters that have groups here."""
        return {name for path in self.root.iterdir() if (name := name_in(path.name))}

    def remove(self, name: str) -> None:
        """Remove the groups of a cluster; processes that are in them continue without quota."""
        top = self.root / name
        give_up = time.monotonic() + _REMOVING_SECONDS
        while top.exists() and time.monotonic() < give_up:
            for path in (*(path for path in top.iterdir() if path.is_dir()), top):
                for process in (path / "cgroup.procs").read_text().split():
                    with suppress(OSError):
                        (self.root / "cgroup.procs").write_text(process)
                # Busy as long as a process is on its way out.
                with suppress(OSError):
                    path.rmdir()
            if top.exists():
                time.sleep(0.02)


class ControlGroups:
    """One control group for each accelerator.

    Args:
        speeds: of every accelerator: the part of a core that it has.
        name: of the emulated cluster that they belong to.

    Raises:
        RunFailure: control groups are not to be had here.
    """

    def __init__(self, speeds: Sequence[float], name: str) -> None:
        hierarchy = Hierarchy.found()
        if hierarchy is None:
            raise RunFailure(NO_CONTROL_GROUPS)
        self.speeds = tuple(speeds)
        self._hierarchy = hierarchy
        self._name = name
        top = hierarchy.root / self._name
        self.folders = tuple(top / f"accelerator-{number}" for number in range(len(speeds)))
        try:
            hierarchy.create(top)
            for folder, speed in zip(self.folders, speeds, strict=True):
                hierarchy.create(folder, speed)
        except OSError as error:
            self.remove()
            raise RunFailure(
                f"a control group cannot be made in {hierarchy.root} ({error.strerror})"
            ) from None
        except BaseException:
            self.remove()
            raise

    @property
    def description(self) -> str:
        """In words."""
        return (
            f"control groups (version {self._hierarchy.version}), "
            f"{sum(self.speeds):g} of {len(os.sched_getaffinity(0))} cores in all"
        )

    def remove(self) -> None:
        """Remove the groups."""
        self._hierarchy.remove(self._name)


NO_CONTROL_GROUPS = (
    "there are no control groups with CPU quotas that this process may write, of either version"
)


def check_quotas(speeds: Sequence[float]) -> None:
    """Check that this machine can give these speeds.

    Raises:
        InvalidCluster: saying what would be right.
    """
    cores = len(os.sched_getaffinity(0))
    most = MOST_LOAD * cores
    if not all(_LEAST_SPEED <= speed <= 1 for speed in speeds):
        raise InvalidCluster(
            f"speeds are {list(speeds)}; an emulated accelerator has a part of a core: every one "
            f"must be at least {_LEAST_SPEED:g} and at most 1"
        )
    if sum(speeds) > most * (1 + 1e-9):
        raise InvalidCluster(
            f"the speeds of the accelerators add up to {sum(speeds):g} cores, but this machine "
            f"has {cores} and can give {most:g} of them away; multiply every speed by "
            f"{_rounded_down(most / sum(speeds)):g}"
        )


def _rounded_down(factor: float) -> float:
    """Round down to two digits, so that a sum that is multiplied by it stays below."""
    unit = 10.0 ** (math.floor(math.log10(factor)) - 1)
    return math.floor(factor / unit) * unit
