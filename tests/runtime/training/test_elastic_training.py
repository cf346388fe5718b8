"""Training without workers and hosts that are lost for good: nothing lost, nothing twice."""

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.host_loss.losable_hosts import LosableHost, LosableHosts
from drlpp import Elastic, Task, replanned
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import HostLost
from drlpp.io.run_folder import CHANGES_NAME
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import (
    Deployment,
    Minibatches,
    PipelineTrainer,
    ReferenceExecutor,
    RunOptions,
    TrainerCallbacks,
    TrainingResult,
)
from drlpp.runtime.hosts.local_host import LocalHost
from drlpp.runtime.ipc.worker_spec import WorkerSpec
from drlpp.runtime.training.changes_file import WorkersChanged, read_changes
from drlpp.runtime.training.data.samples_in_memory import SamplesInMemory
from drlpp.runtime.training.trainer import Trainer
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.counting import BATCH_SIZE, SAMPLES, counting, counts, every_sample
from tests.support.models.forked import largest_difference
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import ADAM, file_of

ONE = OptimizerSpec(name="sgd", options={"lr": 1.0, "momentum": 0.0})
EPOCHS = 3
DOWN_TO_ONE = Elastic(1, 4)
METHODS = {
    "stash": Method(policy="stash"),
    "flushed": Method(schedule="1f1b-flush", policy="sync", microbatches=1),
}


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.of(counting))


class Strikes:
    """Strikes shortly after the third checkpoint, and after the third behind every change."""

    def __init__(self, folder: Path, *strikes: Callable[[], None]) -> None:
        self._folder = folder
        self._left = list(strikes)
        self._struck = 0
        self._saved = 0
        self.notes: list[str] = []

    @property
    def observer(self) -> TrainerCallbacks:
        return TrainerCallbacks(
            on_note=self.notes.append,
            on_other_placement=lambda: self.notes.append("another placement"),
        )

    @contextmanager
    def following_checkpoints(self) -> Iterator[None]:
        save = Trainer._save
        timers: list[Timer] = []

        def save_and_strike(trainer: Trainer, deployment: Deployment) -> None:
            save(trainer, deployment)
            known = len(_changes(self._folder))
            self._saved = self._saved + 1 if known >= self._struck else 0
            if self._saved == 3 and self._left:
                self._saved, self._struck = 0, known + 1
                # While what follows on the checkpoint is computed.
                timers.append(Timer(0.02, self._left.pop(0)))
                timers[-1].start()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "_save", save_and_strike)
            yield
        for timer in timers:
            timer.join()


def _fit(
    captured: CapturedModel,
    hosts: LosableHosts,
    strikes: Strikes,
    folder: Path,
    *,
    method: Method = METHODS["stash"],
    elastic: Elastic = DOWN_TO_ONE,
    **options: Any,
) -> TrainingResult:
    document = file_of(captured, in_a_row(captured.graph, 0, 1, 2, 3), method, ONE)
    with hosts.used(), strikes.following_checkpoints():
        trainer = PipelineTrainer(
            document,
            model=captured,
            elastic=elastic,
            checkpoint_every=10,
            out=folder,
            observer=strikes.observer,
            **options,
        )
        return trainer.fit(every_sample(), epochs=EPOCHS)


def _changes(folder: Path) -> tuple[WorkersChanged, ...]:
    return read_changes(folder / CHANGES_NAME)


def _assert_each_sample_once_an_epoch(result: TrainingResult) -> None:
    found = counts(result.state_dict)
    assert found == {(f"layers.{layer}.weight", float(EPOCHS)) for layer in range(4)}


@pytest.mark.system
@pytest.mark.parametrize("method", METHODS)
def test_a_lost_host_and_its_return_cost_no_sample(
    captured: CapturedModel, tmp_path: Path, method: str
) -> None:
    hosts = LosableHosts([2, 2])
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].lose(), lambda: hosts.hosts[1].return_())
    result = _fit(captured, hosts, strikes, tmp_path, method=METHODS[method])
    _assert_each_sample_once_an_epoch(result)
    lost, returned = _changes(tmp_path)
    assert (lost.given_up, lost.workers, lost.configuration) == ((2, 3), (0, 1), "1-1")
    assert (returned.returned, returned.configuration) == ((2, 3), "1-1-1-1")
    assert returned.epochs * 100 + returned.minibatches > lost.epochs * 100 + lost.minibatches > 0
    assert strikes.notes == [lost.text, returned.text]
    assert lost.reason == "host host-1 cannot be reached: workers 2, 3 are given up"


class _FlappingHost(LosableHost):
    """Seems to be there whenever somebody asks."""

    def has_returned(self, worker: int) -> bool:
        return True


@pytest.mark.system
def test_parts_of_a_checkpoint_and_a_host_that_only_seems_to_return(
    captured: CapturedModel, tmp_path: Path
) -> None:
    hosts = LosableHosts([2, 2], _FlappingHost)
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].lose())
    shared = tmp_path / "shared"
    result = _fit(captured, hosts, strikes, tmp_path, checkpoints=shared)
    _assert_each_sample_once_an_epoch(result)
    (lost,) = _changes(tmp_path)
    assert (lost.given_up, lost.workers) == ((2, 3), (0, 1))
    (parts,) = [path for path in shared.iterdir() if path.is_dir()]
    assert len(list(parts.glob("worker-*"))) == 2


def _order(epoch: int) -> Any:
    """The samples of an epoch as they are drawn from memory."""
    return SamplesInMemory(None, every_sample(), BATCH_SIZE, 0).training(epoch, 0, 0).order


ORACLE = {
    "flushed": (Method(schedule="1f1b-flush", policy="sync", microbatches=1), 1e-12),
    "stash": (Method(policy="stash"), 1e-9),
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
    found = _fit(captured, hosts, strikes, tmp_path, method=chosen, optimizer=momentum).state_dict
    whole = in_a_row(captured.graph, 0, 1, 2, 3)
    document = file_of(captured, whole, chosen, momentum)
    half = Elastic(1, 4).planner(document, captured.graph, None).plan([0, 1], 4).placement
    lost, returned = _changes(tmp_path)
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
        options = RunOptions(order=_order(epoch + 1)[first:], first_minibatch=done)
        executor.run(end - done, options)
        done = end
        if done in places:
            executor = executor.moved_to(half if done == places[0] else whole)
    assert largest_difference(found, executor.state()) < tolerance


class FailingHost(LocalHost):
    """Its worker 2 ends as soon as it has been started, the first ``times``."""

    times = 1000

    def start(self, posts: Sequence[WorkerSpec]) -> None:
        super().start(posts)
        numbers = [post.worker for post in posts]
        if 2 in numbers and self.times and self.is_failing:
            self.times -= 1
            os.kill(self.process_ids[numbers.index(2)], signal.SIGKILL)

    is_failing = False


@pytest.mark.system
def test_a_worker_that_is_lost_once_is_replaced_and_one_that_cannot_be_is_given_up(
    captured: CapturedModel, tmp_path: Path
) -> None:
    hosts = LosableHosts([4], FailingHost)

    def kill() -> None:
        os.kill(hosts.hosts[0].process_ids[1], signal.SIGKILL)

    def kill_for_good() -> None:
        hosts.hosts[0].is_failing = True
        os.kill(hosts.hosts[0].process_ids[2], signal.SIGKILL)

    strikes = Strikes(tmp_path, kill, kill_for_good)
    _assert_each_sample_once_an_epoch(_fit(captured, hosts, strikes, tmp_path))
    once, first, second = _changes(tmp_path)
    assert re.fullmatch(r"worker 1 \(stage 1\) was killed by SIGKILL.*: replaced", once.reason)
    assert first.reason.endswith(": replaced")
    assert re.fullmatch(r"worker 2.* was killed by SIGKILL.*: worker 2 is given up", second.reason)
    assert (once.configuration, first.configuration) == ("1-1-1-1", "1-1-1-1")
    assert (second.workers, second.configuration) == ((0, 1, 3), "1-1-1")


@pytest.mark.system
def test_too_few_workers_end_it_and_it_resumes_on_fewer(
    captured: CapturedModel, tmp_path: Path
) -> None:
    hosts = LosableHosts([2, 2])
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].lose())
    with pytest.raises(HostLost, match=r"with --resume.*; 2 workers are left, and .* wants 3 at"):
        _fit(captured, hosts, strikes, tmp_path, elastic=Elastic(3, 4))
    document = file_of(captured, in_a_row(captured.graph, 0, 1, 2, 3), METHODS["stash"], ONE)
    trainer = PipelineTrainer(
        replanned(document, captured.graph, 2),
        model=captured,
        out=tmp_path,
        resume=True,
        observer=strikes.observer,
    )
    _assert_each_sample_once_an_epoch(trainer.fit(every_sample(), epochs=EPOCHS))
    assert strikes.notes[-1] == "another placement"


class _DyingOnce(TensorDataset):
    """Loses a host when the given sample is read for the first time."""

    def __init__(self, lose: Callable[[], None], *tensors: Tensor) -> None:
        super().__init__(*tensors)
        self._lose: Callable[[], None] | None = lose

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if index == 700 and self._lose is not None:
            self._lose, lose = None, self._lose
            lose()
        return super().__getitem__(index)


@pytest.mark.system
def test_before_the_first_checkpoint_a_loader_begins_anew(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """Its own generator too: the order of the epochs is that of a training without a loss."""

    def fit(folder: Path, lose: Callable[[], None]) -> dict[str, Tensor]:
        data = every_sample().train
        generator = torch.Generator().manual_seed(4)
        dataset = _DyingOnce(lose, *data.inputs, data.targets)
        loader = DataLoader(dataset, BATCH_SIZE, shuffle=True, generator=generator)
        document = file_of(captured, in_a_row(captured.graph, 0, 1, 2, 3), METHODS["stash"], ADAM)
        trainer = PipelineTrainer(
            document, model=captured, elastic=Elastic(2, 4), out=folder, observer=quiet
        )
        return trainer.fit(loader, epochs=2).state_dict

    quiet = TrainerCallbacks(on_note=lambda note: None)
    hosts = LosableHosts([3, 1])
    with hosts.used():
        found = fit(tmp_path / "lost", lambda: hosts.hosts[1].lose())
    (lost,) = _changes(tmp_path / "lost")
    assert (lost.epochs, lost.minibatches, lost.workers) == (0, 0, (0, 1, 2))
    # Of layers alone the gradient depends on no weight, so neither does Adam's step on a placement.
    whole = fit(tmp_path / "whole", lambda: None)
    assert largest_difference(found, whole) < 1e-9
