"""Plain PyTorch as a contender: it trains as a user would, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.comparison.plain import PlainPyTorch
from drlpp.comparison.plain_process import PlainRun, shapes_of, train
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.runtime.device.devices import Processor
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.small import forked, perceptron
from tests.support.training import pipelines as plain

ROOT = Path(__file__).parents[2]
PERCEPTRON = ModelReference.named("tests.support.models.small:perceptron")


class Picky(nn.Module):
    """Can be captured, and cannot be run as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        if not torch.compiler.is_exporting():
            raise RuntimeError("a kernel is missing")
        return self.layer(values)


def picky() -> tuple[nn.Module, Tensor]:
    return Picky(), torch.randn(2, 4)


def with_a_loss_of_its_own() -> Task:
    """A loss that cannot be pickled."""
    task = perceptron()
    return task._replace(loss=lambda outputs, targets: F.cross_entropy(outputs, targets))


def run_of(task: Task, method: Method, minibatches: int, speed: float = 1.0) -> PlainRun:
    return PlainRun(
        task_file=None,
        problem="",
        reference=PERCEPTRON,
        shapes=shapes_of(task.module),
        seed=0,
        method=method,
        optimizer=OptimizerSpec.parse("adam", lr=0.01),
        threads=1,
        minibatches=minibatches,
        speed=speed,
        core=None,
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate": 3},
        {"clip_norm": 0.1},
        {"accumulate": 2, "clip_norm": 0.01, "recompute": True},
        {"precision": "bfloat16", "recompute": True},
    ],
)
def test_it_trains_as_an_ordinary_loop_does(options: dict[str, object]) -> None:
    method = choose_method("pipeoptim", options)
    torch.manual_seed(4)
    task = perceptron() if "precision" in options else forked(dropout=0.0)
    assert task.targets is not None
    assert task.loss is not None
    module = type(task.module)(0.0) if "precision" not in options else perceptron().module
    module.to(next(task.module.parameters()).dtype)
    module.load_state_dict(task.module.state_dict())
    measurement = train(task, run_of(task, method, 6), Processor(), lambda: None)
    together = method.accumulate
    assert measurement.minibatches == 6
    warm_up = -(-4 // together) * together
    optimizer = build_optimizer(
        OptimizerSpec.parse("adam", lr=0.01), plain.trained_parameters(module)
    )
    plain.train(
        module,
        task.loss,
        optimizer,
        [(task.inputs, task.targets)] * (warm_up + 6),
        # The same minibatch twice is the mean over both.
        together=1 if together == 1 else together,
        clip_norm=method.clip_norm,
        autocast=torch.bfloat16 if "precision" in options else None,
    )
    for name, value in module.state_dict().items():
        if "running" in name or "batches" in name:
            continue
        found = task.module.state_dict()[name]
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-9, msg=name)


def test_in_float16_losses_are_scaled_and_updates_that_overflow_are_left_out() -> None:
    task = perceptron()
    before = {name: value.clone() for name, value in task.module.state_dict().items()}
    method = choose_method("stash", {"precision": "float16", "loss_scale": 2.0**120})
    train(task, run_of(task, method, 2), Processor(), lambda: None)
    for name, value in task.module.state_dict().items():
        assert torch.equal(value, before[name]), "gradients were infinite"
    sound = choose_method("stash", {"precision": "float16"})
    train(task, run_of(task, sound, 2), Processor(), lambda: None)
    assert any(not torch.equal(v, before[n]) for n, v in task.module.state_dict().items())


def test_on_an_emulated_accelerator_it_rests_as_workers_do() -> None:
    task = perceptron(batch_size=64, width=256)
    begin, used = time.perf_counter(), time.thread_time()
    torch.set_num_threads(1)
    train(task, run_of(task, Method(), 20, speed=0.25), Processor(), lambda: None)
    # What it sleeps follows from what it used; a busy machine only makes it longer.
    used = time.thread_time() - used
    assert time.perf_counter() - begin > 2 * used


def processor_ticks(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_it_takes_turns_with_workers_and_nobody_computes_meanwhile() -> None:
    with ClusterSession(PERCEPTRON, 2) as session, PlainPyTorch(session) as contender:
        one = contender.measure(1, 5, session.method)
        process = contender.process_id
        assert process is not None
        count = len(session.graph)
        placement = Placement.from_assignment([0] * (count - 3) + [1] * 3, [0, 1])
        assert isinstance(session.measure(placement, 5), Measurement)
        all_cores = contender.measure(2, 5, session.method)
        for outcome in (one, all_cores):
            assert isinstance(outcome, Measurement)
            assert outcome.minibatches == 5
        assert contender.process_id == process, "it lives between its turns"
        everyone = [process, *session.process_ids]
        time.sleep(0.2)
        before = [processor_ticks(one) for one in everyone]
        time.sleep(0.5)
        after = [processor_ticks(one) for one in everyone]
        # A tick is 10 ms; whoever spins would have tens of them.
        assert all(b - a <= 2 for a, b in zip(before, after, strict=True))
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.parametrize("factory", ["without_loss", "forked"])
def test_models_without_a_loss_and_with_branches_are_measured(factory: str) -> None:
    model = ModelReference.named(f"tests.support.models.small:{factory}")
    with ClusterSession(model, 1) as session, PlainPyTorch(session) as contender:
        assert isinstance(contender.measure(1, 3, session.method), Measurement)


def test_a_model_that_fails_in_plain_pytorch_says_why() -> None:
    # Capturing would refuse it already.
    model = capture(ModelReference.named(f"{__name__}:picky"), check=False)
    with ClusterSession(model, 1) as session, PlainPyTorch(session) as contender:
        outcome = contender.measure(1, 3, session.method)
        assert isinstance(outcome, FailedMeasurement)
        assert outcome.failure == "error in the model"
        assert outcome.reason == "RuntimeError: a kernel is missing"
        assert contender.process_id is not None, "it can be asked again"


def test_what_cannot_be_pickled_is_built_again_by_its_factory() -> None:
    model = ModelReference.named(f"{__name__}:with_a_loss_of_its_own")
    with ClusterSession(model, 1) as session, PlainPyTorch(session) as contender:
        assert isinstance(contender.measure(1, 3, session.method), Measurement)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("nowhere:model", "nor built there"),
        ("tests.support.models.small:without_loss", "builds another one"),
    ],
)
def test_a_model_that_no_other_process_can_have_is_told(reference: str, words: str) -> None:
    captured = capture(ModelReference.named(reference), with_a_loss_of_its_own())
    with ClusterSession(captured, 1) as session, PlainPyTorch(session) as contender:
        outcome = contender.measure(1, 3, session.method)
    assert isinstance(outcome, FailedMeasurement)
    assert "cannot be given to another process" in outcome.reason
    assert "lambda" in outcome.reason
    assert words in outcome.reason


def test_a_process_that_is_killed_is_a_failure_and_another_takes_its_place() -> None:
    with ClusterSession(PERCEPTRON, 1) as session, PlainPyTorch(session) as contender:
        assert isinstance(contender.measure(1, 3, session.method), Measurement)
        assert contender.process_id is not None
        os.kill(contender.process_id, signal.SIGKILL)
        while Path(f"/proc/{contender.process_id}").exists():
            time.sleep(0.01)
        outcome = contender.measure(1, 3, session.method)
        assert isinstance(outcome, FailedMeasurement)
        assert outcome.failure == "worker lost"
        assert "was killed by SIGKILL" in outcome.reason
        assert isinstance(contender.measure(1, 3, session.method), Measurement)


PROGRAM = """
import sys, time
from drlpp.runtime import ClusterSession
from drlpp.comparison.plain import PlainPyTorch

MODEL = "tests.support.models.small:perceptron"
with ClusterSession(MODEL, 1) as session, PlainPyTorch(session) as contender:
    contender.measure(1, 3, session.method)
    print(contender.process_id, flush=True)
    time.sleep(100)
"""


@pytest.mark.system
def test_it_ends_with_a_controller_that_is_killed() -> None:
    controller = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert controller.stdout is not None
    process = int(controller.stdout.readline())
    controller.kill()
    controller.communicate()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
