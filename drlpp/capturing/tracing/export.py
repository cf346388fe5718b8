"""From an ``nn.Module`` to a clean aten graph in which data flows along edges alone.

``torch.export`` does the tracing. What is added here: regions without gradients are inlined,
operators that work in place become their ordinary counterparts, and whatever has no effect is
removed, so that the graph may be cut anywhere.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import operator
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    free_unbacked_symbols,
)
from torch.utils import _pytree as pytree

from drlpp.capturing.aten import (
    EXEMPT_FROM_AUTOCAST,
    is_call,
    named_arguments,
    operator_type,
    viewed,
    written,
)
from drlpp.capturing.tracing.dropped import noticing_dropped
from drlpp.capturing.tracing.function_capture import insert_functions, recorded_functions
from drlpp.capturing.tracing.unlifting import unlift
from drlpp.errors import InvalidModel
from drlpp.specs.batches import Batch, as_arguments, tensors_in
from drlpp.torch_versions import (
    copy_where_a_view_does_not_fit,
    graph_compiled_when_used,
    graphs_compiled_when_used,
    traced_without_stacks,
)

_HINT = (
    "torch.export has to see the same operators whatever the values of the tensors are, and "
    "outputs that are tensors, tuples, lists or dicts"
)


class Exported(NamedTuple):
    """A graph, and sentences for the user about what it leaves out without harm."""

    graph_module: fx.GraphModule
    notes: tuple[str, ...]


def export_graph(module: nn.Module, inputs: Batch, what: str) -> Exported:
    """Trace ``module``, and share its parameters and buffers under their dotted names.

    Args:
        module: traced in the mode (training or evaluation) in which it is.
        inputs: a tuple of positional arguments, or a dictionary; fake tensors do.
        what: how errors call the module, such as ``model vgg16``.

    Raises:
        InvalidModel: with torch.export's reason in one line, or with what it would drop.
    """
    try:
        with (
            _quietly(),
            traced_without_stacks(),
            graphs_compiled_when_used(),
            recorded_functions(),
            noticing_dropped(module) as dropped,
        ):
            traced = unlift(torch.export.export(module, *as_arguments(_told_apart(inputs))))
    except InvalidModel as error:
        raise InvalidModel(f"{what}: {error}") from error
    except Exception as error:
        if (failure := _own_failure(module, inputs)) is not None:
            hint = _dictionary_hint(module, inputs)
            raise InvalidModel(
                f"{what} does not run on its example inputs: {hint or _reason(failure)}"
            ) from failure
        reason = _value_read(error) or _unknown_type(error) or f"{_reason(error)}; {_HINT}"
        raise InvalidModel(f"{what} cannot be captured: {reason}") from error
    dropped.refuse(what)
    graph, root, with_gradients = traced
    _inline_regions(graph, root, what)
    insert_functions(graph, root, module)
    _check_operators(graph, what)
    for node in list(graph.nodes):
        # Also of types, which autocast changes.
        if node.op == "call_function" and operator_type(node).startswith("_assert"):
            graph.erase_node(node)
    # A captured Function has no effects.
    graph.eliminate_dead_code(lambda node: node.op != "call_module" and node.is_impure())
    _replace_in_place(graph)
    _check_shapes(graph, what)
    copy_where_a_view_does_not_fit(graph)
    notes = [*dropped.notes, *map(_constant_note, with_gradients)]
    return Exported(graph_compiled_when_used(root, graph), tuple(notes))


def _constant_note(name: str) -> str:
    return (
        f"the attribute {name} requires gradients and is no parameter, so nothing trains it; make "
        "it an nn.Parameter of the module, or detach it"
    )


def _told_apart(inputs: Batch) -> Batch:
    """Copy tensors that come again: torch.export takes a tensor given twice for one input."""
    seen: set[int] = set()

    def once(value: Tensor) -> Tensor:
        again = id(value) in seen
        seen.add(id(value))
        return value.clone() if again else value

    return pytree.tree_map(once, inputs)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep torch.export's own reports off the terminal: the error that is raised has the reason."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stderr(io.StringIO()),
        ):
            # Refused with a way out, but for nn.LSTM, which keeps a list of its own weights.
            warnings.filterwarnings("ignore", "The tensor attributes? .* assigned during export")
            yield
    finally:
        logging.disable(disabled)
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _own_failure(module: nn.Module, inputs: Batch) -> Exception | None:
    """Return what a module raises by itself, if anything."""
    if any(free_unbacked_symbols(value) for value in tensors_in(inputs)):
        return None
    positional, keywords = as_arguments(pytree.tree_map_only(FakeTensor, _with_values, inputs))
    try:
        with torch.no_grad():
            module(*positional, **keywords)
    except Exception as error:
        return error
    return None


def _with_values(fake: FakeTensor) -> Tensor:
    """Return a tensor such as a loss is called with, of which only the shape and type are known."""
    make = torch.rand if fake.is_floating_point() else torch.zeros
    return make([int(size) for size in fake.shape], dtype=fake.dtype)


def _unknown_type(error: Exception) -> str | None:
    """Return what to do where a module returns a type that torch cannot take apart."""
    found = re.search(r"<class '(?:.*\.)?(\w+)'> in output, which is not a known type", str(error))
    return found and (
        f"it returns a {found[1]}, of which torch does not know what is in it; return a dict, or "
        f"call torch.export.register_dataclass({found[1]}) once if it is a dataclass "
        "(drlpp.from_huggingface calls a model of transformers so that it returns no cache)"
    )


def _dictionary_hint(module: nn.Module, inputs: Batch) -> str | None:
    """Return what to write where a forward takes a dictionary, not the keywords in it."""
    if not isinstance(inputs, Mapping):
        return None
    signature = inspect.signature(module.forward)
    try:
        signature.bind(**inputs)
    except TypeError:
        with contextlib.suppress(TypeError):
            signature.bind(inputs)
            keywords = ", ".join(inputs)
            return (
                f"a dictionary of inputs gives keyword arguments, and its forward takes no "
                f"{keywords}; for one argument that is a dictionary, put it into a tuple: "
                "({…},)"
            )
    return None


def _value_read(error: Exception) -> str | None:
    """Return what to do where Python reads the value of a tensor, as ``if`` does."""
    if not isinstance(error, GuardOnDataDependentSymNode):
        return None
    return (
        f"it decides by a tensor's value{_place(error)}, and a graph has the same operators for "
        "all values; use torch.where, or keep the number a tensor"
    )


def _reason(error: Exception) -> str:
    """Return the first line of the message, and the place in the user's code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0].rstrip(".;: ") if lines else "no reason given"
    return f"{type(error).__name__}: {reason}{_place(error)}"


def _place(error: Exception) -> str:
    """Return the place in the user's code in brackets, with a space ahead; empty if unknown."""
    ours = {Path(torch.__file__).parent, Path(contextlib.__file__), Path(__file__).parents[1]}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not ours & {path, *path.parents}:
            return f" (at {path.name}:{frame.lineno})"
    return ""


def _inline_regions(graph: fx.Graph, root: nn.Module, what: str) -> None:
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


def _replace_in_place(graph: fx.Graph) -> None:
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


def storage_owner(node: fx.Node, owners: dict[fx.Node, fx.Node]) -> fx.Node:
    """Return the node that made the storage in which the result of ``node`` may lie.

    Args:
        node: any node of a graph.
        owners: that node for every earlier node.
    """
    seen = viewed(node)
    if not seen:
        return node
    found = owners[seen[0]]
    # Results of one operator, like an LSTM's, are separate; parts of a split are not.
    return node if node.target is operator.getitem and found is seen[0] else found


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


def _check_operators(graph: fx.Graph, what: str) -> None:
    for node in graph.nodes:
        operator = node.target
        if isinstance(operator, torch._ops.OpOverload) and operator.namespace not in (
            "aten",
            "prims",
        ):
            raise InvalidModel(
                f"{what} cannot be captured: it uses the operator {operator.name()} of an "
                "extension, and workers have torch's own operators alone"
            )
        if named_arguments(node).get("sparse") is True:
            raise InvalidModel(
                f"{what} cannot be captured: {operator_type(node)} gives sparse gradients, which "
                "workers cannot add up; leave out sparse=True"
            )


def _check_shapes(graph: fx.Graph, what: str) -> None:
    for node in graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, Tensor) and any(isinstance(n, torch.SymInt) for n in value.shape):
                raise InvalidModel(
                    f"{what} cannot be captured: the shape of {node.name} depends on the values "
                    f"of the inputs; {_HINT}"
                )
