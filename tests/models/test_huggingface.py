"""Models of transformers by import path, as examples/huggingface.py has them."""

import pytest
import torch

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.pipelines import assert_state, draw, in_a_row, train

SPEC = OptimizerSpec(name="sgd", options={"lr": 0.1, "momentum": 0.9})
MODELS = ["bert", "gpt2", "t5", "resnet"]


@pytest.mark.parametrize("name", MODELS)
def test_two_minibatches_in_two_stages_equal_a_plain_loop(name: str) -> None:
    reference = ModelReference.named(f"examples.huggingface:{name}")
    task = reference.build()
    inputs = {k: x.double() if x.is_floating_point() else x for k, x in task.inputs.items()}
    task = task._replace(module=task.module.double(), inputs=inputs)
    # A plain loop draws other random numbers.
    for module in task.module.modules():
        for attribute in ("p", "dropout", "attention_dropout"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.0)
    captured = capture(reference, task)
    task = captured.task
    assert task.loss is not None
    assert len(captured.graph) > 50
    assert captured.aliases == {}
    order = torch.stack([torch.arange(8), torch.arange(8).flip(0)])
    with ClusterSession(captured, workers=2) as session:
        session.use_samples(task.inputs, task.targets)
        placement = in_a_row(captured.graph, 0, 1)
        deployment = session.deploy(placement, Method(schedule="gpipe", policy="sync"), SPEC)
        session.run(deployment, 2, RunOptions(order=order))
        state, _ = session.collect(deployment)

    optimizer = torch.optim.SGD(task.module.parameters(), lr=0.1, momentum=0.9)
    train(task.module, task.loss, optimizer, draw(task.inputs, task.targets, order))
    assert_state(state, task.module, rtol=1e-7, atol=1e-9)

    evaluated = captured.evaluation(**task.inputs)
    torch.testing.assert_close(evaluated, task.module.eval()(**task.inputs))
