"""What differs between the versions of torch that are supported, from 2.11 on; nothing else asks.

``make compatibility`` runs the tests with the oldest of them.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx, nn


def split_into_tuples(
    module: fx.GraphModule, root: nn.Module, part_of: Callable[[fx.Node], int]
) -> fx.GraphModule:
    """Split a graph into parts that all return tuples, also of one value.

    ``split_module`` has an option for that since torch 2.12; before, a part with one output
    returns it as it is.
    """
    from torch import fx
    from torch.fx.passes.split_module import split_module

    if "tuple_return" in inspect.signature(split_module).parameters:
        return split_module(module, root, part_of, tuple_return=True)
    whole = split_module(module, root, part_of)
    for call in whole.graph.find_nodes(op="call_module"):
        part = whole.get_submodule(str(call.target))
        assert isinstance(part, fx.GraphModule)
        output = part.graph.output_node()
        if isinstance(output.args[0], fx.Node):
            output.args = ((output.args[0],),)
            part.recompile()
            with whole.graph.inserting_after(call):
                only = whole.graph.call_function(operator.getitem, (call, 0))
            call.replace_all_uses_with(only)
            only.args = (call, 0)
    whole.recompile()
    return whole


def graphs_compiled_when_used() -> AbstractContextManager[None]:
    """Let torch's own functions make graph modules as :func:`graph_compiled_when_used` does."""
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    return _use_lazy_graph_module(True)


def graph_compiled_when_used(root: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """Make a graph module that becomes Python code when it is called or pickled.

    Others are compiled whenever they change, which takes longer than to cut a graph. The name is
    private in torch 2.11 to 2.13.
    """
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule(root, graph)


def copy_where_a_view_does_not_fit(graph: fx.Graph) -> None:
    """Let ``view`` copy where memory is laid out otherwise than ``torch.export`` assumed.

    Before, it assumes one layout of attention's output for all types. Mended by 2.13.
    """
    import torch

    if torch.__version__ >= "2.13":
        return
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default


def pipelines_take_functions() -> bool:
    """Return whether torch's pipeline runtime is the one of torch 2.13."""
    from torch.distributed.pipelining import schedules

    return hasattr(schedules._PipelineScheduleRuntime, "register_custom_function")
