"""Emulated clusters for tests, and what may be left of them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import pytest

from benchmarks.emulated_cluster import available
from benchmarks.emulated_cluster.control_groups import Hierarchy
from benchmarks.emulated_cluster.names import marked_processes, name_in
from drlpp.cluster import Cluster, Host, Link

UNAVAILABLE = available()

needs_kernel = pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE))
"""For tests with namespaces and control groups."""

FAST = Link(bandwidth_bytes_per_second=1.25e9)
SLOW = Link(bandwidth_bytes_per_second=1.25e7)


def two_hosts(link: Link = FAST, accelerators: int = 2, speed: float = 0.4) -> Cluster:
    host = Host(name="host", count=2, accelerators=accelerators, speed=speed)
    return Cluster(hosts=(host,), within_host=FAST, between_hosts=link)


def names_left(process: int) -> list[str]:
    """What there is of the clusters that a process has built."""
    namespaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True)
    hierarchy = Hierarchy.found()
    groups: Sequence[str] = () if hierarchy is None else tuple(hierarchy.names())
    found = [name_in(line) for line in (namespaces.stdout + links.stdout).splitlines()]
    found += [*groups, *marked_processes().values()]
    return [name for name in found if name and name.startswith(f"drlpp-{process}-")]
