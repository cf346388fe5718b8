"""The operator graph of a captured module: what its groups of nodes are, hold and read."""

from __future__ import annotations

from collections.abc import Container, Sequence

from torch import Tensor, fx

from drlpp.capturing.aten import computes_nothing, is_call, operator_type, owner
from drlpp.capturing.folding import Group, working_nodes
from drlpp.capturing.graph import Edge, Operator, OpGraph, SharedParameter, TensorSpec
from drlpp.capturing.loss_capture import returned_nodes
from drlpp.models.model_reference import ModelReference


def outputs_of(group: Group) -> tuple[fx.Node, ...]:
    """Return the nodes of ``group`` that other operators or the caller read."""
    members = set(group)
    return tuple(node for node in group if not node.users.keys() <= members)


def described(
    reference: ModelReference,
    module: fx.GraphModule,
    groups: Sequence[Group],
    outputs: Sequence[tuple[fx.Node, ...]],
) -> OpGraph:
    """Return the operator graph of nodes in groups, with the ``outputs`` of each group."""
    source_of = {node: (i, j) for i, nodes in enumerate(outputs) for j, node in enumerate(nodes)}
    bytes_of = {name: value.nbytes for name, value in module.named_parameters()}
    weights = _weights(module, bytes_of)
    doing_work = working_nodes(module)
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
                outputs=tuple(_spec(node.meta["val"]) for node in outputs[id_]),
            )
        )
        read: dict[int, set[int]] = {}
        for source in {source for node in group for source in node.all_input_nodes}:
            producer, index = source_of.get(source, (id_, 0))
            if producer != id_:
                read.setdefault(producer, set()).add(index)
        edges += [Edge(source=i, target=id_, outputs=tuple(sorted(read[i]))) for i in sorted(read)]
    return OpGraph(
        model=str(reference),
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


def _spec(value: Tensor) -> TensorSpec:
    dtype = str(value.dtype).removeprefix("torch.")
    return TensorSpec(shape=tuple(value.shape), dtype=dtype, bytes_=value.nbytes)
