"""Planning on groups of operators, such as modules, instead of operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import networkx
import numpy

from drlpp.capturing.graph import Edge, Operator, OpGraph
from drlpp.costs.memory import beyond_kept, working_bytes_of
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement


def _in_order(
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
        order = _in_order(((edge.source, edge.target) for edge in graph.edges), given)
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
            shared_parameters=tuple(
                shared.model_copy(update={"operators": groups})
                for shared in graph.shared_parameters
                if len(groups := tuple(sorted({group_of[op] for op in shared.operators}))) > 1
            ),
        )
        return cls(contracted, members)

    def profile(self, profile: Profile) -> Profile:
        """Return the costs of the groups: sums over their operators, and the memory they need."""
        costs = []
        kept = numpy.array([cost.kept_bytes for cost in profile.operators], dtype=float)
        inside = numpy.zeros((len(self.members), len(kept)), dtype=bool)
        for row, group in zip(inside, self.members, strict=True):
            row[list(group)] = True
        alone = numpy.zeros(len(inside), dtype=bool)
        working = beyond_kept(working_bytes_of(profile), kept, inside, alone)
        for group, bytes_ in zip(self.members, working, strict=True):
            held = [profile.operators[op] for op in group]
            costs.append(
                OperatorProfile(
                    forward_seconds=sum(cost.forward_seconds for cost in held),
                    backward_seconds=sum(cost.backward_seconds for cost in held),
                    kept_bytes=sum(cost.kept_bytes for cost in held),
                    working_bytes=round(bytes_),
                )
            )
        return profile.model_copy(update={"graph": self.graph, "operators": tuple(costs)})

    def expanded(self, placement: Placement) -> Placement:
        """Return a placement of groups as one of the original's operators."""
        operators = (
            sorted(op for one in stage.operators for op in self.members[one])
            for stage in placement.stages
        )
        return Placement.of(operators, placement.holders)

    def expanded_candidate(self, candidate: Candidate) -> Candidate:
        """Return the same with the placement expanded."""
        return replace(candidate, placement=self.expanded(candidate.placement))
