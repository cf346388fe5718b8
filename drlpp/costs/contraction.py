"""Planning on groups of operators instead of operators: groups of a graph, and of a workload.

What is planned on a :class:`ContractedGraph` cuts between its groups alone, such as modules. A
:class:`Contraction` leaves fewer operators to plan. It loses nothing where each of its groups can
always be kept together: an operator z that takes no time, has no weights and needs no memory can
move between stages at will, and only messages change.

* **To its producer.** z reads one tensor, which nobody else reads and which is no smaller than all
  that z makes. Wherever z stands, moving it to the stage of its producer replaces messages of that
  tensor by messages that are no larger.
* **To its reader.** z makes one tensor, for one reader, and all that z reads is read by nobody else
  and is no larger than what z makes. Then moving z to the stage of its reader replaces messages of
  its tensor by messages that are no larger.

An optimal placement of such a smaller workload is one of the larger, by any of the rules of
:mod:`drlpp.costs.stage_cost`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import networkx
import numpy
from networkx.utils import UnionFind

from drlpp.capturing.graph import Edge, Operator, OpGraph, SharedParameter
from drlpp.costs.memory import joined, working_bytes_of
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.costs.stage_cost import Array
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement, Stage


def in_order(
    edges: Iterable[tuple[int, int]], groups: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """Return numbers of groups of operators, in a topological order.

    Those that need each other in circles are together.
    """
    group_of = {op: number for number, group in enumerate(groups) for op in group}
    between: networkx.DiGraph[int] = networkx.DiGraph()
    between.add_nodes_from(range(len(groups)))
    between.add_edges_from(
        (group_of[source], group_of[target])
        for source, target in edges
        if group_of[source] != group_of[target]
    )
    circles = networkx.condensation(between)
    first = {n: min(min(groups[one]) for one in circles.nodes[n]["members"]) for n in circles}
    order = networkx.lexicographical_topological_sort(circles, key=first.__getitem__)
    return [tuple(sorted(circles.nodes[n]["members"], key=lambda g: min(groups[g]))) for n in order]


def expanded(placement: Placement, members: Sequence[Sequence[int]]) -> Placement:
    """Return a placement of groups as one of the operators in each."""
    return Placement(
        stages=tuple(
            Stage(
                operators=tuple(sorted(op for group in stage.operators for op in members[group])),
                accelerators=stage.accelerators,
            )
            for stage in placement.stages
        )
    )


@dataclass(frozen=True)
class ContractedGraph:
    """A graph of groups.

    Attributes:
        graph: an operator for each group, under the group's name.
        members: for each of them the original's operators, sorted.
    """

    graph: OpGraph
    members: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, graph: OpGraph, named: Sequence[tuple[str, Sequence[int]]]) -> ContractedGraph:
        """Contract a graph; groups that read from each other in a circle become one.

        Args:
            graph: the original.
            named: groups with unique names, with every operator in one of them.
        """
        given = [sorted(group) for _, group in named]
        order = in_order(((edge.source, edge.target) for edge in graph.edges), given)
        members = tuple(tuple(sorted(op for one in ones for op in given[one])) for ones in order)
        names = [
            " … ".join(dict.fromkeys(named[one][0] for one in (ones[0], ones[-1])))
            for ones in order
        ]
        group_of = {op: number for number, group in enumerate(members) for op in group}
        # What leaves a group, and what the model returns, in the order of the original.
        returned = set(graph.outputs)
        readers: dict[tuple[int, int], set[int]] = {}
        for edge in graph.edges:
            for output in edge.outputs:
                readers.setdefault((edge.source, output), set()).add(group_of[edge.target])
        leaving = sorted(
            tensor
            for tensor in {*readers, *returned}
            if tensor in returned or readers[tensor] != {group_of[tensor[0]]}
        )
        of_group: list[list[tuple[int, int]]] = [[] for _ in members]
        for tensor in leaving:
            of_group[group_of[tensor[0]]].append(tensor)
        number = {tensor: index for found in of_group for index, tensor in enumerate(found)}
        read: dict[tuple[int, int], list[int]] = {}
        for tensor in leaving:
            source = group_of[tensor[0]]
            for target in sorted(readers.get(tensor, set()) - {source}):
                read.setdefault((source, target), []).append(number[tensor])
        operators = tuple(
            Operator(
                id=index,
                name=names[index],
                type="module",
                module=names[index],
                parameter_bytes=graph.held_parameter_bytes(group),
                outputs=tuple(graph.operators[op].outputs[k] for op, k in of_group[index]),
            )
            for index, group in enumerate(members)
        )
        contracted = OpGraph(
            model=graph.model,
            operators=operators,
            edges=tuple(
                Edge(source=source, target=target, outputs=tuple(outputs))
                for (source, target), outputs in sorted(read.items())
            ),
            outputs=tuple((group_of[tensor[0]], number[tensor]) for tensor in graph.outputs),
            shared_parameters=_shared(graph, group_of),
        )
        return cls(contracted, members)

    def profile(self, profile: Profile) -> Profile:
        """Return the costs of the groups: sums over their operators, and the memory they need."""
        costs = []
        kept = numpy.array([cost.kept_bytes for cost in profile.operators], dtype=float)
        working = joined(working_bytes_of(profile), kept, self.members)
        for group, bytes_ in zip(self.members, working, strict=False):
            inside = [profile.operators[op] for op in group]
            costs.append(
                OperatorProfile(
                    forward_seconds=sum(cost.forward_seconds for cost in inside),
                    backward_seconds=sum(cost.backward_seconds for cost in inside),
                    kept_bytes=sum(cost.kept_bytes for cost in inside),
                    working_bytes=max(0, round(bytes_)),
                )
            )
        return profile.model_copy(update={"graph": self.graph, "operators": tuple(costs)})

    def expanded(self, placement: Placement) -> Placement:
        """Return a placement of groups as one of the original's operators."""
        return expanded(placement, self.members)

    def expanded_candidate(self, candidate: Candidate) -> Candidate:
        """Return the same with the placement expanded."""
        return replace(candidate, placement=self.expanded(candidate.placement))


def _shared(graph: OpGraph, group_of: dict[int, int]) -> tuple[SharedParameter, ...]:
    """Return the parameters that several groups read."""
    found = []
    for shared in graph.shared_parameters:
        groups = tuple(sorted({group_of[op] for op in shared.operators}))
        if len(groups) > 1:
            found.append(shared.model_copy(update={"operators": groups}))
    return tuple(found)


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
        united = [sorted(group) for group in union.to_sets()]
        together = [united[number] for (number,) in in_order(workload.edges, united)]
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
