"""Folding the nodes of an aten graph into operators that are worth placing.

A node that computes nothing (a view, a constant, a slice of a weight) belongs to the operator
that made what it reads, or to the only one that reads it, as does what is computed from weights
alone::

    input ─ conv2d ─ flatten ─┐                          conv2d ─────────┐
                            linear ─ relu        gives     flatten     linear ─ relu
              weight ─ split ─┘                                          split

Nodes that share a weight stay together with everything on the paths between them.
"""

from __future__ import annotations

from collections.abc import Iterable

import networkx
from networkx.utils import UnionFind
from torch import fx, nn

from drlpp.capturing.aten import computes_nothing, is_call, is_tensor, owner, written
from drlpp.capturing.export import storage_owner

Group = tuple[fx.Node, ...]


def fold(module: fx.GraphModule) -> tuple[Group, ...]:
    """Divide the nodes of ``module`` that compute something into operators.

    Returns:
        The nodes of every operator in the order of execution; the operators in a topological
        order, the first executed first.
    """
    return _folded(module, [together for _, together in weight_readers(module)])


def fold_untied(module: fx.GraphModule) -> tuple[Group, ...]:
    """The operators that :func:`fold` would give if no operators shared a weight."""
    return _folded(module, [])


def _folded(module: fx.GraphModule, sharing_weights: Iterable[list[fx.Node]]) -> tuple[Group, ...]:
    nodes = [node for node in module.graph.nodes if is_call(node)]
    groups = UnionFind(nodes)
    for together in (*_what_no_edge_can_carry(nodes), *sharing_weights):
        groups.union(*together)
    working = working_nodes(module)
    _join_producers(nodes, groups)
    _join_effects(nodes, working, groups)
    for cycle in networkx.strongly_connected_components(_quotient(nodes, groups)):
        groups.union(*cycle)
    _join_only_reader(nodes, working, groups)
    return _in_order(nodes, working, groups)


def working_nodes(module: fx.GraphModule) -> set[fx.Node]:
    """The nodes that compute something from the model's inputs."""
    fed = set(module.graph.find_nodes(op="placeholder"))
    for node in module.graph.nodes:
        if not fed.isdisjoint(node.all_input_nodes):
            fed.add(node)
    return {node for node in fed if is_call(node) and not computes_nothing(node)}


def _what_no_edge_can_carry(nodes: Iterable[fx.Node]) -> Iterable[list[fx.Node]]:
    """Lists of tensors or numbers with their readers, and all that touches a changed tensor."""
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


def weight_readers(module: fx.GraphModule) -> Iterable[tuple[str, list[fx.Node]]]:
    """The name of every parameter with the nodes that read it, directly or through views of it."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    names: dict[nn.Parameter, str] = {}
    readers: dict[str, list[fx.Node]] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        if node.target in parameters:
            name = names.setdefault(parameters[node.target], str(node.target))
            readers.setdefault(name, []).extend(_readers(node))
    for together in readers.values():
        for node in together:
            if _is_only_view(node):
                # Those that read the view are visited in turn.
                together += [reader for reader in _readers(node) if reader not in together]
    yield from ((name, together) for name, together in readers.items() if together)


def _is_only_view(node: fx.Node) -> bool:
    """Whether ``node`` computes nothing from parameters, inputs and constants alone."""
    return computes_nothing(node) and all(
        not is_call(source) or _is_only_view(source) for source in node.all_input_nodes
    )


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
    """Put nodes that nothing reads, such as counters, beside their module's other operators."""
    position = {node: index for index, node in enumerate(nodes)}
    read = [node for node in nodes if node.users and node in working]
    for node in nodes:
        if not node.users and read:
            nearest = min(
                read,
                key=lambda other: (
                    owner(other) != owner(node),
                    abs(position[other] - position[node]),
                ),
            )
            groups.union(nearest, node)


def _join_only_reader(nodes: list[fx.Node], working: set[fx.Node], groups: UnionFind) -> None:
    """Put operators that do no work on inputs into the only one that reads them, if any."""
    placed = {groups[node] for node in working}
    members = _members(nodes, groups)
    for node in reversed(nodes):
        group = groups[node]
        if group in placed or group not in members:
            continue
        readers = {groups[reader] for member in members[group] for reader in _readers(member)}
        readers.discard(group)
        if len(readers) == 1:
            groups.union(*readers, node)
            placed.add(groups[node])


def _in_order(nodes: list[fx.Node], working: set[fx.Node], groups: UnionFind) -> tuple[Group, ...]:
    position = {node: index for index, node in enumerate(nodes)}
    members = _members(nodes, groups)

    def started(group: fx.Node) -> int:
        first = [node for node in members[group] if node in working] or members[group]
        return position[first[0]]

    order = networkx.lexicographical_topological_sort(_quotient(nodes, groups), key=started)
    return tuple(tuple(members[group]) for group in order)


def _members(nodes: Iterable[fx.Node], groups: UnionFind) -> dict[fx.Node, list[fx.Node]]:
    """The nodes of every group, in the order of execution, by the node that stands for it."""
    members: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        members.setdefault(groups[node], []).append(node)
    return members


def _quotient(nodes: Iterable[fx.Node], groups: UnionFind) -> networkx.DiGraph:
    """The graph of groups, each standing for its nodes."""
    graph: networkx.DiGraph[fx.Node] = networkx.DiGraph()
    for node in nodes:
        graph.add_node(groups[node])
        for reader in _readers(node):
            if groups[reader] != groups[node]:
                graph.add_edge(groups[node], groups[reader])
    return graph


def _readers(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if is_call(user)]
