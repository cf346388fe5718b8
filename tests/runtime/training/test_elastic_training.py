"""Training without workers and hosts that are lost for good: nothing lost, nothing twice."""

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.host_loss.losable_hosts import LosableHost, LosableHosts
from drlpp import Elastic, Task, replanned
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import HostLost, InvalidInput, NothingFits
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import (
    Minibatches,
    PipelineTrainer,
    ProgressReport,
    ReferenceExecutor,
    RunOptions,
    TrainerCallbacks,
    TrainingResult,
)
from drlpp.runtime.hosts.local_host import LocalHost
from drlpp.runtime.ipc.worker_spec import WorkerSpec
from drlpp.runtime.training.data.samples_in_memory import SamplesInMemory
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.counting import BATCH_SIZE, SAMPLES, counting, counts, every_sample
from tests.support.models.forked import largest_difference
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import ADAM, file_of
from tests.support.training.strikes import Strikes, changes_in

ONE = OptimizerSpec(name="sgd", options={"lr": 1.0, "momentum": 0.0})
EPOCHS = 3
DOWN_TO_ONE = Elastic(1, 4)
IN_A_ROW = (0, 1, 2, 3)
REPLICATED = (0, 1, 0, 1)
"""Stages of the workers: each on both of two hosts."""
COPIES = {"copy_every": 4, "checkpoint_every": 26}
PEERS = {**COPIES, "peer_copies": True}
METHODS = {
    "stash": Method(policy="stash"),
    "flushed": Method(schedule="1f1b-flush", policy="sync", microbatches=1),
}


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.of(counting))


def _fit(
    captured: CapturedModel,
    hosts: LosableHosts,
    strikes: Strikes,
    folder: Path,
    *,
    method: Method = METHODS["stash"],
    elastic: Elastic = DOWN_TO_ONE,
    stages: Sequence[int] = IN_A_ROW,
    checkpoint_every: int = 10,
    **options: Any,
) -> TrainingResult:
    document = file_of(captured, in_a_row(captured.graph, *stages), method, ONE)
    with hosts.used(), strikes.following_checkpoints():
        trainer = PipelineTrainer(
            document,
            model=captured,
            elastic=elastic,
            checkpoint_every=checkpoint_every,
            out=folder,
            observer=strikes.observer,
            **options,
        )
        return trainer.fit(every_sample(), epochs=EPOCHS)


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
    lost, returned = changes_in(tmp_path)
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
    (lost,) = changes_in(tmp_path)
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
@pytest.mark.parametrize(
    ("stages", "options"),
    [(IN_A_ROW, {}), (REPLICATED, COPIES), (IN_A_ROW, PEERS)],
    ids=["checkpoints", "copies", "peer copies"],
)
def test_weights_are_those_of_a_reference_that_changes_its_placement(
    tmp_path: Path, method: str, stages: Sequence[int], options: dict[str, int]
) -> None:
    """Down to two hosts' worth of workers and up again, at the minibatches that the file names."""
    captured = capture(ModelReference.of(perceptron))
    chosen, tolerance = ORACLE[method]
    momentum = OptimizerSpec(name="sgd", options={"lr": 0.02, "momentum": 0.8})
    hosts = LosableHosts([2, 2])
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].lose(), lambda: hosts.hosts[1].return_())
    given = {"method": chosen, "optimizer": momentum, "stages": stages, **options}
    found = _fit(captured, hosts, strikes, tmp_path, **given).state_dict
    whole = in_a_row(captured.graph, *stages)
    document = file_of(captured, whole, chosen, momentum)
    half = Elastic(1, 4).planner(document, captured.graph, None).plan([0, 1], 4).placement
    lost, returned = changes_in(tmp_path)
    configuration = "2-2" if stages == REPLICATED else "1-1-1-1"
    assert (lost.configuration, returned.configuration) == ("1-1", configuration)
    places = [(change.epochs * 100 + change.minibatches) for change in (lost, returned)]
    if options:
        assert lost.source == "copies on the hosts"
        assert lost.minibatches % 4 == 0
        assert lost.minibatches % 26

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


@pytest.mark.system
@pytest.mark.parametrize("options", [COPIES, PEERS], ids=["copies", "peer copies"])
def test_copies_continue_with_what_was_in_flight_when_a_worker_is_lost(
    captured: CapturedModel, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Twice, so that the copies which were gathered are replaced by others, and bit for bit."""
    hosts = LosableHosts([2, 2])

    def kill() -> None:
        os.kill(hosts.hosts[1].process_ids[0], signal.SIGKILL)

    # At once: the second follows on the last copies before a checkpoint.
    strikes = Strikes(tmp_path / "killed", kill, kill, seconds=0)
    found = _fit(captured, hosts, strikes, tmp_path / "killed", **options)
    once, twice = changes_in(tmp_path / "killed")
    assert (once.source, twice.source) == ("copies on the hosts",) * 2
    assert all(change.configuration == "1-1-1-1" for change in (once, twice))
    assert (0, 0) < (once.epochs, once.minibatches) < (twice.epochs, twice.minibatches)
    _assert_each_sample_once_an_epoch(found)
    whole = _fit(captured, hosts, Strikes(tmp_path / "whole"), tmp_path / "whole", **options)
    assert largest_difference(found.state_dict, whole.state_dict) == 0.0


@pytest.mark.system
@pytest.mark.parametrize(("counts", "lines"), [([4], 1), ([3, 1], 0)])
def test_peer_copies_that_no_other_host_can_keep_are_told(
    captured: CapturedModel, tmp_path: Path, counts: list[int], lines: int
) -> None:
    """Once, also if the workers are replaced."""
    hosts = LosableHosts(counts)
    strikes = Strikes(tmp_path, lambda: os.kill(hosts.hosts[0].process_ids[1], signal.SIGKILL))
    _fit(captured, hosts, strikes, tmp_path, **PEERS)
    *told, replaced = strikes.notes
    assert replaced.startswith("worker 1 ")
    assert [note.split(",")[0] for note in told] == lines * [
        "peer copies protect nothing here: all workers are on host host-0"
    ]


@pytest.mark.system
def test_two_hosts_that_are_no_neighbours_are_lost_at_once(
    captured: CapturedModel, tmp_path: Path
) -> None:
    hosts = LosableHosts([1, 1, 1, 1])

    def lose() -> None:
        for number in (0, 2):
            hosts.hosts[number].lose()

    strikes = Strikes(tmp_path, lose)
    _assert_each_sample_once_an_epoch(_fit(captured, hosts, strikes, tmp_path, **PEERS))
    (lost,) = changes_in(tmp_path)
    assert (lost.given_up, lost.workers, lost.configuration) == ((0, 2), (1, 3), "1-1")
    assert lost.source == "copies on the hosts"
    assert lost.reason == (
        "host host-0 cannot be reached: worker 0 is given up; "
        "host host-2 cannot be reached: worker 2 is given up"
    )


@pytest.mark.system
@pytest.mark.parametrize(
    ("often", "place", "lost_minibatches", "why_not"),
    [
        ((3, 5), 5, 1, "stage 2 has no replica on a host that is left"),
        ((4, 9), 9, 0, "no copy is newer"),
    ],
    ids=["no copy left", "no copy newer"],
)
def test_the_checkpoint_continues_where_copies_cannot(
    captured: CapturedModel,
    tmp_path: Path,
    often: tuple[int, int],
    place: int,
    lost_minibatches: int,
    why_not: str,
) -> None:
    """Struck after the third of what is kept: copies, checkpoint, copies; or checkpoint last."""
    hosts = LosableHosts([2, 2])
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].lose(), seconds=0)
    copies, checkpoints = often
    _assert_each_sample_once_an_epoch(
        _fit(captured, hosts, strikes, tmp_path, copy_every=copies, checkpoint_every=checkpoints)
    )
    (lost,) = changes_in(tmp_path)
    assert (lost.minibatches, lost.lost_minibatches) == (place, lost_minibatches)
    assert lost.source == f"the last checkpoint ({why_not})"
    assert f"continues from {lost.source} at " in strikes.notes[0]


class _Slow(TensorDataset):
    """Takes so long that workers say how far they are before an epoch ends."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(0.005)
        return super().__getitem__(index)


@pytest.mark.system
def test_what_is_lost_is_told(captured: CapturedModel, tmp_path: Path) -> None:
    hosts = LosableHosts([2, 2])
    heard: list[int] = []

    def lose(report: ProgressReport) -> None:
        if report.done >= 10 and not heard:
            heard.append(report.done)
            hosts.hosts[1].lose()

    observer = TrainerCallbacks(on_progress=lose, on_note=lambda note: None)
    data = every_sample().train
    document = file_of(captured, in_a_row(captured.graph, 0, 1, 2, 3), METHODS["stash"], ADAM)
    with hosts.used():
        trainer = PipelineTrainer(
            document, model=captured, elastic=DOWN_TO_ONE, out=tmp_path, observer=observer
        )
        trainer.fit(DataLoader(_Slow(*data.inputs, data.targets), BATCH_SIZE), epochs=1)
    (lost,) = changes_in(tmp_path)
    assert lost.source == "the beginning (--copy-every is not given)"
    assert lost.lost_minibatches >= heard[0]
    assert lost.lost_seconds > 0
    assert f"; {lost.lost_minibatches} minibatches and " in lost.text


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
    once, first, second = changes_in(tmp_path)
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


@pytest.mark.system
def test_it_begins_and_resumes_with_the_hosts_that_are_there_and_grows(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """The first host is missing; what is there is lost; on the other it is resumed, and grows."""
    hosts = LosableHosts([2, 2], missing=[0])
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].lose())
    with pytest.raises(HostLost, match="; 0 workers are left, and training wants 1 at least"):
        _fit(captured, hosts, strikes, tmp_path)
    begin = (
        "host host-0 is missing or in use: training begins with 2 of 4 workers, 1-1, and grows when"
    )
    assert strikes.notes[0].startswith(begin)
    assert changes_in(tmp_path) == ()

    hosts.missing = [1]
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].return_())
    result = _fit(captured, hosts, strikes, tmp_path, resume=True)
    _assert_each_sample_once_an_epoch(result)
    assert (
        "host host-1 is missing or in use: training begins with 2 of 4 workers" in strikes.notes[0]
    )
    (returned,) = changes_in(tmp_path)
    assert (returned.returned, returned.configuration) == ((2, 3), "1-1-1-1")


@pytest.mark.system
def test_it_begins_without_a_worker_that_cannot_be_started(
    captured: CapturedModel, tmp_path: Path
) -> None:
    class Failing(FailingHost):
        is_failing = True

    strikes = Strikes(tmp_path)
    result = _fit(captured, LosableHosts([4], Failing), strikes, tmp_path)
    _assert_each_sample_once_an_epoch(result)
    replaced, given_up = changes_in(tmp_path)
    assert (replaced.given_up, given_up.given_up) == ((), (2,))
    assert (given_up.workers, given_up.configuration) == ((0, 1, 3), "1-1-1")


def test_no_plan_for_what_is_there_is_told(captured: CapturedModel, tmp_path: Path) -> None:
    class Planless(Elastic):
        def planner(self, *_: Any) -> Any:
            return self

        def plan(self, *_: Any) -> Any:
            raise NothingFits("no memory")

    hosts = LosableHosts([2, 2], missing=[1])
    with pytest.raises(
        InvalidInput, match=r"host-1 is missing or in use: .* for which there is no plan: no"
    ):
        _fit(captured, hosts, Strikes(tmp_path), tmp_path, elastic=Planless(1, 4))


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
    (lost,) = changes_in(tmp_path / "lost")
    assert (lost.epochs, lost.minibatches, lost.workers) == (0, 0, (0, 1, 2))
    # Of layers alone the gradient depends on no weight, so neither does Adam's step on a placement.
    whole = fit(tmp_path / "whole", lambda: None)
    assert largest_difference(found, whole) < 1e-9
