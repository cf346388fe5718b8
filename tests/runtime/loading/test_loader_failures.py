"""Loaders that raise, are slow or die: each is told as what it is, and no worker is left."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import DataError
from drlpp.runtime import ClusterSession, PipelineTrainer, RunOptions, TimeLimits
from drlpp.runtime.loading.loaders import iterate
from drlpp.schedule.method import Method
from drlpp.specs.data import Data, Samples
from tests.support.training.loading import data_for, placement_file
from tests.support.training.pipelines import in_a_row

STASH = Method(policy="stash")


class Breaking(Dataset[tuple[Tensor, Tensor]]):
    """Samples of which one cannot be read."""

    def __init__(self, data: Data, broken: int, how: Callable[[], Any]) -> None:
        self.data, self.broken, self.how = data, broken, how

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == self.broken:
            self.how()
        return self.data.train.inputs[0][index], self.data.train.targets[index]


def _unreadable() -> None:
    raise OSError("picture 70 is damaged:\n  it ends after 12 bytes")


@pytest.fixture(autouse=True)
def _watched_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch looks every 5 s whether the processes of a loader live."""
    waiting = _MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(waiting, "__defaults__", (0.5,))


@pytest.mark.parametrize(
    ("processes", "told"),
    [(0, "raised SystemExit after 0 .*: 3"), (1, "exited unexpectedly|a process .* has ended")],
)
def test_a_data_set_that_exits_is_told(captured: CapturedModel, processes: int, told: str) -> None:
    broken = Breaking(data_for(captured), 0, lambda: sys.exit(3))
    with pytest.raises(DataError, match=told):
        next(iterate(DataLoader(broken, 8, num_workers=processes), 0))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("processes", [0, 2])
def test_a_loader_that_raises_ends_training_and_its_workers(
    captured: CapturedModel, tmp_path: Path, processes: int
) -> None:
    seen: list[list[int]] = []
    start = ClusterSession.deploy
    before = set(multiprocessing.active_children())

    def deploy(session: ClusterSession, *args: Any, **options: Any) -> object:
        deployment = start(session, *args, **options)
        seen.append(session.process_ids)
        return deployment

    loader = DataLoader(Breaking(data_for(captured), 70, _unreadable), 8, num_workers=processes)
    trainer = PipelineTrainer(placement_file(captured, 0, 1, method=STASH), out=tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClusterSession, "deploy", deploy)
        with pytest.raises(
            DataError, match=r"raised OSError after 8 .*: picture 70 is damaged: it ends"
        ):
            trainer.fit(loader, epochs=1)
    assert len(seen[0]) == 2
    # Whoever collects the garbage later would wait for its processes.
    assert set(multiprocessing.active_children()) <= before
    assert not any(Path(f"/proc/{process}").exists() for process in seen[0])


def _slowly(data: Data, minibatches: int, seconds: float) -> Iterator[Samples]:
    for index in range(minibatches):
        time.sleep(seconds)
        rows = slice(8 * index, 8 * index + 8)
        yield Samples((data.train.inputs[0][rows],), data.train.targets[rows])


@pytest.mark.system
@pytest.mark.timeout(60)
def test_a_slow_loader_is_not_taken_for_a_hang(captured: CapturedModel) -> None:
    data = data_for(captured)
    with ClusterSession(captured, 2, method=STASH) as session:
        deployment = session.deploy(in_a_row(captured.graph, 0, 1))
        # From here on: starting and deploying may take its time.
        session.time_limits = TimeLimits(answer_seconds=2)
        session.longest_silence_seconds = 0.0
        session.run(deployment, 2, RunOptions(loaded=_slowly(data, 2, seconds=2.5)))
        assert len(session.process_ids) == 2
        assert session.longest_silence_seconds < 2.5, "it would count for later timeouts"


class Mortal(TensorDataset):
    """The process that loads a certain sample of it is killed, as for want of memory."""

    last = 60

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if index == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        return tuple(super().__getitem__(index))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("last", [0, 60])
def test_a_killed_loader_process_is_told(
    captured: CapturedModel, tmp_path: Path, last: int
) -> None:
    """torch's handler would raise wherever the main thread is, say while it ends workers."""
    data = data_for(captured)
    dataset = Mortal(data.train.inputs[0], data.train.targets)
    dataset.last = last
    before = signal.getsignal(signal.SIGCHLD)
    trainer = PipelineTrainer(placement_file(captured, 0, 1), out=tmp_path)
    with pytest.raises(DataError, match=r"exited unexpectedly|a process of the loader has ended"):
        trainer.fit(DataLoader(dataset, 8, num_workers=2), epochs=2)
    assert signal.getsignal(signal.SIGCHLD) == before
