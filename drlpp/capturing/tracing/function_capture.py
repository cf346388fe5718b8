"""Capturing calls of a user's ``torch.autograd.Function``, of which torch.export sees the forward.

While a model is exported, :func:`recorded_functions` puts one opaque node into the graph for every
call; :func:`insert_functions` then traces the Function, forward and backward, and replaces these
nodes by calls of a :class:`~drlpp.capturing.tracing.autograd_functions.CapturedFunction`::

    exported      linear ─ autograd_function(0, […]) ─ getitem ─ relu
    in the end    linear ─ autograd_functions.RoundSTE.0 ─ relu
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.autograd.function import FunctionCtx
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    make_fx,
)
from torch.utils import _pytree as pytree

from drlpp.capturing.tracing.autograd_functions import CapturedFunction
from drlpp.capturing.tracing.dropped import replaced
from drlpp.capturing.tracing.unlifting import hold
from drlpp.errors import InvalidModel

Function = type[torch.autograd.Function]

_FOLDER = "autograd_functions"
"""Where a graph module keeps captured Functions: ``autograd_functions.CLASS.NUMBER``."""

_WAY_OUT = (
    "workers compute a Function from what torch operators make of its tensor arguments; write it "
    "so, or give the gradient by detach(): x + (f(x) - x).detach() has the values of f and the "
    "gradient of x"
)

_library = torch.library.Library("drlpp", "FRAGMENT")
_library.define("autograd_function(int call, Tensor[] arguments) -> Tensor[]")


@dataclass(frozen=True)
class _Layout:
    """A tensor without its values."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> _Layout:
        return cls(
            tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad
        )

    def empty(self) -> Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class _Call:
    """A call: the Function, its arguments with tensors as layouts, and what it returned."""

    function: Function
    arguments: tuple[Any, ...]
    results: tuple[_Layout, ...]
    returns_tuple: bool


class _CannotKeepError(Exception):
    """Why the backward of a Function cannot be kept."""


_calls: dict[int, _Call] = {}
_numbers = itertools.count()


@torch.library.register_fake("drlpp::autograd_function", lib=_library)
def _opaque(call: int, arguments: list[Tensor]) -> list[Tensor]:
    return [result.empty() for result in _calls[call].results]


@contextmanager
def recorded_functions() -> Iterator[None]:
    """Record calls of Functions that are not torch's own, while a model is exported.

    They are recognised by their ``forward``: ``apply`` is often bound to another name long before.
    """
    _calls.clear()
    with ExitStack() as stack:
        # All are known before any is replaced: one may inherit another's.
        recording = [(f, staticmethod(_recording(f))) for f in _defined(torch.autograd.Function)]
        for function, forward in recording:
            stack.enter_context(replaced(function, "forward", forward))
        yield


def _defined(base: Function) -> Iterator[Function]:
    for function in base.__subclasses__():
        if not function.__module__.startswith(("torch.", "drlpp.")):
            yield function
        yield from _defined(function)


def _recording(function: Function) -> Callable[..., Any]:
    original = function.forward

    @functools.wraps(original)
    def forward(*arguments: Any) -> Any:
        given = arguments if _sets_up_context(function) else arguments[1:]
        tensors = [value for value in given if isinstance(value, Tensor)]
        known = tuple(_Layout.of(v) if isinstance(v, Tensor) else v for v in given)
        versions = [tensor._version for tensor in tensors]
        with disable_proxy_modes_tracing():
            results = original(*arguments)
        if [tensor._version for tensor in tensors] != versions:
            raise _refused(function, "it changes an argument in place")
        returns_tuple = isinstance(results, tuple | list)
        outputs = tuple(results) if returns_tuple else (results,)
        if not all(isinstance(output, Tensor) for output in outputs):
            raise _refused(function, "it returns something that is no tensor")
        if any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(known)):
            raise _refused(function, "it takes tensors inside of another argument")
        # torch remembers what the fake of an operator returned: no number comes twice.
        number = next(_numbers)
        _calls[number] = _Call(function, known, tuple(map(_Layout.of, outputs)), returns_tuple)
        opaque = torch.ops.drlpp.autograd_function(number, tensors)
        return tuple(opaque) if returns_tuple else opaque[0]

    return forward


def _sets_up_context(function: Function) -> bool:
    return function.setup_context is not torch.autograd.Function.setup_context


def _refused(function: Function, reason: str) -> InvalidModel:
    try:
        place = f"{Path(inspect.getfile(function)).name}:{inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError):
        place = function.__module__
    return InvalidModel(
        f"the torch.autograd.Function {function.__name__} ({place}) cannot be captured with its "
        f"own backward: {reason}; {_WAY_OUT}"
    )


def insert_functions(graph: fx.Graph, root: nn.Module, model: nn.Module) -> None:
    """Replace the nodes of recorded calls by calls of captured Functions, in place.

    Args:
        graph: as torch.export gives it.
        root: is to hold the captured Functions.
        model: that was exported; a Function may not read its weights but as arguments.

    Raises:
        InvalidModel: a Function cannot be kept; it names the class and its place.
    """
    tensors_of_model = (*model.parameters(), *model.buffers())
    owned = {tensor.untyped_storage().data_ptr() for tensor in tensors_of_model} - {0}
    counts: dict[str, int] = {}
    for node in graph.find_nodes(
        op="call_function", target=torch.ops.drlpp.autograd_function.default
    ):
        number, tensors = node.args
        call = _calls.pop(number)
        try:
            captured = _trace(call, owned)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            reason = "what it computes depends on the values of a tensor"
            raise _refused(call.function, reason) from error
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise _refused(call.function, lines[0]) from error
        name = call.function.__name__
        counts[name] = counts.get(name, -1) + 1
        target = f"{_FOLDER}.{name}.{counts[name]}"
        hold(root, target, captured)
        with graph.inserting_before(node):
            inserted = graph.call_module(target, tuple(tensors))
        inserted.meta = dict(node.meta)
        if call.returns_tuple:
            node.replace_all_uses_with(inserted)
        else:
            inserted.meta["val"] = node.meta["val"][0]
            for reader in list(node.users):
                reader.replace_all_uses_with(inserted)
                graph.erase_node(reader)
        graph.erase_node(node)


class _Context(FunctionCtx):
    """What a Function knows between its forward and its backward."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.to_save: tuple[Tensor, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        return self.to_save


def _trace(call: _Call, owned: set[int]) -> CapturedFunction:
    """Trace the forward of a call and then its backward, and return both graphs."""
    function = call.function
    layouts = [value for value in call.arguments if isinstance(value, _Layout)]
    context = _Context(tuple(isinstance(v, _Layout) and v.requires_grad for v in call.arguments))
    of_forward: set[str] = set()
    not_differentiable: set[int] = set()

    def both(*values: Tensor) -> list[Tensor | None]:
        tensors = iter(values[: len(layouts)])
        given = [next(tensors) if isinstance(v, _Layout) else v for v in call.arguments]
        if _sets_up_context(function):
            results = function.forward(*given)
            function.setup_context(context, tuple(given), results)
        else:
            results = function.forward(context, *given)
        outputs = tuple(results) if call.returns_tuple else (results,)
        not_differentiable.update(
            i for i, o in enumerate(outputs) if any(o is n for n in context.non_differentiable)
        )
        # A result that shares memory with an argument would be another view of it.
        given_memory = {value.untyped_storage()._cdata for value in values}
        outputs = tuple(
            output.clone() if output.untyped_storage()._cdata in given_memory else output
            for output in outputs
        )
        mode = get_proxy_mode()
        assert mode is not None
        of_forward.update(node.name for node in mode.tracer.graph.nodes)
        gradients = function.backward(context, *values[len(layouts) :])
        gradients = gradients if isinstance(gradients, tuple | list) else (gradients,)
        if len(gradients) < len(call.arguments):
            raise _CannotKeepError(
                f"its backward returns {len(gradients)} gradients for {len(call.arguments)} "
                "arguments"
            )
        of_tensors = [
            gradient
            for gradient, value in zip(gradients, call.arguments, strict=False)
            if isinstance(value, _Layout)
        ]
        return [*outputs, *of_tensors]

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        arguments = [layout.empty() for layout in layouts]
        gradients = [
            torch.empty(result.shape, dtype=result.dtype, device=result.device)
            for result in call.results
        ]
        traced = make_fx(both)(*arguments, *gradients)
    _check(traced, owned)
    compute, differentiate = _split(traced, len(layouts), len(call.results), of_forward)
    return CapturedFunction(
        compute=compute,
        differentiate=differentiate,
        strides=[layout.strides for layout in layouts],
        outputs=len(call.results),
        not_differentiable=frozenset(not_differentiable),
        returns_tuple=call.returns_tuple,
    )


def _check(traced: fx.GraphModule, owned: set[int]) -> None:
    for node in traced.graph.nodes:
        target = node.target
        if node.op == "get_attr":
            value = operator.attrgetter(str(target))(traced)
            if not isinstance(value, Tensor):
                raise _CannotKeepError("it uses control flow of torch")
            if value.untyped_storage().data_ptr() in owned:
                raise _CannotKeepError("it reads a weight of the model that is no argument of it")
        elif isinstance(target, torch._ops.OpOverload):
            if torch.Tag.nondeterministic_seeded in target.tags:
                raise _CannotKeepError("it draws random numbers")
            if target.namespace not in ("aten", "prims"):
                raise _CannotKeepError(f"it uses the operator {target.name()}")


def _split(
    traced: fx.GraphModule, arguments: int, outputs: int, of_forward: set[str]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the nodes of the forward and those of the backward, as graphs of their own.

    Args:
        traced: from tensor arguments and gradients of outputs to outputs and gradients.
        arguments: number of tensor arguments.
        outputs: number of outputs.
        of_forward: names of the nodes of the forward, placeholders included.
    """
    placeholders = traced.graph.find_nodes(op="placeholder")
    given, of_outputs = placeholders[:arguments], placeholders[arguments:]
    (returned,) = traced.graph.output_node().args
    assert isinstance(returned, list | tuple)
    nodes = cast("list[fx.Node | None]", list(returned))
    results, gradients = nodes[:outputs], nodes[outputs:]
    inner = [node for node in traced.graph.nodes if node.op not in ("placeholder", "output")]
    first = [node for node in inner if node.name in of_forward]
    second = [node for node in inner if node.name not in of_forward]
    read = {source for node in second for source in node.all_input_nodes} | set(gradients)
    constants = [node for node in first if node.op == "get_attr" and node in read]
    kept = [node for node in (*given, *first) if node in read and node not in constants]
    return (
        _part(traced, given, first, [*results, *kept]),
        _part(traced, [*kept, *of_outputs], [*constants, *second], gradients),
    )


def _part(
    traced: fx.GraphModule,
    given: Sequence[fx.Node],
    nodes: Sequence[fx.Node],
    results: Sequence[fx.Node | None],
) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node | None, fx.Node | None] = {None: None}
    for node in given:
        copies[node] = graph.placeholder(node.name)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[result] for result in results))
    graph.eliminate_dead_code()
    return fx.GraphModule(traced, graph)
