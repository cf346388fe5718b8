"""Joining operators that an optimal plan can always keep together, so that fewer are left to plan.

An operator z that takes no time, has no weights and needs no memory can move between stages at
will, and only messages change.

* **To its producer.** z reads one tensor, which nobody else reads and which is no smaller than all
  that z makes. Wherever z stands, moving it to the stage of its producer replaces messages of that
  tensor by messages that are no larger.
* **To its reader.** z makes one tensor, for one reader, and all that z reads is read by nobody else
  and is no larger than what z makes. Then moving z to the stage of its reader replaces messages of
  its tensor by messages that are no larger.

Both are lossless: an optimal placement of the smaller workload is one of the larger, by any of the
rules of :mod:`drlpp.costs.stage_cost`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import networkx
import numpy
from networkx.utils import UnionFind

from drlpp.costs.memory import joined
from drlpp.costs.stage_cost import Array
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload


@dataclass(frozen=True)
class Contraction:
    """A smaller workload, and the original's operators that each of its operators stands for."""

    workload: Workload
    members: tuple[tuple[int, ...], ...]


def contract_free_operators(workload: Workload) -> Contraction:
    """Join operators by the two rules above until none applies."""
    groups: list[tuple[int, ...]] = [(operator,) for operator in range(len(workload))]
    while True:
        pairs = _joinable(workload)
        if not pairs:
            return Contraction(workload, tuple(groups))
        union = UnionFind(range(len(workload)))
        for one, other in pairs:
            union.union(one, other)
        together = in_topological_order(workload, [sorted(group) for group in union.to_sets()])
        groups = [tuple(sorted(m for op in group for m in groups[op])) for group in together]
        workload = join(workload, together)


def join(workload: Workload, groups: list[list[int]]) -> Workload:
    """Return the workload whose operators are ``groups``, given in a topological order."""
    group_of = {op: number for number, group in enumerate(groups) for op in group}
    group_of[len(workload)] = len(groups)
    transfers: dict[tuple[int, ...], tuple[float, float]] = {}
    for transfer in workload.transfers:
        producer = group_of[transfer.members[0]]
        readers = {group_of[member] for member in transfer.members[1:]} - {producer}
        if readers:
            members = (producer, *sorted(readers))
            forward, backward = transfers.get(members, (0.0, 0.0))
            transfers[members] = (
                forward + transfer.forward_bytes,
                backward + transfer.backward_bytes,
            )

    def added(values: Array) -> Array:
        return numpy.array([values[group].sum() for group in groups])

    parameter_bytes, update_seconds = (
        added(workload.parameter_bytes),
        added(workload.update_seconds),
    )
    ties = []
    for tie in workload.ties:
        holders = Counter(group_of[operator] for operator in tie.operators)
        for group, count in holders.items():
            # An operator has what it reads once.
            parameter_bytes[group] -= (count - 1) * tie.bytes_
            update_seconds[group] -= (count - 1) * workload.tied_update_seconds(tie)
        if len(holders) > 1:
            ties.append(replace(tie, operators=tuple(sorted(holders))))
    edges = {(group_of[source], group_of[target]) for source, target in workload.edges}
    return replace(
        workload,
        names=tuple(workload.names[group[0]] for group in groups),
        edges=tuple(sorted(edge for edge in edges if edge[0] != edge[1])),
        transfers=tuple(Transfer(members, *bytes_) for members, bytes_ in transfers.items()),
        ties=tuple(ties),
        forward_seconds=added(workload.forward_seconds),
        backward_seconds=added(workload.backward_seconds),
        update_seconds=numpy.maximum(update_seconds, 0.0),
        parameter_bytes=parameter_bytes,
        kept_bytes=added(workload.kept_bytes),
        working_bytes=None
        if workload.working_bytes is None
        else joined(workload.working_bytes, workload.kept_bytes, groups),
    )


def _joinable(workload: Workload) -> list[tuple[int, int]]:
    """Return pairs that may be joined all at once.

    No operator is in two of them as the one that moves.
    """
    costs = (
        workload.seconds + workload.update_seconds + workload.parameter_bytes + workload.kept_bytes
    )
    if workload.working_bytes is not None:
        costs = costs + workload.working_bytes[:-1]
    made: dict[int, list[Transfer]] = {}
    read: dict[int, list[Transfer]] = {}
    for transfer in workload.transfers:
        made.setdefault(transfer.members[0], []).append(transfer)
        for reader in transfer.members[1:]:
            read.setdefault(reader, []).append(transfer)
    pairs = []
    moving: set[int] = set()
    for free in numpy.flatnonzero(costs == 0).tolist():
        outputs, inputs = made.get(free, []), read.get(free, [])
        target = _producer(workload, free, inputs, outputs)
        if target is None:
            target = _only_reader(workload, free, inputs, outputs)
        if target is not None and target not in moving:
            pairs.append((free, target))
            moving.add(free)
    return pairs


def _producer(
    workload: Workload, free: int, inputs: list[Transfer], outputs: list[Transfer]
) -> int | None:
    if len(inputs) != 1 or len(inputs[0].members) != 2:
        return None
    producer = inputs[0].members[0]
    if workload.predecessors[free] != (producer,) or not _no_larger(outputs, inputs):
        return None
    return producer


def _only_reader(
    workload: Workload, free: int, inputs: list[Transfer], outputs: list[Transfer]
) -> int | None:
    readers = {member for transfer in outputs for member in transfer.members[1:]}
    if len(readers) != 1 or len(workload) in readers:
        return None
    reader = readers.pop()
    if workload.successors[free] != (reader,) or not _no_larger(inputs, outputs):
        return None
    if any(len(transfer.members) != 2 for transfer in inputs):
        return None
    return reader


def _no_larger(these: list[Transfer], those: list[Transfer]) -> bool:
    """Return whether ``these`` have no more bytes than ``those``, in either direction."""
    return all(
        sum(getattr(t, direction) for t in these) <= sum(getattr(t, direction) for t in those)
        for direction in ("forward_bytes", "backward_bytes")
    )


def in_topological_order(workload: Workload, groups: list[list[int]]) -> list[list[int]]:
    """Return groups of operators that do not need each other in circles, in an order of theirs."""
    group_of = {op: number for number, group in enumerate(groups) for op in group}
    order: networkx.DiGraph[int] = networkx.DiGraph()
    order.add_nodes_from(range(len(groups)))
    order.add_edges_from(
        (group_of[source], group_of[target])
        for source, target in workload.edges
        if group_of[source] != group_of[target]
    )
    numbers = networkx.lexicographical_topological_sort(order, key=lambda n: groups[n][0])
    return [groups[number] for number in numbers]
