"""Compiled stages: forward and backward by AOTAutograd and inductor, as with ``torch.compile``.

A stage is a graph with its weights as inputs. So it is compiled as it is, without a reading of
Python code, and for whatever version of the weights a pass is lent. Blocks that repeat
(:mod:`drlpp.runtime.stage.repeated_blocks`) are compiled once. Inductor keeps what it makes on
disk, by content: what is alike, on any worker and in any run, is compiled once.
"""

from __future__ import annotations

import operator
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from drlpp.capturing.aten import named
from drlpp.runtime.device.compiling import IN_THIS_PROCESS, without_lock_between_processes
from drlpp.runtime.stage.passes.operators import draws, passes_in, seeded, without_autocast
from drlpp.runtime.stage.passes.passes import StageValues
from drlpp.runtime.stage.repeated_blocks import content, divided
from drlpp.runtime.stage.stages import Buffer, StageOutput, StageProgram, Weight
from drlpp.schedule.method import Precision

aten = torch.ops.aten

Compiled = Callable[..., Sequence[Tensor]]
"""Takes what :func:`_inputs` returns; returns what others read and, behind that, the loss."""

CompiledStage = Callable[
    [StageValues, Sequence[Tensor]], tuple[Mapping[int, Tensor], Tensor | None]
]
"""Returns what other stages read and, on the last stage, the loss."""

_MOST_KEPT = 64
"""What a worker keeps of the stages, and blocks, that it held last."""

_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


class CannotBeCompiled(Exception):
    """A stage runs as it is; the message says why."""


_names: list[str] = []
"""Of masks of dropout, by the numbers that stand for them in graphs."""

_made = OrderedDict[tuple[object, ...], Compiled | CannotBeCompiled]()


def compiled(
    program: StageProgram,
    values: StageValues,
    targets: Sequence[Tensor],
    precision: Precision,
    *,
    recomputes: bool,
) -> CompiledStage:
    """Compile a stage, or take what this worker has made of the same one before.

    Args:
        program: the stage.
        values: tensors as in a pass; their shapes, types and devices matter, and which of them
            have gradients.
        targets: likewise.
        precision: of passes.
        recomputes: whether the backward may compute cheap results of the forward again, which
            is right where both read the same weights.

    Raises:
        CannotBeCompiled: it has operators that cannot be, or torch fails.
    """
    module, names = compilable(program, precision)
    masks = list(map(_number_of, names))
    inputs = _inputs(program, masks, values, targets)
    partition = _Partition(precision, recomputes)
    with passes_in(precision, inputs[0].device):
        make = partial(_compile, module, weights_of(program), inputs, partition)
        call = _known(module, inputs, partition, make)
    return partial(_called, program, masks, call)


def _known(
    module: fx.GraphModule,
    inputs: Sequence[Tensor],
    partition: _Partition,
    make: Callable[[], Compiled | CannotBeCompiled],
) -> Compiled:
    """Return what was made of an equal graph for equal inputs before, or make it."""
    kinds = [(one.shape, one.stride(), one.dtype, one.requires_grad) for one in inputs]
    key = content(module.graph.nodes), repr(kinds), partition.uuid()
    if key not in _made:
        _made[key] = make()
    _made.move_to_end(key)
    while len(_made) > _MOST_KEPT:
        _made.popitem(last=False)
    call = _made[key]
    if isinstance(call, CannotBeCompiled):
        raise call
    return call


def _called(
    program: StageProgram,
    masks: Sequence[Tensor],
    call: Compiled,
    values: StageValues,
    targets: Sequence[Tensor],
) -> tuple[Mapping[int, Tensor], Tensor | None]:
    found = call(*_inputs(program, masks, values, targets))
    if not torch.is_grad_enabled():
        # AOTAutograd keeps activations for a backward whether there will be one or not.
        found = [value.detach() for value in found]
    loss = None if program.loss is None else found[-1]
    return dict(zip(program.sent, found, strict=False)), loss


class _Partition(CustomPartitionerFn):
    """Divides a graph of forward and backward into the two."""

    def __init__(self, precision: Precision, recomputes: bool) -> None:
        self._uuid = f"drlpp {precision} {recomputes}"
        self._recomputes = recomputes

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **options: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        if self._recomputes:
            return min_cut_rematerialization_partition(gm, joint_inputs, **options)
        del options["compiler"]
        return default_partition(gm, joint_inputs, **options)

    def uuid(self) -> str:
        """Return what results on disk are told apart by, besides the graph."""
        return self._uuid


def _compile(
    module: fx.GraphModule,
    weights: Mapping[str, str],
    inputs: Sequence[Tensor],
    partition: _Partition,
) -> Compiled | CannotBeCompiled:
    fake = FakeTensorMode(shape_env=ShapeEnv())
    without_lock_between_processes()
    settings = IN_THIS_PROCESS | {
        "custom_partitioner_fn": partition,
        # Older versions of torch do not tell apart what was compiled for other threads.
        "cpp.threads": torch.get_num_threads(),
    }
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            inductor_config.patch(settings),
            # The backward now, not when it is run first.
            functorch_config.patch(force_non_lazy_backward_lowering=True),
        ):
            fakes = [fake.from_tensor(value, static_shapes=True) for value in inputs]
            if (parts := divided(module, weights)) is None:
                return _compiled(module, fakes, fake)
            return _Parts(parts, fake, partition).compiled(fakes)
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        return CannotBeCompiled(f"{type(error).__name__}: {said}")


def _compiled(module: fx.GraphModule, fakes: Sequence[Tensor], fake: FakeTensorMode) -> Compiled:
    with tracing(TracingContext(fake)):
        call: Any = compile_fx(module, fakes)
    return call


class _Parts(fx.Interpreter):
    """Compiles the parts of a graph one after the other, for what each is given."""

    def __init__(self, whole: fx.GraphModule, fake: FakeTensorMode, partition: _Partition) -> None:
        super().__init__(whole)
        self._fake, self._partition = fake, partition
        self._calls: dict[str, Compiled] = {}

    def compiled(self, fakes: Sequence[Tensor]) -> Compiled:
        """Return the graph that calls what was made of its parts."""
        with self._fake:
            self.run(*fakes)
        for name, call in self._calls.items():
            setattr(self.module, name, _Called(call))
        return self.module

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return a constant of the graph."""
        return self._fake.from_tensor(super().get_attr(target, args, kwargs), static_shapes=True)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Compile a part, and return what it would return."""
        part = self.module.get_submodule(target)
        assert isinstance(part, fx.GraphModule)
        given = [one.detach().requires_grad_(one.requires_grad) for one in args]
        make = partial(_compiled, part, given, self._fake)
        self._calls[target] = _known(part, given, self._partition, make)
        return part(*args)


class _Called(torch.nn.Module):
    def __init__(self, call: Compiled) -> None:
        super().__init__()
        self._call = call

    def forward(self, *given: Tensor) -> Sequence[Tensor]:
        return self._call(*given)


def _inputs(
    program: StageProgram, masks: Sequence[Tensor], values: StageValues, targets: Sequence[Tensor]
) -> list[Tensor]:
    """Return what :func:`compilable` takes, laid out as it was compiled for."""
    others = [values[one] for one in program.results if not _is_own(one, program)]
    return [
        *(
            values[one] if isinstance(one, Weight | Buffer) else values[one].contiguous()
            for one in program.arguments
        ),
        *(value.contiguous() for value in (*others, *targets)),
        *masks,
    ]


def _is_own(result: object, program: StageProgram) -> bool:
    return isinstance(result, StageOutput) and result.stage == program.stage


def weights_of(program: StageProgram) -> dict[str, str]:
    """Return which placeholders of :func:`compilable` are weights, and their names."""
    return {
        f"argument_{number}": one.name
        for number, one in enumerate(program.arguments)
        if isinstance(one, Weight)
    }


def compilable(program: StageProgram, precision: Precision) -> tuple[fx.GraphModule, list[str]]:
    """Return one graph of what inductor knows, and the names of its masks.

    It takes the arguments, what else the model returns, the targets, and a number for each mask.

    Raises:
        CannotBeCompiled: something only runs as it is.
    """
    module = _with_loss(program)
    made = [_make_compilable(node, precision) for node in list(module.graph.nodes)]
    module.recompile()
    return module, [name for name in made if name is not None]


def _with_loss(program: StageProgram) -> fx.GraphModule:
    """Return one graph of what other stages read, and of the loss.

    What the model returns, which may be the largest tensor of all, is not kept.
    """
    graph, attributes = fx.Graph(), dict[str, Any]()

    def placeholders(name: str, count: int) -> list[fx.Node]:
        return [graph.placeholder(f"{name}_{number}") for number in range(count)]

    def inlined(module: fx.GraphModule, prefix: str, inputs: Sequence[fx.Node]) -> Any:
        known = dict(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True))
        for node in module.graph.find_nodes(op="get_attr"):
            name = f"{prefix}_{node.target.replace('.', '_')}"
            attributes[name] = operator.attrgetter(node.target)(module)
            known[node] = graph.get_attr(name)
        return graph.graph_copy(module.graph, known)

    loss, results = program.loss, program.results
    of_loss = len(loss.graph.find_nodes(op="placeholder")) if loss is not None else 0
    arguments = placeholders("argument", len(program.arguments))
    others = iter(placeholders("result", sum(not _is_own(one, program) for one in results)))
    targets = placeholders("target", of_loss - len(results))
    outputs, losses = inlined(program.function, "stage", arguments), list[fx.Node]()
    if loss is not None:
        returned = [
            outputs[one.index]
            if isinstance(one, StageOutput) and one.stage == program.stage
            else next(others)
            for one in results
        ]
        losses = [inlined(loss, "loss", [*returned, *targets])]
    graph.output((*(outputs[index] for index in program.sent), *losses))
    return fx.GraphModule(attributes, graph)


def _make_compilable(node: fx.Node, precision: Precision) -> str | None:
    """Let a node call an operator alone, a random one with the same numbers as before.

    Returns:
        The name of these numbers, for which the graph takes one more input; None without.

    Raises:
        CannotBeCompiled: it only runs as it is.
    """
    arguments: list[Any] = list(node.args)
    if node.target is without_autocast and precision == "float32":
        # With a name in front of the operator it calls seeded.
        node.target = seeded if isinstance(arguments[0], str) else arguments.pop(0)
    name = None
    if node.target is seeded:
        name, node.target, *arguments = arguments
    node.args = tuple(arguments)
    targets = (node.target, *arguments[:2])
    place, called = next(
        ((place, one) for place, one in enumerate(targets) if isinstance(one, OpOverload)),
        (0, None),
    )
    if called is None:
        return None
    if called._opname in _RECURRENT:
        raise CannotBeCompiled(f"torch would unroll its recurrent layers ({called._opname})")
    given = named(called, arguments[place:], node.kwargs)
    if not draws(called, given):
        return None
    if name is not None and called is aten.dropout.default:
        mask = _mask(node, given["input"], None, given["p"])
        node.target, node.args, node.kwargs = aten.mul.Tensor, (given["input"], mask), {}
    elif name is not None and called is aten.scaled_dot_product_attention.default:
        _seed_attention(node, given)
    else:
        raise CannotBeCompiled(f"{called} draws random numbers")
    return name


def _number_of(name: str) -> Tensor:
    """Return what stands for a name in a graph: layers of a decoder are equal but for it."""
    if name not in _names:
        _names.append(name)
    return torch.tensor(_names.index(name))


@torch.library.custom_op("drlpp::dropout_mask", mutates_args=())
def _dropout_mask(of: Tensor, key: Tensor | None, p: float, name: Tensor) -> Tensor:
    """Return what dropout with the random numbers of a name multiplies values with.

    Of a tensor, or of the attention that a query pays to a key.
    """
    ones = torch.ones_like(_dropped(of, key))
    mask: Tensor = seeded(_names[int(name)], aten.dropout.default, ones, p, True)
    return mask


@_dropout_mask.register_fake
def _dropped(of: Tensor, key: Tensor | None, p: float = 0.0, name: Tensor | None = None) -> Tensor:
    return of.new_empty(of.shape if key is None else (*of.shape[:-1], key.shape[-2]))


def _seed_attention(node: fx.Node, given: dict[str, Any]) -> None:
    """Let attention with dropout compute as it does on a processor."""
    with warnings.catch_warnings(action="ignore"):
        # Torch warns once of a mask; from its function through Python, from the operator not.
        one = torch.ones(1, 1, 1, 1)
        torch._scaled_dot_product_attention_math(one, one, one, None, 0.5, False, one.bool())
    mask = _mask(node, given["query"], given["key"], given["dropout_p"])
    with node.graph.inserting_before(node):
        given["dropout_mask"] = node.graph.call_function(aten.ne.Scalar, (mask, 0))
        both = node.graph.call_function(aten._scaled_dot_product_attention_math.default, (), given)
    node.target, node.args, node.kwargs = operator.getitem, (both, 0), {}


def _mask(node: fx.Node, of: Any, key: Any, p: Any) -> fx.Node:
    graph = node.graph
    inputs = graph.find_nodes(op="placeholder")
    with graph.inserting_after(inputs[-1]):
        name = graph.placeholder(f"name_{len(inputs)}")
    with graph.inserting_before(node):
        # Masks have no gradient.
        of, key = (one and graph.call_function(aten.detach.default, (one,)) for one in (of, key))
        return graph.call_function(torch.ops.drlpp.dropout_mask.default, (of, key, p, name))
