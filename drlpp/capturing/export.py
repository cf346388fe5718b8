"""From an ``nn.Module`` to an aten graph that reads its weights by name.

``torch.export`` does the tracing.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    free_unbacked_symbols,
)
from torch.utils import _pytree as pytree

from drlpp.capturing.aten import operator_type
from drlpp.capturing.data_flow import check_operators, inline_regions, replace_in_place
from drlpp.capturing.refusals import noticing_dropped
from drlpp.errors import InvalidModel
from drlpp.specs.batches import Batch, as_arguments, tensors_in
from drlpp.torch_versions import (
    copy_where_a_view_does_not_fit,
    graph_compiled_when_used,
    graphs_compiled_when_used,
)

_HINT = (
    "torch.export has to see the same operators whatever the values of the tensors are, and "
    "outputs that are tensors, tuples, lists or dicts"
)


def export_graph(
    module: nn.Module, inputs: Batch, what: str
) -> tuple[fx.GraphModule, tuple[str, ...]]:
    """Trace ``module``, and share its parameters and buffers under their dotted names.

    Returns the graph, and sentences for the user about what it leaves out without harm.

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
            graphs_compiled_when_used(),
            noticing_dropped(module) as dropped,
        ):
            program = torch.export.export(module, *as_arguments(_told_apart(inputs)))
            _forget_origins(program.graph_module)
            root = program.module(check_guards=False)
    except InvalidModel as error:
        raise InvalidModel(f"{what}: {error}") from error
    except Exception as error:
        if (failure := _own_failure(module, inputs)) is not None:
            raise InvalidModel(
                f"{what} does not run on its example inputs: {_reason(failure)}"
            ) from failure
        reason = _way_out(error) or f"{_reason(error)}; {_HINT}"
        raise InvalidModel(f"{what} cannot be captured: {reason}") from error
    if dropped.problems:
        raise InvalidModel(f"{what} cannot be captured: {dropped.problems[0]}")
    _forget_origins(root)
    graph = root.graph
    inline_regions(graph, root, what)
    for node in list(graph.nodes):
        # Also of types, which autocast changes.
        if node.op == "call_function" and operator_type(node).startswith("_assert"):
            graph.erase_node(node)
    graph.eliminate_dead_code()
    check_operators(graph, what)
    replace_in_place(graph)
    copy_where_a_view_does_not_fit(graph)
    learned = (
        f"the attribute {name} requires gradients and is no parameter, so nothing trains it; make "
        "it an nn.Parameter of the module, or detach it"
        for name, value in program.constants.items()
        if isinstance(value, Tensor) and value.requires_grad
    )
    return graph_compiled_when_used(root, graph), (*dropped.notes, *learned)


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
            # A note says it.
            warnings.filterwarnings("ignore", "A model attribute .* requires gradient")
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


def _way_out(error: Exception) -> str | None:
    """Return what to do about an error of torch.export that is known."""
    if isinstance(error, GuardOnDataDependentSymNode):
        return (
            f"it decides by a tensor's value{_place(error)}, and a graph has the same operators "
            "for all values; use torch.where, or keep the number a tensor"
        )
    found = re.search(r"<class '(?:.*\.)?(\w+)'> in output, which is not a known type", str(error))
    return found and (
        f"it returns a {found[1]}, of which torch does not know what is in it; return a dict, or "
        f"call torch.export.register_dataclass({found[1]}) once if it is a dataclass "
        "(drlpp.from_huggingface calls a model of transformers so that it returns no cache)"
    )


def _reason(error: Exception) -> str:
    """Return the first line of the message, and the place in the user's code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0].rstrip(".;: ") if lines else "no reason given"
    return f"{type(error).__name__}: {reason}{_place(error)}"


def _place(error: Exception) -> str:
    """Return the place in the user's code in brackets, with a space ahead; empty if unknown."""
    ours = {Path(torch.__file__).parent, Path(contextlib.__file__), Path(__file__).parent}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not ours & {path, *path.parents}:
            return f" (at {path.name}:{frame.lineno})"
    return ""


def _forget_origins(module: nn.Module) -> None:
    """Leave out what nobody reads of nodes: stack traces and the like are larger than a graph."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                node.meta = {
                    key: node.meta[key] for key in ("val", "nn_module_stack") if key in node.meta
                }
