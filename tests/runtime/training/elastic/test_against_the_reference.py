"""Weights of a training that loses a host and finds it again, against the reference executor."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drlpp import Elastic, Task
from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import Minibatches, ReferenceExecutor, RunOptions
from drlpp.runtime.training.data.given_data import SamplesInMemory
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.losable_hosts import LosableHosts
from tests.support.models.counting import BATCH_SIZE, SAMPLES, every_sample
from tests.support.models.forked import largest_difference
from tests.support.training.elastic_trainings import (
    EPOCHS,
    IN_A_ROW,
    fit,
)
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of
from tests.support.training.strikes import Strikes, changes_in


def _order(epoch: int) -> Any:
    """The samples of an epoch as they are drawn from memory."""
    return SamplesInMemory(None, every_sample(), BATCH_SIZE, 0).training(epoch, 0, 0).order


ORACLE = {
    "flushed": (Method(schedule="1f1b-flush", policy="sync", microbatches=1), 1e-12),
    "pipeoptim": (Method(policy="pipeoptim"), 1e-9),
}


def perceptron() -> Task:
    generator = torch.Generator().manual_seed(5)
    layers = [layer for _ in range(4) for layer in (nn.Linear(12, 12), nn.Tanh())]
    module = nn.Sequential(nn.Linear(SAMPLES, 12), *layers, nn.Linear(12, 1)).double()
    targets = torch.randn(BATCH_SIZE, generator=generator, dtype=torch.float64)
    inputs = torch.zeros(BATCH_SIZE, SAMPLES, dtype=torch.float64)
    return Task(
        module, (inputs,), targets, lambda out, wanted: (out[:, 0] - wanted).square().mean()
    )


@pytest.mark.system
@pytest.mark.parametrize("method", ORACLE)
def test_weights_are_those_of_a_reference_that_changes_its_placement(
    tmp_path: Path, method: str
) -> None:
    """Down to two hosts' worth of workers and up again, at the minibatches that the file names."""
    captured = capture(ModelReference.of(perceptron))
    chosen, tolerance = ORACLE[method]
    momentum = OptimizerSpec(name="sgd", options={"lr": 0.02, "momentum": 0.8})
    hosts = LosableHosts([2, 2])
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].lose(), lambda: hosts.hosts[1].return_())
    found = fit(captured, hosts, strikes, tmp_path, method=chosen, optimizer=momentum).state_dict
    whole = in_a_row(captured.graph, *IN_A_ROW)
    document = file_of(captured, whole, chosen, momentum)
    half = Elastic(1, 4).planner(document, captured.graph, None).plan([0, 1], 4).placement
    lost, returned = changes_in(tmp_path)
    assert (lost.configuration, returned.configuration) == ("1-1", "1-1-1-1")
    places = [(change.epochs * 100 + change.minibatches) for change in (lost, returned)]

    data = every_sample().train
    executor = ReferenceExecutor(
        captured, whole, Minibatches(data.inputs, (data.targets,)), chosen, momentum
    )
    done = 0
    ends = sorted({*places, *(100 * epoch for epoch in range(1, EPOCHS + 1))})
    for end in ends:
        epoch, first = divmod(done, 100)
        order = _order(epoch + 1)[first:]
        executor.run(end - done, RunOptions(order=order, first_minibatch=done))
        done = end
        if done in places:
            executor = executor.moved_to(half if done == places[0] else whole)
    assert largest_difference(found, executor.state()) < tolerance
