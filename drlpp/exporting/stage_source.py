"""The stages of a chain as Python source: one ``nn.Module`` each, which needs torch alone."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from drlpp.capturing.capture import CapturedModel
from drlpp.exporting.bundle import support
from drlpp.exporting.chain import Link
from drlpp.runtime.stage.passes.operators import seeded, without_autocast
from drlpp.runtime.stage.stages import Argument, Buffer, ModelInput, StageOutput, Weight

_HEAD = '''"""The stages of {model}, each a module with its weights under their own names.

Written by drlpp {version} with torch {torch}, for training, in parts of {size} samples.
"""

import torch
from torch import inf, nan, nn

from . import support
'''

_CLASS = '''

class {name}(nn.Module):
    """{doc}"""

    def __init__(self) -> None:
        super().__init__()
{init}
{forward}
'''


def stages_source(links: Sequence[Link], captured: CapturedModel, version: str) -> str:
    """Return the source of ``stages.py``: a class for each stage, ``Loss``, and ``STAGES``.

    Args:
        links: all stages.
        captured: the model, for one microbatch.
        version: of drlpp.
    """
    head = _HEAD.format(
        model=captured.reference,
        version=version,
        torch=torch.__version__,
        size=captured.task.batch_size,
    )
    classes = [_stage_class(link, captured) for link in links]
    names = "".join(f"Stage{k}, " for k in range(len(links)))
    return "".join([head, *classes, _loss_class(captured), f"\n\nSTAGES = ({names.strip()})\n"])


def loss_tensors(captured: CapturedModel) -> dict[str, Tensor]:
    """Return the tensors that the loss reads, by their names in ``Loss``."""
    loss = captured.loss
    named = (*loss.named_parameters(), *loss.named_buffers())
    return {name: value.detach() for name, value in named}


def _stage_class(link: Link, captured: CapturedModel) -> str:
    program, state = link.program, captured.state
    parameters = dict(captured.module.named_parameters(remove_duplicate=False))
    init = [_owned("parameter", name, state[name], "trained=True") for name in program.weight_names]
    for name in program.buffer_names:
        if name in parameters:
            init.append(_owned("parameter", name, parameters[name], "trained=False"))
        elif name in state:
            init.append(_owned("buffer", name, state[name], "persistent=True"))
        else:
            init.append(_owned("buffer", name, captured.constants[name], "persistent=False"))
    what = "the model" if not link.arrives else f"stage {program.stage - 1}"
    return _CLASS.format(
        name=f"Stage{program.stage}",
        doc=f"Stage {program.stage}; reads what {what} gives.",
        init="".join(f"{line}\n" for line in init),
        forward=_forward(_stage_graph(link)),
    )


def _loss_class(captured: CapturedModel) -> str:
    graph = fx.Graph()
    graph.output(graph.graph_copy(captured.loss.graph, {}))
    owned = loss_tensors(captured).items()
    return _CLASS.format(
        name="Loss",
        doc="The loss of what the model returns, and the targets.",
        init="".join(_owned("buffer", n, v, "persistent=True") + "\n" for n, v in owned),
        forward=_forward(graph),
    )


def _owned(kind: str, name: str, value: Tensor, how: str) -> str:
    empty = f"torch.empty({tuple(value.shape)}, dtype={value.dtype})"
    return f"        support.add_{kind}(self, {name!r}, {empty}, {how})"


def _stage_graph(link: Link) -> fx.Graph:
    """Return the graph of a stage that takes what arrives, then inputs, and has its own weights."""
    program = link.program
    graph = fx.Graph()
    known: dict[Argument, fx.Node] = {
        value: graph.placeholder(f"arrived_{number}") for number, value in enumerate(link.arrives)
    }
    for index in program.inputs:
        known[ModelInput(index)] = graph.placeholder(f"input_{index}")
    places = program.function.graph.find_nodes(op="placeholder")
    values: dict[fx.Node, fx.Node] = {}
    for node, argument in zip(places, program.arguments, strict=True):
        if isinstance(argument, Weight | Buffer) and argument not in known:
            known[argument] = graph.create_node("get_attr", argument.name)
        values[node] = known[argument]
    outputs = graph.graph_copy(program.function.graph, values)
    assert isinstance(outputs, tuple)
    _call_the_bundles(graph)
    # torch sends tensors that are laid out in one piece only.
    contiguous = torch.ops.aten.contiguous.default
    made: dict[Argument, fx.Node] = {
        StageOutput(program.stage, index): graph.call_function(contiguous, (output,))
        for index, output in enumerate(outputs)
        if StageOutput(program.stage, index) in link.leaves
    }
    known.update(made)
    graph.output(tuple(known[value] for value in link.leaves))
    return graph


def _call_the_bundles(graph: fx.Graph) -> None:
    """Let nodes that call ours call what a bundle has."""
    for node in graph.nodes:
        if node.target is without_autocast:
            # Passes of a bundle have no autocast.
            node.target, *rest = node.args
            node.args = tuple(rest)
            if isinstance(node.target, str):
                node.args, node.target = (node.target, *rest), seeded
        if node.target is seeded:
            node.target = support.seeded


def _forward(graph: fx.Graph) -> str:
    """Return the method ``forward`` that computes ``graph``, indented."""
    code = graph.python_code("self")
    source = inspect.cleandoc(code.src)
    for name, value in code.globals.items():
        if value is support.seeded:
            source = re.sub(rf"\b{name}\b", "support.seeded", source)
    source = re.sub(r"\bdevice\(type='cpu'\)", "support.device_of(self)", source)
    return "".join(f"    {line}\n" for line in source.splitlines()).rstrip()
