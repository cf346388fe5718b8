"""An aten graph in which data flow along edges alone, so that it can be cut anywhere.

Regions without gradients are put in place, operators that work in place become their ordinary
counterparts, and what cannot travel between workers is refused.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from drlpp.capturing.aten import (
    EXEMPT_FROM_AUTOCAST,
    is_call,
    named_arguments,
    operator_type,
    storage_owner,
    written,
)
from drlpp.errors import InvalidModel


def inline_regions(graph: fx.Graph, root: nn.Module, what: str) -> None:
    """Put the operators of ``torch.no_grad`` and ``autocast(enabled=False)`` regions in place.

    The results of a region without gradients are detached, which is the same to its readers.
    Operators of a region without autocast are marked.

    Raises:
        InvalidModel: for control flow and other functions that take graphs as arguments.
    """
    pending = list(graph.nodes)
    while pending:
        node = pending.pop()
        if not isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        match operator_type(node), node.args:
            case "wrap_with_set_grad_enabled", (bool(gradients), fx.Node() as body, *arguments):
                detached, exempt = not gradients, EXEMPT_FROM_AUTOCAST in node.meta
            case "wrap_with_autocast", (_, _, False, _, fx.Node() as body, *arguments):
                detached, exempt = False, True
            case name, _:
                hint = "call autocast outside the model" if "autocast" in name else "rewrite it"
                raise InvalidModel(f"{what} uses {name}, which cannot be cut into stages; {hint}")
        copied = _inline(graph, root, node, body, arguments, detached)
        if exempt:
            for inner in copied:
                inner.meta[EXEMPT_FROM_AUTOCAST] = True
        pending += copied


def _inline(
    graph: fx.Graph,
    root: nn.Module,
    call: fx.Node,
    body: fx.Node,
    arguments: list[fx.Node],
    detached: bool,
) -> list[fx.Node]:
    """Replace ``call``, whose results are read through ``getitem``, by the nodes of ``body``."""
    region = root.get_submodule(str(body.target))
    assert isinstance(region, fx.GraphModule)
    inner = region.graph
    values = dict(zip(inner.find_nodes(op="placeholder"), arguments, strict=True))
    with graph.inserting_before(call):
        for node in inner.nodes:
            if node.op not in ("placeholder", "output"):
                given = values
                if detached and (changed := written(node)):
                    # Otherwise a buffer would remember, with gradients, where its values are from.
                    read = [source for source in node.all_input_nodes if source not in changed]
                    given = {**values, **{n: _detached(graph, call, values[n]) for n in read}}
                values[node] = graph.node_copy(node, given.__getitem__)
                if node.op == "get_attr":
                    values[node].target = f"{body.target}.{node.target}"
        copied = [value for node, value in values.items() if is_call(node)]
        results = inner.output_node().args[0]
        assert isinstance(results, tuple | list)
        for reader in list(call.users):
            index = reader.args[1]
            assert isinstance(index, int)
            result = values[results[index]]
            if detached:
                result = _detached(graph, call, result)
            reader.replace_all_uses_with(result)
            graph.erase_node(reader)
    graph.erase_node(call)
    return copied


def _detached(graph: fx.Graph, call: fx.Node, value: fx.Node) -> fx.Node:
    """Return the value without gradients, on behalf of ``call``."""
    result = graph.call_function(torch.ops.aten.detach.default, (value,))
    result.meta = {**call.meta, "val": value.meta["val"].detach()}
    return result


def replace_in_place(graph: fx.Graph) -> None:
    """Turn ``relu_`` into ``relu`` wherever no other view of the same storage is read later.

    A tensor that is changed in place may not cross from stage to stage, nor be a leaf.
    """
    position = {node: index for index, node in enumerate(graph.nodes)}
    last_read = {node: max(map(position.__getitem__, node.users), default=-1) for node in position}
    owners: dict[fx.Node, fx.Node] = {}
    sharing: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        owners[node] = storage_owner(node, owners)
        sharing.setdefault(owners[node], []).append(node)
        changed = written(node)
        ordinary = _ordinary_counterpart(node)
        if len(changed) != 1 or ordinary is None or owners[changed[0]].op == "get_attr":
            continue
        (target,) = changed
        if any(
            last_read[other] > position[node]
            for other in sharing[owners[node]]
            if other not in (node, target)
        ):
            continue
        node.target = ordinary
        sharing[owners[node]].remove(node)
        owners[node] = node
        sharing[node] = [node]
        later = {user for user in target.users if position[user] > position[node]}
        target.replace_all_uses_with(node, delete_user_cb=later.__contains__)
        last_read[node] = max(last_read[node], last_read[target])
        last_read[target] = position[node]


def _ordinary_counterpart(node: fx.Node) -> torch._ops.OpOverload | None:
    """Return ``aten.relu.default`` for ``aten.relu_.default``, if its result has the same type."""
    if not isinstance(node.target, torch._ops.OpOverload) or not written(node):
        return None
    packet = getattr(torch.ops.aten, operator_type(node).removesuffix("_"), None)
    overload = getattr(packet, node.target._overloadname, None)
    dtypes = {
        value.dtype
        for argument in node.all_input_nodes
        if isinstance(value := argument.meta.get("val"), Tensor)
    }
    same_type = dtypes <= {node.meta["val"].dtype, torch.bool} if overload else False
    return overload if same_type and overload is not node.target else None


def refuse_changed_inputs(module: fx.GraphModule, what: str) -> None:
    """Refuse a graph that changes an input in place, which other parts of a pipeline read too.

    Raises:
        InvalidModel: it does.
    """
    owners: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        owners[node] = storage_owner(node, owners)
        for target in written(node):
            if owners[target].op == "placeholder":
                raise InvalidModel(
                    f"{what} cannot be captured: its forward changes its input {owners[target]} in "
                    f"place ({operator_type(node)}); copy it first: {owners[target]}.clone()"
                )


def check_operators(graph: fx.Graph, what: str) -> None:
    """Refuse operators that workers lack, sparse gradients, and shapes that depend on values."""
    for node in graph.nodes:
        operator, problem = node.target, None
        if isinstance(operator, torch._ops.OpOverload) and operator.namespace not in (
            "aten",
            "prims",
        ):
            problem = (
                f"it uses the operator {operator.name()} of an extension, and workers have torch's "
                "own operators alone"
            )
        elif named_arguments(node).get("sparse") is True:
            problem = (
                f"{operator_type(node)} gives sparse gradients, which workers cannot add up; leave "
                "out sparse=True"
            )
        elif any(
            isinstance(size, torch.SymInt)
            for value in pytree.tree_leaves(node.meta.get("val"))
            if isinstance(value, Tensor)
            for size in value.shape
        ):
            problem = (
                f"the shape of {node.name} depends on the values of the inputs; torch.export has "
                "to see the same operators whatever they are"
            )
        if problem:
            raise InvalidModel(f"{what} cannot be captured: {problem}")
