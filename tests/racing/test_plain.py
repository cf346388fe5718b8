"""Plain PyTorch trains as a user's own loop and as one stage do, measured or in a race."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.racing.contenders import Contender
from drlpp.racing.plain import PlainLearner, measure_plain
from drlpp.racing.rivals import PLAIN
from drlpp.racing.to_loss import RaceData
from drlpp.runtime import ClusterSession
from drlpp.runtime.device.devices import Accelerator
from drlpp.runtime.training.trainer import Trainer
from drlpp.runtime.training.training_plan import TrainerCallbacks, TrainingPlan
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.runtime.worker.plain_loop import PlainLoop
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup
from tests.support.models.classified_points import NAME, data, points, without_dropout
from tests.support.models.small import forked, perceptron
from tests.support.training import pipelines
from tests.support.training.pipelines import in_a_row
from tests.support.training.ranks import layered

ADAM = OptimizerSpec.parse("adam", lr=0.01)
SGD = OptimizerSpec.parse("sgd", lr=0.1)
METHOD = Method()


def alone(threads: int = 1, method: Method = METHOD) -> Contender:
    return Contender(found_by=PLAIN, method=method, threads=threads)


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def no_dropout() -> Iterator[ClusterSession]:
    with ClusterSession(f"{NAME}:without_dropout", 1, optimizer=ADAM) as session:
        yield session


def test_several_passes_make_the_same_update() -> None:
    weights = []
    for passes in (1, 4):
        task = layered()
        method = choose_method("sync", {"accumulate": 2, "clip_norm": 0.5})
        loop = PlainLoop(task, method, SGD, Accelerator(), passes=passes)
        losses = [loop.step(task.inputs, task.targets) for _ in range(4)]
        weights.append([*task.module.state_dict().values(), losses[-1]])
    torch.testing.assert_close(*weights)


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


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 2, "clip_norm": 0.01, "recompute": True},
        {"precision": "bfloat16", "recompute": True},
    ],
)
def test_it_trains_as_an_ordinary_loop_does(options: dict[str, object]) -> None:
    method = choose_method("pipeoptim", options)
    tasks = []
    for _ in range(2):
        torch.manual_seed(4)
        tasks.append(perceptron() if "precision" in options else forked(dropout=0.0))
    own, task = tasks
    loop = PlainLoop(own, method, ADAM, Accelerator())
    for _ in range(12):
        loop.step(own.inputs, own.targets)
    pipelines.train(
        task.module,
        task.loss,
        build_optimizer(ADAM, pipelines.trained_parameters(task.module)),
        [(task.inputs, task.targets)] * 12,
        together=method.accumulate,
        clip_norm=method.clip_norm,
        autocast=torch.bfloat16 if "precision" in options else None,
    )
    for name, value in task.module.state_dict().items():
        if "running" not in name and "batches" not in name:
            found = own.module.state_dict()[name]
            torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.slow
def test_compiled_it_trains_alike_and_compiling_changes_nothing() -> None:
    loops = []
    for compiled in (False, True):
        torch.manual_seed(4)
        task = Task(
            nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)),
            (torch.randn(8, 6),),
            torch.arange(8) % 3,
            F.cross_entropy,
        )
        method = METHOD.model_copy(update={"compiled": compiled})
        with torch._dynamo.config.patch(disable=False):
            loops.append((PlainLoop(task, method, SGD, Accelerator()), task))
    for loop, task in loops:
        for _ in range(3):
            loop.step(task.inputs, task.targets)
    (own, _), (compiled_loop, _) = loops
    states = compiled_loop.module.state_dict(), own.module.state_dict()
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-6)


def test_in_float16_losses_are_scaled_and_updates_that_overflow_are_left_out() -> None:
    task = perceptron()
    before = {name: value.clone() for name, value in task.module.state_dict().items()}

    def changed(**options: object) -> bool:
        method = choose_method("stash", {"precision": "float16", **options})
        loop = PlainLoop(task, method, ADAM, Accelerator())
        for _ in range(2):
            loop.step(task.inputs, task.targets)
        after = task.module.state_dict()
        return any(not torch.equal(after[name], value) for name, value in before.items())

    assert not changed(loss_scale=2.0**120), "gradients were infinite"
    assert changed()


@pytest.mark.parametrize("factory", ["without_loss", "forked"])
def test_it_is_measured_and_the_users_model_stays_as_it_was(factory: str) -> None:
    model = ModelReference.named(f"tests.support.models.small:{factory}")
    with ClusterSession(capture(model, check=False), 1) as session:
        module, threads = session.captured.task.module, torch.get_num_threads()
        before = {name: value.clone() for name, value in module.state_dict().items()}
        state = torch.random.get_rng_state()
        outcome = measure_plain(session, alone(2), 5)
        assert isinstance(outcome, Measurement)
        assert outcome.minibatches == 5
        assert torch.get_num_threads() == threads
        assert torch.equal(torch.random.get_rng_state(), state)
        assert all(torch.equal(module.state_dict()[n], value) for n, value in before.items())


def test_a_model_that_fails_in_plain_pytorch_says_why() -> None:
    # Capturing would refuse it already.
    model = capture(ModelReference.named(f"{__name__}:picky"), check=False)
    with ClusterSession(model, 1) as session:
        assert measure_plain(session, alone(), 3) == FailedMeasurement(
            failure="error in the model", reason="RuntimeError: a kernel is missing"
        )


def test_in_a_race_it_trains_as_an_ordinary_loop(
    no_dropout: ClusterSession, tmp_path: Path
) -> None:
    """And its parameters in groups as two optimizers do."""
    apart = ParameterGroup.parse("*.bias", lr=0.02, amsgrad=True)
    optimizer = OptimizerSpec.parse("adam", [apart], lr=0.01)
    learner = PlainLearner(no_dropout, alone(), data(), tmp_path, optimizer)
    stints = [learner.train_until(stop) for stop in (5, 12, 15)]
    module = without_dropout().module
    biases = [w for name, w in module.named_parameters() if name.endswith("bias")]
    others = [w for name, w in module.named_parameters() if not name.endswith("bias")]
    optimizers = [
        torch.optim.Adam(others, lr=0.01),
        torch.optim.Adam(biases, lr=0.02, amsgrad=True),
    ]
    source = data()
    minibatches = [*source.minibatches_here(1, 0), *source.minibatches_here(2, 0)][:15]
    for (inputs,), targets in minibatches:
        module.zero_grad()
        F.cross_entropy(module(inputs), targets).backward()
        for one in optimizers:
            one.step()
    module.eval()
    x, y = points().test.inputs[0], points().test.targets
    with torch.no_grad():
        wanted = float(F.cross_entropy(module(x), y))
    assert stints[-1].held_out_loss == pytest.approx(wanted, rel=1e-5)
    assert [stint.done for stint in stints] == [5, 12, 15]


def test_pauses_change_no_weights(session: ClusterSession, tmp_path: Path) -> None:
    """Of a model with dropout, whose random numbers are kept with the checkpoint."""
    losses = set()
    for stops in [(15,), (5, 12, 15)]:
        folder = _new(tmp_path / str(len(stops)))
        for stop in stops:
            learner = PlainLearner(session, alone(), data(), folder, ADAM, seed=3)
            stint = learner.train_until(stop)
        losses.add(stint.held_out_loss)
    assert len(losses) == 1


def test_it_sees_every_sample_of_a_loader_whatever_its_pauses(
    session: ClusterSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the loader draws from a generator of its own, which each beginning moves on."""
    seen: list[float] = []
    step = PlainLoop.step

    def watched(loop: PlainLoop, inputs: tuple[Tensor, ...], *args: Tensor, last: bool) -> Tensor:
        seen.extend(inputs[0][:, 0].tolist())
        return step(loop, inputs, *args, last=last)

    monkeypatch.setattr(PlainLoop, "step", watched)
    orders = []
    for stops in [(12, 24), (5, 7, 12, 13, 24)]:
        data = RaceData(session.captured, f"{NAME}:loaders_of_their_own").ordered(0)
        folder, spec = _new(tmp_path / str(len(stops))), session.optimizer
        for stop in stops:
            # A new one each time, as after a kill.
            learner = PlainLearner(session, alone(), data, folder, spec)
            learner.train_until(stop)
        orders.append(seen.copy())
        seen.clear()
    assert orders[0] == orders[1]
    assert len(set(orders[0][:96])) == 96


def test_it_trains_as_one_stage_does(no_dropout: ClusterSession, tmp_path: Path) -> None:
    """Also the update that an epoch ends with, of fewer minibatches."""
    method, stops = Method(accumulate=5, clip_norm=0.1), (10, 12)
    plain = PlainLearner(no_dropout, alone(1, method), data(), tmp_path, ADAM)
    found = [plain.train_until(stop).held_out_loss for stop in stops]
    flushed = choose_method("sync", {"schedule": "1f1b"}, method)
    plan, folder = no_dropout.plan(in_a_row(no_dropout.graph, 0), flushed), _new(tmp_path / "one")
    trainer = Trainer(no_dropout, data(), folder, TrainingPlan(1), TrainerCallbacks())
    wanted = [trainer.train_until(plan, stop).held_out_loss for stop in stops]
    assert found == pytest.approx(wanted, rel=1e-5)
