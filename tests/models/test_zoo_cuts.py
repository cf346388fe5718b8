"""Every model of the zoo can be cut anywhere, and trained in pieces."""

import pytest
import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, run_reference
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.stage.data.minibatches import Minibatches
from drlpp.runtime.stage.passes.randomness import begin_pass
from drlpp.runtime.stage.stages import Argument, Buffer, ModelInput, StageOutput, Weight
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.zoo.captured_zoo import captured_in_float64
from tests.support.models.zoo.tiny_models import GRAPHS
from tests.support.training.pipelines import in_a_row

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


@pytest.mark.parametrize("name", ["gnmt4", "awd_lm"])
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
