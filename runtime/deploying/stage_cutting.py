"""Cutting a captured model into stages.

torch's ``split_module`` leaves parameters outside the parts that it makes and hands them in as
arguments, so that a stage has no weights of its own.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torch import fx, nn
from torch.utils import _pytree as pytree

from drlpp.capturing.aten import storage_owner, written
from drlpp.capturing.capture import CapturedModel
from drlpp.capturing.graph import TensorSpec
from drlpp.placement.placement import Placement
from drlpp.runtime.stage.graph_code import Retracer
from drlpp.runtime.stage.passes.operators import exempt_operators, with_seeded_operators
from drlpp.runtime.stage.stages import (
    Argument,
    Buffer,
    ModelInput,
    StageOutput,
    StageProgram,
    Weight,
)
from drlpp.torch_versions import (
    graph_compiled_when_used,
    graphs_compiled_when_used,
    split_into_tuples,
)


def cut_stages(
    captured: CapturedModel, placement: Placement, *, evaluation: bool = False
) -> tuple[StageProgram, ...]:
    """Cut a model at the stages of a placement; its graph that evaluates has the score as well."""
    module = with_seeded_operators(captured.evaluation if evaluation else captured.module)
    score = portable(captured.score) if evaluation and captured.score else None
    stage_of = placement.stage_of_operator(len(captured.graph))
    with graphs_compiled_when_used():
        whole = split_into_tuples(
            module, module, lambda node: stage_of[captured.operator_of[node.name]]
        )
    # One call of a part for each stage is all that the outer graph computes.
    calls = {
        int(node.target.removeprefix("submod_")): node
        for node in whole.graph.find_nodes(op="call_module")
    }
    values = _name_values(whole, module, calls)
    inputs = {k: [values[node] for node in call.args] for k, call in calls.items()}
    last = len(placement.stages) - 1
    results = tuple(
        values[leaf]
        for leaf in pytree.tree_leaves(whole.graph.output_node().args[0])
        if isinstance(leaf, fx.Node)
    )
    parts = {k: portable(whole.get_submodule(str(call.target))) for k, call in calls.items()}
    for part in parts.values():
        exempt_operators(part)
    # Of every pair of stages the outputs that travel, each once, in the order of their use.
    travelling: dict[tuple[int, int], dict[int, TensorSpec]] = {}
    for target, arguments in [*inputs.items(), (last, results)]:
        for value in arguments:
            if isinstance(value, StageOutput) and value.stage != target:
                specs = travelling.setdefault((value.stage, target), {})
                specs[value.index] = _output_spec(parts[value.stage], value.index)
    placeholders = _specs_of_inputs(whole)
    targets = tuple(_specs_of_inputs(captured.loss)[len(results) :])
    ties = [
        (stages, {one.name: TensorSpec.of(module.get_parameter(one.name)) for one in shared})
        for stages, shared in placement.ties(captured.graph).items()
    ]
    programs = tuple(
        StageProgram(
            stage=k,
            function=parts[k],
            arguments=tuple(inputs[k]),
            sends={to: tuple(s.items()) for (source, to), s in travelling.items() if source == k},
            receives={
                of: tuple(s.items()) for (of, target), s in travelling.items() if target == k
            },
            results=results if k == last else (),
            inputs=_inputs_among((*inputs[k], *(results if k == last else ())), placeholders),
            targets=targets if k == last else (),
            ties={number: specs for number, (stages, specs) in enumerate(ties) if k in stages},
            loss=portable(captured.loss) if k == last else None,
            score=score if k == last else None,
        )
        for k in range(len(placement.stages))
    )
    holders = Counter(name for program in programs for name in program.weight_names)
    tied = {name for _, specs in ties for name in specs}
    # A copy that nobody ties would be trained apart.
    assert all(count == 1 or name in tied for name, count in holders.items())
    return programs


def portable(module: nn.Module) -> fx.GraphModule:
    """Return the same graph in a module that can be pickled; only aten operators travel with it."""
    assert isinstance(module, fx.GraphModule)
    module.graph._tracer_cls = Retracer
    return graph_compiled_when_used(module, module.graph)


def _name_values(
    whole: fx.GraphModule, module: fx.GraphModule, calls: Mapping[int, fx.Node]
) -> dict[fx.Node, Argument]:
    """Return what every node of the outer graph stands for."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    trained = {name for name, value in parameters.items() if value.requires_grad}
    owners, changed = dict[fx.Node, fx.Node](), set[object]()
    for node in module.graph.nodes:
        owners[node] = storage_owner(node, owners)
        changed.update(owners[one].target for one in written(node))
    placeholders = whole.graph.find_nodes(op="placeholder")
    values: dict[fx.Node, Argument] = {
        node: ModelInput(index) for index, node in enumerate(placeholders)
    }
    for node in whole.graph.find_nodes(op="get_attr"):
        name = node.target
        values[node] = Weight(name) if name in trained else Buffer(name, name in changed)
    stage_of = {call: stage for stage, call in calls.items()}
    for node in whole.graph.find_nodes(op="call_function", target=operator.getitem):
        call, index = node.args
        values[node] = StageOutput(stage_of[call], index)
    return values


def _specs_of_inputs(module: fx.GraphModule) -> list[TensorSpec]:
    placeholders = module.graph.find_nodes(op="placeholder")
    return [TensorSpec.of(placeholder.meta["val"]) for placeholder in placeholders]


def _inputs_among(values: Iterable[Argument], specs: Sequence[TensorSpec]) -> dict[int, TensorSpec]:
    """Return the inputs of the model that ``values`` has."""
    indices = sorted({value.index for value in values if isinstance(value, ModelInput)})
    return {index: specs[index] for index in indices}


def _output_spec(part: fx.GraphModule, index: int) -> TensorSpec:
    """Return shape and type of output ``index`` of a part that returns a tuple."""
    outputs = part.graph.output_node().args[0]
    assert isinstance(outputs, tuple)
    output = outputs[index]
    assert isinstance(output, fx.Node)
    return TensorSpec.of(output.meta["val"])
