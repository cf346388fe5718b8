"""Training in one loop, against the reference executor."""

import pytest
import torch

from benchmarks.deep_models import even_stages
from benchmarks.learning.averaged import Averaged, Averaging
from benchmarks.learning.replay import Replay
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import Minibatches, RunOptions, run_reference
from drlpp.runtime.reference.reference import ReferenceExecutor
from drlpp.schedule.method import Method
from drlpp.specs.data import Samples
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.forked import POLICIES, largest_difference, order, placements, samples

MINIBATCHES = 14
SGD = OptimizerSpec.parse("sgd", lr=0.05, weight_decay=0.01)
ADAMW = OptimizerSpec.parse("adamw", lr=0.01, eps=1e-4)
NADAM = OptimizerSpec.parse("nadam", lr=0.01, eps=1e-4, decoupled_weight_decay=True)
REPLAYED = [
    *((method, SGD) for method in POLICIES.values()),
    *(
        (method.model_copy(update={"microbatches": 4, "accumulate": 2}), ADAMW)
        for method in POLICIES.values()
    ),
    (Method(policy="pipemare", annealing_minibatches=9, correction_decay=0.2), SGD),
    (Method(policy="stash", clip_norm=0.5), NADAM),
    (Method(policy="pipeoptim", accumulate=3, in_flight_per_link=1), ADAMW),
]


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked", dropout=0.0))


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        pytest.param(*replayed, marks=pytest.mark.slow if number % 7 else ())
        for number, replayed in enumerate(REPLAYED)
    ],
    ids=str,
)
def test_replay_is_the_reference_executor(
    captured: CapturedModel, method: Method, optimizer: OptimizerSpec
) -> None:
    placement = placements(captured)["straight"]
    rates = [0.02 * (1 + minibatch % 3) for minibatch in range(MINIBATCHES)]
    minibatches = Minibatches(*samples(), order(MINIBATCHES))
    wanted = run_reference(
        captured,
        placement,
        minibatches,
        MINIBATCHES,
        method=method,
        optimizer=optimizer,
        options=RunOptions(rates=rates),
    )
    replay = Replay(captured, placement, method, optimizer, minibatches, rates)
    losses = list(replay.run())
    found = {**wanted.state, **replay.weights}
    assert largest_difference(found, wanted.state) < 1e-9
    assert largest_difference(found, captured.state) > 1e-3
    parts = method.microbatches
    per_part = list(wanted.losses.values())
    means = [sum(per_part[k : k + parts]) / parts for k in range(0, len(per_part), parts)]
    assert losses == pytest.approx(means, rel=1e-9)
    assert len(losses) == MINIBATCHES


@pytest.mark.parametrize(("outer", "factor"), [(False, 1.0), (True, 0.7 * 1.9)])
def test_an_average_after_each_update_is_plain_sgd(outer: bool, factor: float) -> None:
    """A first step of Nesterov's momentum 0.9 at rate 0.7 goes 0.7 · 1.9 times as far."""
    captured = capture(ModelReference.named("tests.support.models.small:perceptron"))
    inputs, targets = captured.task.inputs, captured.task.targets
    minibatches = Minibatches(inputs, targets, torch.randperm(8).view(1, 8))
    sgd, placement = OptimizerSpec.parse("sgd", lr=0.05), even_stages(captured.graph, 1)
    averaged = Averaged(captured, 2, Averaging(1, outer), Method(), sgd, minibatches)
    replay = Replay(captured, placement, Method(), sgd, minibatches, [0.05 * factor])
    assert list(averaged.run()) == pytest.approx(list(replay.run()), rel=1e-5)
    found, wanted = (one.evaluate(Samples(inputs, targets))[0] for one in (averaged, replay))
    assert found == pytest.approx(wanted, rel=1e-5)


def test_minibatches_that_flush_come_before_late_ones(captured: CapturedModel) -> None:
    placement = placements(captured)["straight"]
    method = Method(
        policy="pipemare",
        annealing_minibatches=6,
        correction_decay=0.2,
        microbatches=2,
        in_flight_per_link=1,
        clip_norm=0.1,
    )
    rates = [0.02 * (1 + minibatch % 3) for minibatch in range(MINIBATCHES)]
    minibatches = Minibatches(*samples(), order(MINIBATCHES))
    # The trainer runs one after the other in this way.
    wanted = ReferenceExecutor(captured, placement, minibatches, method, SGD)
    wanted.run(5, RunOptions(rates=rates[:5], synchronous=True))
    later = RunOptions(rates=rates[5:], order=order(MINIBATCHES)[5:], first_minibatch=5)
    wanted.run(MINIBATCHES - 5, later)
    replay = Replay(captured, placement, method, SGD, minibatches, rates, synchronous=5)
    assert len(list(replay.run())) == MINIBATCHES
    assert largest_difference({**wanted.state, **replay.weights}, wanted.state) < 1e-9
    without = Replay(captured, placement, method, SGD, minibatches, rates)
    assert len(list(without.run())) == MINIBATCHES
    assert largest_difference({**wanted.state, **without.weights}, wanted.state) > 1e-4


def test_a_flushed_norm_is_of_all_stages(captured: CapturedModel) -> None:
    placement = placements(captured)["straight"]
    method = Method(schedule="1f1b-flush", policy="sync", microbatches=2, clip_norm=0.1)
    minibatches = Minibatches(*samples(), order(6))
    wanted = run_reference(captured, placement, minibatches, 6, method=method, optimizer=SGD)
    replay = Replay(captured, placement, method, SGD, minibatches, [0.05] * 6)
    assert len(list(replay.run())) == 6
    assert largest_difference({**wanted.state, **replay.weights}, wanted.state) < 1e-9
