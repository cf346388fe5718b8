"""Models of transformers by import path, as examples/huggingface.py has them."""

import pytest
import torch

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.in_turns import fast_are, in_turns
from tests.support.training.pipelines import assert_state, draw, in_a_row, train

SPEC = OptimizerSpec(name="sgd", options={"lr": 0.1, "momentum": 0.9})
MODELS = ["bert", "gpt2", "t5", "resnet"]
TIED = ["bert", "gpt2", "t5"]


def in_float64(task: Task) -> Task:
    """Return a task without dropout, since a plain loop draws other numbers, and in 64 bits."""
    for module in task.module.modules():
        for name in ("p", "dropout", "attention_dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    inputs = torch.utils._pytree.tree_map(
        lambda value: value.double() if value.is_floating_point() else value, task.inputs
    )
    return task._replace(module=task.module.double(), inputs=inputs)


def check_against_plain_training(captured: CapturedModel, *accelerators: int) -> None:
    task = captured.task
    assert task.loss is not None
    assert task.targets is not None
    order = torch.stack([torch.arange(8), torch.arange(8).flip(0)])
    with ClusterSession(captured, workers=len(accelerators)) as session:
        session.use_samples(task.inputs, task.targets)
        placement = in_a_row(captured.graph, *accelerators)
        deployment = session.deploy(placement, Method(schedule="gpipe", policy="sync"), SPEC)
        session.run(deployment, 2, RunOptions(order=order))
        state, _ = session.collect(deployment)

    optimizer = torch.optim.SGD(task.module.parameters(), lr=0.1, momentum=0.9)
    train(task.module, task.loss, optimizer, draw(task.inputs, task.targets, order))
    assert_state(state, task.module, rtol=1e-7, atol=1e-9)

    evaluated = captured.evaluation(**task.inputs)
    torch.testing.assert_close(evaluated, task.module.eval()(**task.inputs))


@pytest.mark.parametrize("name", fast_are(["gpt2", "resnet"], MODELS))
def test_two_minibatches_in_two_stages_equal_a_plain_loop(name: str) -> None:
    reference = ModelReference.named(f"examples.huggingface:{name}")
    captured = capture(reference, in_float64(reference.build()))
    assert len(captured.graph) > 50
    assert captured.aliases == {}
    check_against_plain_training(captured, 0, 1)


@pytest.mark.parametrize(("name", "stages"), in_turns(TIED, [2, 4], slow=["bert"]))
def test_tied_embeddings_in_stages_equal_a_plain_loop(name: str, stages: int) -> None:
    reference = ModelReference.named(f"examples.huggingface:{name}", tied=True)
    captured = capture(reference, in_float64(reference.build()))
    assert captured.aliases
    assert in_a_row(captured.graph, *range(stages)).ties(captured.graph)
    check_against_plain_training(captured, *range(stages))
