"""Which accelerators of a run the workers of a session are, whatever hosts there are now."""

from __future__ import annotations

from collections.abc import Sequence

from drlpp.placement.renumbering import numbers_by_name
from drlpp.specs.cluster import Cluster


def recognized(known: Cluster, hosts: Sequence[str]) -> tuple[int, ...]:
    """Return the accelerator that every worker is, by its number in a known cluster.

    A host is known by its name. One that nobody was called like stands for a host that is missing
    and had as many accelerators, as a job that is queued again gets other machines. Accelerators
    that are still unknown have the numbers behind those of the cluster.

    Args:
        known: the cluster.
        hosts: the name of every worker's host.
    """
    had = numbers_by_name(known.host_name_of)
    have = numbers_by_name(hosts)
    missing = [numbers for name, numbers in had.items() if name not in have]
    number_of: dict[int, int] = {}
    for name, workers in have.items():
        numbers = had.get(name)
        if numbers is None:
            numbers = next((one for one in missing if len(one) == len(workers)), [])
            missing = [one for one in missing if one is not numbers]
        number_of |= dict(zip(workers, numbers, strict=False))
    new = iter(range(known.accelerators, known.accelerators + len(hosts)))
    return tuple(
        number_of[worker] if worker in number_of else next(new) for worker in range(len(hosts))
    )


def stand_ins(known: Cluster, hosts: Sequence[str], numbers: Sequence[int]) -> dict[str, str]:
    """Return for every host that stands for a missing one the name of that; see above."""
    had = known.host_name_of
    return {
        name: had[number]
        for name, number in zip(hosts, numbers, strict=True)
        if number < len(had) and had[number] != name
    }


def extended(known: Cluster, numbers: Sequence[int], found: Cluster) -> Cluster:
    """Return a known cluster with the accelerators that have joined.

    Args:
        known: the cluster.
        numbers: of the found ones in it, as :func:`recognized` returns them.
        found: the cluster of those that are there now.
    """
    lines = list(known.part(range(known.accelerators)).hosts)
    there = found.part(range(found.accelerators)).hosts
    for number, line in sorted(zip(numbers, there, strict=True), key=lambda pair: pair[0]):
        if number < known.accelerators:
            lines[number] = line.model_copy(update={"name": lines[number].name})
        else:
            lines.append(line)
    # What all lines of a host say alike may have changed.
    newest = {line.name: line for line in there}
    alike = ("network", "rack")
    lines = [
        line.model_copy(update={name: getattr(newest.get(line.name, line), name) for name in alike})
        for line in lines
    ]
    alone = len(set(known.host_of)) == known.accelerators
    return Cluster(
        hosts=tuple(lines),
        within_host=found.within_host if alone else known.within_host,
        between_hosts=known.between_hosts or found.between_hosts,
        between_racks=known.between_racks or found.between_racks,
    )
