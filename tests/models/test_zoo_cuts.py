"""Every model of the zoo can be cut anywhere, and trained in pieces."""

import random

import pytest
import torch
from torch import Tensor, nn

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.zoo import ZOO
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, run_reference
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.stage.data.minibatches import Minibatches
from drlpp.runtime.stage.passes.randomness import begin_pass
from drlpp.runtime.stage.stages import Argument, Buffer, ModelInput, StageOutput, Weight
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.zoo.captured_zoo import captured_in_float64, task_in_float64
from tests.support.models.zoo.tiny_models import GRAPHS, tiny
from tests.support.training.pipelines import assert_state, draw, in_a_row, train

SPEC = OptimizerSpec(name="sgd", options={"lr": 0.1, "momentum": 0.9})


def run(captured: CapturedModel, placement: Placement) -> list[Tensor]:
    """The outputs of the model when stage after stage is called with copies of what it needs."""
    state = {key: value.clone() for key, value in captured.state.items()} | captured.constants
    sent: dict[StageOutput, Tensor] = {}

    def value(argument: Argument) -> Tensor:
        match argument:
            case Weight(name) | Buffer(name):
                return state[name]
            case ModelInput(index):
                return captured.task.inputs[index]
            case StageOutput():
                return sent[argument].clone()

    begin_pass(seed=0, part=(0, 0))
    for program in cut_stages(captured, placement):
        outputs = program.function(*(value(argument) for argument in program.arguments))
        single = isinstance(outputs, Tensor)
        for index, output in enumerate([outputs] if single else outputs):
            sent[StageOutput(program.stage, index)] = output.detach()
    return [value(result) for result in program.results]


def cut_at(captured: CapturedModel, *places: int) -> Placement:
    """Contiguous stages; each place is the first operator of one."""
    stages = [sum(i >= place for place in places) for i in range(len(captured.graph))]
    return Placement.from_assignment(stages, range(len(places) + 1))


@pytest.mark.parametrize("name", GRAPHS)
def test_cut_between_all_operators_a_model_computes_the_same(name: str) -> None:
    captured = captured_in_float64(name)
    whole = run(captured, cut_at(captured))
    pieces = run(captured, cut_at(captured, *range(1, len(captured.graph))))
    torch.testing.assert_close(pieces, whole)


@pytest.mark.parametrize("name", GRAPHS)
def test_stages_send_what_the_graph_says(name: str) -> None:
    captured = captured_in_float64(name)
    graph = captured.graph
    place = random.Random(name).randrange(1, len(graph))
    placement = cut_at(captured, place)
    crossing = {
        (edge.source, output)
        for edge in graph.edges
        if edge.source < place <= edge.target
        for output in edge.outputs
    } | {(source, output) for source, output in graph.outputs if source < place}
    first, _ = cut_stages(captured, placement)
    sent = sorted(spec.bytes_ for _, spec in first.sends[1])
    assert sent == sorted(graph.operators[i].outputs[j].bytes_ for i, j in crossing)


@pytest.mark.parametrize("name", GRAPHS)
def test_two_minibatches_in_stages_equal_a_plain_loop(name: str) -> None:
    task = task_in_float64(name)
    assert task.loss is not None
    assert task.targets is not None
    # A plain loop draws other random numbers.
    for module in task.module.modules():
        for attribute in ("p", "dropout"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.0)
    normalised = any(isinstance(module, nn.BatchNorm2d) for module in task.module.modules())
    # The captures that tests share are checked.
    captured = capture(tiny(name), task, check=False)
    placement = cut_at(
        captured, *sorted(random.Random(name).sample(range(1, len(captured.graph)), 3))
    )
    method = Method(schedule="gpipe", policy="sync", microbatches=1 if normalised else 2)
    order = torch.stack([torch.arange(task.batch_size), torch.arange(task.batch_size).flip(0)])
    minibatches = Minibatches(task.inputs, task.targets, order)
    result = run_reference(captured, placement, minibatches, 2, method=method, optimizer=SPEC)

    optimizer = torch.optim.SGD(task.module.parameters(), lr=0.1, momentum=0.9)
    train(task.module, task.loss, optimizer, draw(task.inputs, task.targets, order))
    assert_state(result.state, task.module, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("gnmt4", "awd_lm") else pytest.param(name, marks=pytest.mark.slow)
        for name in ZOO
    ],
)
def test_two_minibatches_on_workers_equal_the_reference(name: str) -> None:
    captured = captured_in_float64(name)
    task, placement = captured.task, in_a_row(captured.graph, 0, 1)
    assert task.targets is not None
    # Dropout included: random numbers do not depend on who draws them.
    minibatches = Minibatches(task.inputs, task.targets)
    method = Method(schedule="1f1b", policy="stash")
    wanted = run_reference(captured, placement, minibatches, 2, method=method, optimizer=SPEC)
    with ClusterSession(captured, workers=2) as session:
        session.use_samples(task.inputs, task.targets)
        deployment = session.deploy(placement, method, SPEC)
        session.run(deployment, 2)
        state, _ = session.collect(deployment)
    assert state.keys() == wanted.state.keys()
    for key, value in wanted.state.items():
        torch.testing.assert_close(state[key], value, rtol=1e-7, atol=1e-9, msg=key)
