"""Emulated clusters for tests, and what may be left of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.emulated_cluster import available
from benchmarks.emulated_cluster.control_groups import Hierarchy
from benchmarks.emulated_cluster.names import marked_processes, name_in
from drlpp.specs.cluster import Cluster, Host, Link

UNAVAILABLE = available()
if UNAVAILABLE is None and len(os.sched_getaffinity(0)) < 2:
    UNAVAILABLE = "four accelerators of 0.4 of a core need two cores"

needs_kernel = pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE))
"""For tests with namespaces and control groups."""

FAST = Link(bandwidth_bytes_per_second=1.25e9)


def two_hosts(link: Link = FAST, accelerators: int = 2, speed: float = 0.4) -> Cluster:
    host = Host(name="host", count=2, accelerators=accelerators, speed=speed)
    return Cluster(hosts=(host,), within_host=FAST, between_hosts=link)


def names_left(process: int) -> list[str]:
    """What there is of the clusters that a process has built."""
    hierarchy = Hierarchy.found()
    groups: Sequence[str] = () if hierarchy is None else tuple(hierarchy.names())
    found = [name_in(line) for line in network_lines()]
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append(name_in((folder / "cmdline").read_text()))
    files = (path.name for path in Path(tempfile.gettempdir()).iterdir())
    found += [*groups, *marked_processes().values(), *map(name_in, files)]
    return [name for name in found if name and name.startswith(f"drlpp-{process}-")]


def network_lines() -> list[str]:
    """The machine's namespaces and devices."""
    if shutil.which("ip") is None:
        return []
    commands = (["ip", "netns", "list"], ["ip", "link"])
    return [
        line
        for command in commands
        for line in subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    ]
