"""What a training takes from its loader: which minibatches, what is refused, how little is kept."""

import time
from collections.abc import Callable, Iterator
from itertools import count, islice, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    TensorDataset,
    default_collate,
)

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import DataError, InvalidInput
from drlpp.runtime import PipelineTrainer, ProgressReport, TrainerCallbacks
from drlpp.runtime.device.clocks import Clock
from drlpp.runtime.ipc.protocol import Stream
from drlpp.runtime.loading.loaders import Unpacker, generators_of, iterate
from drlpp.runtime.session.minibatch_streamer import MinibatchStreamer
from drlpp.runtime.training.training_data import LoadedData
from drlpp.runtime.worker.executor import Executor
from drlpp.schedule.actions import Forward
from drlpp.schedule.method import Method
from drlpp.schedule.timeline import WAITING, TimedAction, spans_of, time_use
from drlpp.specs.data import Data, Loaders
from tests.support.training.loading import data_for, placement_file, same

STASH = Method(policy="stash")


def test_small_minibatches_are_left_out_of_training_and_that_is_said(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """96 samples in batches of 8, 8, 3, 8 and so on are trained without the threes."""
    data = data_for(captured)
    batches = [list(range(8 * i, 8 * i + 8)) for i in range(4)]
    batches.insert(2, [90, 91, 92])
    notes: list[str] = []
    observer = TrainerCallbacks(on_note=notes.append)
    document = placement_file(captured, 0, 1, method=STASH)
    dataset = TensorDataset(data.train.inputs[0], data.train.targets)
    loader = DataLoader(dataset, batch_sampler=batches)
    trainer = PipelineTrainer(document, out=tmp_path / "some", observer=observer)
    found = trainer.fit(loader, epochs=2, minibatches=4)
    assert notes == [
        "smaller minibatches are left out of every epoch: the model is captured for minibatches "
        "of 8"
    ]
    rest = DataLoader(dataset, batch_sampler=[batch for batch in batches if len(batch) == 8])
    wanted = PipelineTrainer(document, out=tmp_path / "whole").fit(rest, epochs=2, minibatches=4)
    assert same(found.state_dict, wanted.state_dict)


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, data: Data) -> None:
        self.data = data

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        inputs, targets = self.data.train.inputs[0], self.data.train.targets
        for number in count():
            yield inputs[number % 96], targets[number % 96]


class Growing(Endless):
    """Six minibatches the first time, then ``more`` each time."""

    def __init__(self, data: Data, more: int) -> None:
        super().__init__(data)
        self.samples, self.more = 48, 8 * more

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.samples += self.more
        yield from islice(super().__iter__(), self.samples - self.more)


def test_an_epoch_with_fewer_minibatches_than_are_expected_is_told(
    captured: CapturedModel, tmp_path: Path
) -> None:
    loader = DataLoader(Growing(data_for(captured), -1), 8)
    with pytest.raises(DataError, match="gives 5 minibatches in epoch 1, where 6 are expected"):
        PipelineTrainer(placement_file(captured, 0), out=tmp_path).fit(loader, minibatches=6)


class Modest(Growing):
    """Says that it has fewer samples than it gives."""

    def __len__(self) -> int:
        return 40


def test_minibatches_beyond_a_length_are_noted_and_may_be_asked_for(
    captured: CapturedModel, tmp_path: Path
) -> None:
    notes: list[str] = []
    document, observer = placement_file(captured, 0), TrainerCallbacks(on_note=notes.append)
    loader = DataLoader(Modest(data_for(captured), 0), 8)
    PipelineTrainer(document, out=tmp_path / "5", observer=observer).fit(loader, epochs=2)
    assert notes == [
        "the training loader gives more minibatches in an epoch than the 5 that are expected: "
        "those beyond are not trained on"
    ]
    notes.clear()
    trainer = PipelineTrainer(document, out=tmp_path / "6", observer=observer)
    trainer.fit(loader, epochs=1, minibatches=6)
    assert not notes


def _twice(samples: list[tuple[Tensor, Tensor]]) -> Any:
    return default_collate(2 * samples)


class Backwards(BatchSampler):
    """A batch sampler of one's own."""

    def __iter__(self) -> Iterator[list[int]]:
        return (batch[::-1] for batch in super().__iter__())


@pytest.mark.parametrize(
    "loader",
    [
        lambda data: DataLoader(data, batch_sampler=[range(8), range(8, 16)]),
        lambda data: DataLoader([data[:8], data[8:16]], batch_size=None),
        lambda data: DataLoader(data, batch_sampler=Backwards(range(20), 8, drop_last=False)),
        lambda data: DataLoader([data[i] for i in range(20)], 8, collate_fn=default_collate),
        lambda data: DataLoader(data, 4, sampler=range(8), collate_fn=_twice),
    ],
)
def test_the_length_of_a_loader_counts_its_minibatches(
    captured: CapturedModel, loader: Callable[[TensorDataset], DataLoader]
) -> None:
    loaders = Loaders(loader(TensorDataset(*SAMPLES.tensors)), None)
    data = LoadedData("some", loaders, None, captured=captured, seed=0, note=print)
    assert data.minibatches == len(list(data.minibatches_here(1, 0))) == 2


def _loader(*tensors: Tensor, batch_size: int = 8) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), batch_size)


LABELS = torch.zeros(96, dtype=torch.int64)
SAMPLES = TensorDataset(torch.zeros(96, 16), LABELS)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (_loader(torch.zeros(96, 16), LABELS, batch_size=16), "minibatch of 16 samples, but the"),
        (_loader(torch.zeros(96, 16), LABELS, batch_size=4), "minibatch of 4 samples, but the"),
        (
            _loader(torch.zeros(96, 15), LABELS),
            r"inputs\[0\] \(15,\) float32.*takes inputs\[0\] \(16,\)",
        ),
        (_loader(torch.zeros(96, 16).double(), LABELS), "float64"),
        (
            _loader(torch.zeros(96, 16), LABELS, LABELS),
            "inputs is a list of 2; expected a tuple of 1",
        ),
        (_loader(torch.zeros(0, 16), LABELS[:0]), "the training loader gives no minibatch"),
        (
            DataLoader([{"x": 1.0}] * 96, 8),
            r"loader is a dictionary, but the model's inputs have no names; .* \(inputs, targets\)",
        ),
        (DataLoader([("one", 1)] * 96, 8), r"inputs\[0\] is a tuple of str; expected a tensor"),
        (DataLoader([(torch.zeros(8, 16), torch.tensor(1))] * 9, None), "a single number"),
        (DataLoader([(torch.zeros(8, 16).to_sparse(), LABELS[:8])], None), "sparse_coo"),
        (
            DataLoader(SAMPLES, batch_sampler=repeat(range(8))),
            "does not say how many samples it has; give its data set or sampler a length, or say",
        ),
    ],
)
def test_what_does_not_suit_the_model_is_refused_before_the_folder_is_claimed(
    captured: CapturedModel, tmp_path: Path, loader: DataLoader, message: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(InvalidInput, match=message):
        PipelineTrainer(placement_file(captured, 0), out=out).fit(loader)
    assert not out.exists()


def test_a_loader_may_use_its_memory_again(captured: CapturedModel) -> None:
    inputs, targets = torch.zeros(8, 16), torch.zeros(8, dtype=torch.int64)
    samples = Unpacker(None, captured)((inputs, targets))
    inputs += 1
    assert not samples.inputs[0].any()


class Slow(Endless):
    """Minibatches that come less often than reports."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number, sample in enumerate(super().__iter__()):
            if number % 8 == 0:
                time.sleep(0.3)
            yield sample


def test_progress_is_told_while_a_loader_is_slow(captured: CapturedModel, tmp_path: Path) -> None:
    seen: list[ProgressReport] = []
    observer = TrainerCallbacks(on_progress=seen.append)
    trainer = PipelineTrainer(placement_file(captured, 0, 1), out=tmp_path, observer=observer)
    trainer.fit(DataLoader(Slow(data_for(captured)), batch_size=8), epochs=1, minibatches=4)
    assert seen
    assert all(0 < report.done <= report.minibatches == 4 for report in seen)
    assert all(0 < report.loss < 5 for report in seen)
    assert all(report.minibatches_per_second > 0 for report in seen)


def test_few_files_are_there_at_any_time_and_none_at_the_end(
    captured: CapturedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a file for every minibatch, of 60 in three runs."""
    monkeypatch.setattr(
        "drlpp.runtime.session.minibatch_streamer.chunk_minibatches", lambda bytes_: 1
    )
    folders: list[Path] = []
    counts: list[int] = []
    advance, close = MinibatchStreamer.advance, MinibatchStreamer.close

    def counting(feed: MinibatchStreamer) -> bool:
        counts.append(len(list(feed.group.folder.glob("stream-*"))))
        return advance(feed)

    def closing(feed: MinibatchStreamer) -> None:
        close(feed)
        folders.append(feed.group.folder)
        assert not list(feed.group.folder.glob("*stream-*"))

    monkeypatch.setattr(MinibatchStreamer, "advance", counting)
    monkeypatch.setattr(MinibatchStreamer, "close", closing)
    stream = DataLoader(Endless(data_for(captured)), batch_size=8)
    document = placement_file(captured, 0, 0, 1, method=STASH)
    trainer = PipelineTrainer(document, out=tmp_path, checkpoint_every=25)
    trainer.fit(stream, epochs=1, minibatches=60)
    assert len(folders) == 3
    assert 5 <= max(counts) < 20


def test_files_of_a_stream_begin_with_one_minibatch_and_double() -> None:
    places = [(0, 0), (1, 0), (1, 1), *((k, i) for k in (2, 3, 4) for i in range(4))]
    assert [Stream("", most=4).place(minibatch) for minibatch in range(15)] == places
    assert Stream("", most=1).place(7) == (7, 0)


class Numbers(Dataset[int]):
    """Numbers that are those of an epoch, with a generator of their own."""

    def __init__(self) -> None:
        self.epoch = -1
        self.noise = torch.Generator()

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return 100 * self.epoch + index

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Told(Sampler[list[int]]):
    """Batches in an order by the epoch that they have been told."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.epoch)
        yield from torch.randperm(16, generator=generator).view(-1, 4).tolist()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def _distributed() -> DistributedSampler[int]:
    return DistributedSampler(Numbers(), num_replicas=1, rank=0)


def _given(loader: DataLoader, epoch: int) -> list[int]:
    batches: list[Tensor] = list(iterate(loader, 1, epoch))
    return torch.cat(batches).tolist()


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(range(16), 4, sampler=_distributed()),
        DataLoader(range(16), batch_sampler=BatchSampler(_distributed(), 4, drop_last=False)),
        DataLoader(range(16), batch_sampler=Told()),
    ],
)
def test_samplers_are_told_the_epoch(loader: DataLoader) -> None:
    first, second = _given(loader, 1), _given(loader, 2)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(16))
    assert _given(loader, 1) == first


@pytest.mark.parametrize("processes", [0, 1])
def test_data_sets_are_told_the_epoch_from_0_also_in_processes_that_stay(processes: int) -> None:
    loader = DataLoader(Numbers(), 4, num_workers=processes, persistent_workers=bool(processes))
    assert _given(loader, 1) == list(range(16))
    assert _given(loader, 3) == list(range(200, 216))


def test_generators_are_found_once() -> None:
    loader = DataLoader(Numbers(), 4, shuffle=True, generator=torch.Generator())
    assert len(generators_of(loader)) == 2
    assert loader.generator in generators_of(loader)


def test_waiting_for_a_minibatch_is_no_part_of_its_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data take 5 s, a forward 2 s."""
    now = 0.0

    def passes(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr("drlpp.runtime.device.clocks.time", clock)
    runner = SimpleNamespace(
        program=SimpleNamespace(receives={}, sends={}, reads_data=True),
        minibatches=SimpleNamespace(wait_for=lambda minibatch: passes(5)),
        forward=lambda part, received: passes(2),
    )
    mailbox = SimpleNamespace(drain=lambda: None)
    executor = Executor(
        runners=[cast(Any, runner)],
        mailbox=cast(Any, mailbox),
        clock=Clock(),
        on_progress=lambda _: None,
        leads=True,
    )
    actions = [Forward(0, 0), Forward(1, 0)]
    times = executor.run(actions)
    assert times == [(5, 7), (12, 14)]
    timeline = [TimedAction(0, a, *t) for a, t in zip(actions, times, strict=True)]
    (use,) = time_use(spans_of(timeline), 5, 14)
    assert use.seconds[Forward.span] == 4
    assert use.seconds[WAITING] == 5
