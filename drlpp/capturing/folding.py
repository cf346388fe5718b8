"""Folding the nodes of an aten graph into operators that are worth placing.

A node that computes nothing (a view, a constant, a slice of a weight) belongs to the operator
that made what it reads, or to the only one that reads it, as does what is computed from weights
alone::

    input ─ conv2d ─ flatten ─┐                          conv2d ─────────┐
                            linear ─ relu        gives     flatten     linear ─ relu
              weight ─ split ─┘                                          split

Nodes of one module that share a weight, such as those of a cell that is called step by step, stay
together with everything on the paths between them, and so do nodes that read the same view of it.
Different modules may share a weight and be placed apart.
"""

from __future__ import annotations

import bisect
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TypedDict

import networkx
from networkx.utils import UnionFind
from torch import fx, nn

from drlpp.capturing.aten import (
    calling_modules,
    computes_nothing,
    is_call,
    is_tensor,
    operator_type,
    owner,
    returned_nodes,
    storage_owner,
    written,
)
from drlpp.capturing.graph import (
    Edge,
    Operator,
    OpGraph,
    SharedParameter,
    TensorSpec,
    common_module,
)

Group = tuple[fx.Node, ...]


def fold(module: fx.GraphModule) -> tuple[Group, ...]:
    """Divide the nodes of ``module`` that compute something into operators.

    Returns:
        The nodes of every operator in the order of execution; the operators in a topological
        order, the first executed first.
    """
    nodes = [node for node in module.graph.nodes if is_call(node)]
    groups = UnionFind(nodes)
    sharing_weights = (use for uses in weight_uses(module).values() for use in uses)
    for together in (*_what_no_edge_can_carry(nodes), *sharing_weights):
        groups.union(*together)
    working = _working_nodes(module)
    _join_producers(nodes, groups)
    _join_effects(nodes, working, groups)
    for cycle in networkx.strongly_connected_components(_quotient(nodes, groups)):
        groups.union(*cycle)
    _join_only_reader(nodes, working, groups)
    return _in_order(nodes, working, groups)


def _working_nodes(module: fx.GraphModule) -> set[fx.Node]:
    """Return the nodes that compute something from the model's inputs."""
    fed = set(module.graph.find_nodes(op="placeholder"))
    for node in module.graph.nodes:
        if not fed.isdisjoint(node.all_input_nodes):
            fed.add(node)
    return {node for node in fed if is_call(node) and not computes_nothing(node)}


def _what_no_edge_can_carry(nodes: Iterable[fx.Node]) -> Iterable[list[fx.Node]]:
    """Yield what no edge between stages can carry, as nodes to keep together.

    That is a list of tensors or numbers with its readers, and all that touches a changed tensor.
    """
    owners: dict[fx.Node, fx.Node] = {}
    touching: dict[fx.Node, list[fx.Node]] = {}
    changed: set[fx.Node] = set()
    for node in nodes:
        for source in node.all_input_nodes:
            owners.setdefault(source, source)
        owners[node] = storage_owner(node, owners)
        for touched in (node, *node.all_input_nodes):
            touching.setdefault(owners[touched], []).append(node)
        changed.update(owners[target] for target in written(node))
        if not is_tensor(node):
            yield [node, *_readers(node)]
    yield from (touching[storage] for storage in changed)


def weight_uses(module: fx.GraphModule) -> dict[str, list[list[fx.Node]]]:
    """Return for every parameter the nodes that read it, directly or through views.

    Each list has those that have to stay together: of one module, or that read the same view.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    names: dict[nn.Parameter, str] = {}
    readers: dict[str, list[fx.Node]] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        if node.target in parameters:
            name = names.setdefault(parameters[node.target], str(node.target))
            readers.setdefault(name, []).extend(_readers(node))
    only_views = _only_views(module)
    return {name: _uses(found, only_views) for name, found in readers.items() if found}


def _uses(readers: Iterable[fx.Node], only_views: set[fx.Node]) -> list[list[fx.Node]]:
    """Divide direct readers of a parameter, and who reads its views, by the calling modules."""
    found = list(dict.fromkeys(readers))
    together = UnionFind(found)
    of_module: dict[tuple[str, ...], fx.Node] = {}
    for node in found:
        together.union(of_module.setdefault(calling_modules(node), node), node)
        if node in only_views:
            # Those that read the view are visited in turn.
            for reader in _readers(node):
                if reader not in found:
                    found.append(reader)
                together.union(node, reader)
    return [[node for node in found if node in use] for use in together.to_sets()]


def _only_views(module: fx.GraphModule) -> set[fx.Node]:
    """Return the nodes that compute nothing and read only parameters, inputs and constants."""
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        viewing = is_call(node) and computes_nothing(node)
        if viewing and all(not is_call(n) or n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def _join_producers(nodes: Iterable[fx.Node], groups: UnionFind) -> None:
    """Put what computes nothing into the operator whose result it reads."""
    computed: dict[fx.Node, int] = {}
    for position, node in enumerate(nodes):
        producers = [source for source in node.all_input_nodes if source in computed]
        if not computes_nothing(node):
            computed[node] = position
        elif producers:
            # No path leads from the last of several back to another.
            last = max(producers, key=lambda producer: computed[producer])
            groups.union(last, node)
            computed[node] = computed[last]


def _join_effects(nodes: list[fx.Node], working: set[fx.Node], groups: UnionFind) -> None:
    """Put nodes that nothing reads, such as counters, with their module's other operators."""
    read = [index for index, node in enumerate(nodes) if node.users and node in working]
    of_module: dict[str, list[int]] = {}
    for index in read:
        of_module.setdefault(owner(nodes[index]), []).append(index)
    for index, node in enumerate(nodes):
        if not node.users and read:
            candidates = of_module.get(owner(node), read)
            after = bisect.bisect(candidates, index)
            around = candidates[max(after - 1, 0) : after + 1]
            nearest = min(around, key=lambda other: abs(other - index))
            groups.union(nodes[nearest], node)


def _join_only_reader(nodes: list[fx.Node], working: set[fx.Node], groups: UnionFind) -> None:
    """Put operators that do no work on inputs into the only one that reads them, if any."""
    settled = {groups[node] for node in working}
    members = _members(nodes, groups)
    # Two readers of an operator that were in different ones when its readers were last looked at.
    apart: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}
    for node in reversed(nodes):
        group = groups[node]
        if group in settled or (group in apart and len({groups[n] for n in apart[group]}) > 1):
            continue
        outside = (
            reader
            for member in members[group]
            for reader in _readers(member)
            if groups[reader] != group
        )
        first = next(outside, None)
        other = next((reader for reader in outside if groups[reader] != groups[first]), None)
        if first is not None and other is not None:
            apart[group] = first, other
            continue
        if first is not None:
            groups.union(first, node)
        settled.add(groups[node])


def _in_order(nodes: list[fx.Node], working: set[fx.Node], groups: UnionFind) -> tuple[Group, ...]:
    position = {node: index for index, node in enumerate(nodes)}
    members = _members(nodes, groups)

    def started(group: fx.Node) -> int:
        first = [node for node in members[group] if node in working] or members[group]
        return position[first[0]]

    order = networkx.lexicographical_topological_sort(_quotient(nodes, groups), key=started)
    return tuple(tuple(members[group]) for group in order)


def _members(nodes: Iterable[fx.Node], groups: UnionFind) -> dict[fx.Node, list[fx.Node]]:
    """Return the nodes of every group, in order of execution, by the node that stands for it."""
    members: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        members.setdefault(groups[node], []).append(node)
    return members


def _quotient(nodes: Iterable[fx.Node], groups: UnionFind) -> networkx.DiGraph:
    """Return the graph of groups, each standing for its nodes."""
    graph: networkx.DiGraph[fx.Node] = networkx.DiGraph()
    for node in nodes:
        graph.add_node(groups[node])
        for reader in _readers(node):
            if groups[reader] != groups[node]:
                graph.add_edge(groups[node], groups[reader])
    return graph


def _readers(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if is_call(user)]


class Described(TypedDict):
    """An operator graph, and which nodes its operators and their outputs are (CapturedModel)."""

    graph: OpGraph
    operator_of: dict[str, int]
    output_nodes: dict[tuple[int, int], str]


def described(model: str, module: fx.GraphModule, groups: Sequence[Group]) -> Described:
    """Return the operator graph of the nodes of a module in groups, and their names.

    Outputs of an operator are the nodes that others or the caller read.
    """
    outputs = [_given_away(group) for group in groups]
    source_of = {node: (i, j) for i, nodes in enumerate(outputs) for j, node in enumerate(nodes)}
    bytes_of = {name: value.nbytes for name, value in module.named_parameters()}
    weights = _weights(module, bytes_of)
    doing_work = _working_nodes(module)
    operators: list[Operator] = []
    readers: dict[str, list[int]] = {}
    edges: list[Edge] = []
    names: dict[str, int] = {}
    for id_, group in enumerate(groups):
        working = [node for node in group if node in doing_work] or group
        main = max(working, key=lambda node: sum(bytes_of[name] for name in weights[node]))
        read_weights = sorted(set().union(*(weights[node] for node in group)))
        for parameter in read_weights:
            readers.setdefault(parameter, []).append(id_)
        name = ".".join(filter(None, [owner(main), operator_type(main)]))
        repeated = names[name] = names.get(name, -1) + 1
        operators.append(
            Operator(
                id=id_,
                name=f"{name}_{repeated}" if repeated else name,
                type=operator_type(main),
                module=owner(main),
                parameter_bytes=sum(bytes_of[parameter] for parameter in read_weights),
                outputs=tuple(TensorSpec.of(node.meta["val"]) for node in outputs[id_]),
            )
        )
        read: dict[int, set[int]] = {}
        for source in {source for node in group for source in node.all_input_nodes}:
            producer, index = source_of.get(source, (id_, 0))
            if producer != id_:
                read.setdefault(producer, set()).add(index)
        edges += [Edge(source=i, target=id_, outputs=tuple(sorted(read[i]))) for i in sorted(read)]
    graph = OpGraph(
        model=model,
        operators=tuple(operators),
        edges=tuple(edges),
        outputs=tuple(source_of[node] for node in returned_nodes(module) if node in source_of),
        shared_parameters=tuple(
            SharedParameter(
                name=name,
                bytes_=bytes_of[name],
                operators=tuple(sharing),
                trained=module.get_parameter(name).requires_grad,
            )
            for name, sharing in readers.items()
            if len(sharing) > 1
        ),
    )
    return Described(
        graph=graph,
        operator_of={node.name: id_ for id_, group in enumerate(groups) for node in group},
        output_nodes={place: node.name for node, place in source_of.items()},
    )


def _given_away(group: Group) -> list[fx.Node]:
    members = set(group)
    return [node for node in group if not node.users.keys() <= members]


def _weights(module: fx.GraphModule, known: Container[str]) -> dict[fx.Node, frozenset[str]]:
    """Return the names of the parameters that every node reads, itself or through views."""
    read: dict[fx.Node, frozenset[str]] = {}
    passed_on: dict[fx.Node, frozenset[str]] = {}
    for node in module.graph.nodes:
        if is_call(node):
            read[node] = frozenset().union(
                *(passed_on[source] for source in node.all_input_nodes if source in passed_on)
            )
            if computes_nothing(node):
                passed_on[node] = read[node]
        elif node.op == "get_attr" and node.target in known:
            passed_on[node] = frozenset([str(node.target)])
    return read


_MOST_NAMES = 3


def tie_notes(module: fx.GraphModule, groups: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence for every operator that weights used more than once made of many nodes.

    Args:
        module: the captured graph.
        groups: its operators, as :func:`fold` gives them.
    """
    working = _working_nodes(module)
    group_of = {node: index for index, group in enumerate(groups) for node in group}
    shared: dict[int, dict[str, list[fx.Node]]] = {}
    for name, uses in weight_uses(module).items():
        for readers in uses:
            if len(computing := [node for node in readers if node in working]) > 1:
                shared.setdefault(group_of[readers[0]], {})[name] = computing
    for merged, names in shared.items():
        whole = sum(node in working for node in groups[merged])
        # A cell that runs step by step is one layer, unless the model has little else.
        if whole > len(working) / 2 or not common_module(map(owner, groups[merged])):
            plural = len(names) > 1
            users = {owner(node) for computing in names.values() for node in computing}
            yield (
                f"the parameter{'s' * plural} {_listed([*names])} {'are' if plural else 'is'} used "
                f"more than once, by {_listed(sorted(filter(None, users)) or ['the model itself'])}"
                f": {whole} of {len(working)} nodes, what lies between them included, are one "
                f"operator, which no placement can divide; {len(groups)} "
                f"{'are' if len(groups) > 1 else 'is'} left. To divide them, give each use a "
                "module and weights of its own"
            )


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        shown.append(f"{len(names) - _MOST_NAMES} more")
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
