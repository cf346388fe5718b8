"""A cluster as PipeDream's planner sees it: levels of equal components (pipedream figure 7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from drlpp.specs.cluster import Cluster


@dataclass(frozen=True)
class Level:
    """Level k: ``components`` components of level k − 1, of ``size`` accelerators each.

    ``bandwidth`` is that of the slowest link between two of them, in bytes per second.
    """

    components: int
    size: int
    bandwidth: float


def levels_of(cluster: Cluster, flat: bool = False) -> tuple[Level, ...]:
    """Return the levels of a cluster, the innermost first.

    Levels of a single component are left out.

    One level with the slowest bandwidth of all stands for a cluster that has no such structure:
    hosts of unlike numbers of accelerators, racks of unlike numbers of hosts, accelerators that
    are not listed together with those of their host and rack, or of unlike speeds. It also stands
    for a single accelerator, and for any cluster if ``flat`` asks for it.
    """
    hosts, racks = cluster.host_of, cluster.rack_of
    rack_of_host = [racks[hosts.index(host)] for host in dict.fromkeys(hosts)]
    bandwidths = _slowest_bandwidths(cluster)
    regular = len(set(cluster.speeds)) == 1 and _is_regular(hosts) and _is_regular(rack_of_host)
    if flat or not regular or not bandwidths:
        slowest = min(bandwidths.values(), default=cluster.within_host.bandwidth_bytes_per_second)
        return (Level(cluster.accelerators, 1, slowest),)
    per_host = hosts.count(hosts[0])
    per_rack = rack_of_host.count(rack_of_host[0])
    counts = (per_host, per_rack, len(rack_of_host) // per_rack)
    sizes = (1, per_host, per_host * per_rack)
    return tuple(
        Level(count, size, bandwidths[level])
        for level, (count, size) in enumerate(zip(counts, sizes, strict=True))
        if count > 1
    )


def _is_regular(groups: Sequence[int]) -> bool:
    """Return whether all groups are of the same size and none is interrupted by another."""
    together = 1 + sum(one != other for one, other in pairwise(groups))
    counts = Counter(groups)
    return together == len(counts) and len(set(counts.values())) == 1


def _slowest_bandwidths(cluster: Cluster) -> dict[int, float]:
    """Return the bandwidth of the slowest link of every level on which two accelerators meet."""
    found: dict[int, float] = {}
    for one, other in combinations(range(cluster.accelerators), 2):
        level = cluster.level(one, other)
        bandwidth = cluster.link(one, other).bandwidth_bytes_per_second
        found[level] = min(bandwidth, found.get(level, bandwidth))
    return found
