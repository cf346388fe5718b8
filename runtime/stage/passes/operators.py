"""Operators that are not called as they stand: those that draw random numbers, or need float32.

Every random operator seeds the generator itself, from the seed of the training, the minibatch and
its own name. So a synchronous method gives the same weights whatever the placement, a forward
pass and its recomputation see the same random numbers, and a resumed training continues with those
that it would have had. Processors and kinds of GPUs draw different numbers from the same seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils import _pytree as pytree

from drlpp.capturing.aten import EXEMPT_FROM_AUTOCAST, named_arguments
from drlpp.runtime.device.devices import CPU, device_among, seed_generator
from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.method import Precision
from drlpp.torch_versions import graph_compiled_when_used

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default

_pass_key = ""


def begin_pass(seed: int, part: MicrobatchId) -> None:
    """Say which minibatch and microbatch the random operators that follow belong to."""
    global _pass_key
    _pass_key = f"{seed} {part}"


def seeded(name: str, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a random operator with the random numbers of ``name`` in this pass."""
    values = pytree.tree_leaves((args, kwargs))
    if has_torch_function(values):
        # A graph is traced anew where it is loaded: this call has to stay in it.
        return handle_torch_function(seeded, values, name, operator, *args, **kwargs)
    digest = hashlib.blake2b(f"{_pass_key} {name}".encode(), digest_size=7).digest()
    # That of one device alone: torch.manual_seed notes a stack trace for other devices.
    seed_generator(device_among(values), int.from_bytes(digest, "big"))
    if operator is not _ATTENTION:
        # Numbers are drawn in the order of memory, which is another one for a transposed tensor
        # than for what arrives of it in another stage. Attention draws for what it computes.
        args, kwargs = pytree.tree_map_only(Tensor, Tensor.contiguous, (args, kwargs))
    return operator(*args, **kwargs)


def draws(operator: object, arguments: Mapping[str, Any]) -> bool:
    """Return whether an operator draws random numbers: not one whose dropout drops nothing."""
    if not isinstance(operator, OpOverload) or (
        torch.Tag.nondeterministic_seeded not in operator.tags
    ):
        return False
    known = {argument.name: argument.default_value for argument in operator._schema.arguments}
    known |= arguments
    drops = [known[name] for name in ("p", "dropout", "dropout_p", "train") if name in known]
    return all(drops)


def with_seeded_operators(module: fx.GraphModule) -> fx.GraphModule:
    """Return the same graph, but every random operator calls :func:`seeded`, named by its node.

    To be called for the whole model: a part of it has names of its own.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    graph.set_codegen(module.graph._codegen)
    for node in graph.nodes:
        if draws(node.target, named_arguments(node)):
            node.args = (node.name, node.target, *node.args)
            node.target = seeded
    return graph_compiled_when_used(module, graph)


def passes_in(precision: Precision, device: torch.device = CPU) -> torch.autocast:
    """Run the operators inside in this precision."""
    reduced = torch.float16 if precision == "float16" else torch.bfloat16
    return torch.autocast(device.type, reduced, enabled=precision != "float32")


def without_autocast(*call: Any, **kwargs: Any) -> Any:
    """Call an operator in the types of its arguments.

    Args:
        call: the operator and its arguments; before it the name that :func:`seeded` takes, if it
            draws random numbers.
        kwargs: further arguments.
    """
    values = pytree.tree_leaves((call, kwargs))
    if has_torch_function(values):
        # A graph is traced anew where it is loaded: this call has to stay in it.
        return handle_torch_function(without_autocast, values, *call, **kwargs)
    first, *rest = call
    with torch.autocast(device_among(values).type, enabled=False):
        return seeded(*call, **kwargs) if isinstance(first, str) else first(*rest, **kwargs)


def exempt_operators(module: fx.GraphModule) -> None:
    """Let operators of ``autocast(enabled=False)`` regions go through :func:`without_autocast`."""
    for node in module.graph.nodes:
        if not node.meta.get(EXEMPT_FROM_AUTOCAST):
            continue
        if isinstance(node.target, OpOverload):
            node.args = (node.target, *node.args)
            node.target = without_autocast
        elif node.target is seeded:
            node.target = without_autocast
    module.recompile()
