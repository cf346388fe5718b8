"""Training through a ``DataLoader`` that is killed in an epoch goes on bit for bit."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    TensorDataset,
)

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput
from drlpp.runtime import PipelineTrainer, TrainingResult
from drlpp.schedule.method import Method
from tests.support.training.killing import killed_after_saving
from tests.support.training.loading import data_for, loaders_for, placement_file, same
from tests.support.training.pipelines import assert_state

STASH = Method(policy="stash")


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are random themselves."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = 0.1 * torch.randn_like(self.inputs[index])
        return self.inputs[index] + noise, self.targets[index]


class Flowing(IterableDataset[tuple[Tensor, Tensor]]):
    """The same, one after another, of unknown number."""

    def __init__(self, samples: Noisy) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from (self.samples[index] for index in torch.randperm(len(self.samples)).tolist())


class Shuffling(Sampler[list[int]]):
    """Batches in an order by a generator, under a name of its own."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.chance = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.samples, generator=self.chance)
        yield from order.view(-1, 8).tolist()


class Counting(Sampler[list[int]]):
    """Batches in an order of each epoch's own, that nobody else knows of."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.epochs = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.epochs += 1
        generator = torch.Generator().manual_seed(self.epochs)
        yield from torch.randperm(self.samples, generator=generator).view(-1, 8).tolist()


def noisy(captured: CapturedModel) -> Noisy:
    train = data_for(captured).train
    return Noisy(train.inputs[0], train.targets)


LOADERS: dict[str, Callable[[Noisy], DataLoader]] = {
    "with a generator": lambda samples: DataLoader(
        samples, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
    "in processes that stay": lambda samples: DataLoader(
        samples, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True
    ),
    "iterable": lambda samples: DataLoader(Flowing(samples), batch_size=8),
    "by the epoch": lambda samples: DataLoader(
        samples, batch_size=8, sampler=DistributedSampler(samples, num_replicas=1, rank=0)
    ),
    "by a batch sampler's generator": lambda samples: DataLoader(
        samples, batch_sampler=Shuffling(len(samples))
    ),
}


def _killed_and_resumed(
    train: Callable[..., TrainingResult], tmp_path: Path, saved: int
) -> tuple[TrainingResult, TrainingResult]:
    """An uninterrupted training, and one that was killed after so many checkpoints."""
    whole = train(out=tmp_path / "whole", checkpoint_every=5)
    with killed_after_saving(saved):
        train(out=tmp_path / "parts", checkpoint_every=5)
    return whole, train(out=tmp_path / "parts", checkpoint_every=5, resume=True)


def test_the_weights_are_those_of_samples_in_memory(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """Two epochs of 12 minibatches, checkpoints every 5."""
    document = placement_file(captured, 0, 0, 1, method=Method(policy="pipeoptim"))
    data = data_for(captured)

    def train(*, out: Path, **options: bool) -> TrainingResult:
        given = (data,) if out.name == "whole" else loaders_for(data)
        return PipelineTrainer(document, out=out, **options).fit(*given, epochs=2)

    whole, rest = _killed_and_resumed(train, tmp_path, saved=4)
    assert same(rest.state_dict, whole.state_dict)
    assert [report.loss for report in rest.epochs] == [report.loss for report in whole.epochs]


@pytest.mark.parametrize(
    ("kind", "saved"),
    [
        ("in processes that stay", 3),
        *(
            pytest.param(kind, 4, marks=pytest.mark.slow)
            for kind in ("iterable", "by the epoch", "by a batch sampler's generator")
        ),
    ],
)
def test_random_samples_and_orders_are_the_same_again(
    captured: CapturedModel, tmp_path: Path, kind: str, saved: int
) -> None:
    document = placement_file(captured, 0, 1, method=STASH)

    def train(**options: Path | bool) -> TrainingResult:
        loader = LOADERS[kind](noisy(captured))
        return PipelineTrainer(document, **options).fit(loader, epochs=2, minibatches=12)

    whole, rest = _killed_and_resumed(train, tmp_path, saved)
    assert same(rest.state_dict, whole.state_dict)
    assert whole.epochs[0].loss != whole.epochs[1].loss


@pytest.mark.parametrize(("samples", "drop_last"), [(93, True), (93, False)])
def test_a_shuffling_loader_gives_the_weights_of_a_plain_loop_over_it(
    captured: CapturedModel, tmp_path: Path, samples: int, drop_last: bool
) -> None:
    """Also when it is resumed within the second epoch, with a generator that begins anew."""
    data = data_for(captured).train
    dataset = TensorDataset(data.inputs[0][:samples], data.targets[:samples])

    def shuffling() -> DataLoader:
        generator = torch.Generator().manual_seed(7)
        return DataLoader(dataset, 8, shuffle=True, drop_last=drop_last, generator=generator)

    task = captured.reference.build()
    document = placement_file(captured, 0, method=Method(policy="sync"))
    options = {"out": tmp_path, "checkpoint_every": 5}
    with killed_after_saving(4):
        PipelineTrainer(document, **options).fit(shuffling(), epochs=4)
    found = PipelineTrainer(document, resume=True, **options).fit(shuffling(), epochs=4)

    task.module.load_state_dict(captured.state)
    loader = shuffling()
    optimizer = document.optimizer.find()(task.module.parameters(), **document.optimizer.complete)
    assert task.loss is not None
    for _ in range(4):
        for inputs, targets in loader:
            if len(inputs) == 8:
                optimizer.zero_grad()
                task.loss(task.module(inputs), targets).backward()
                optimizer.step()
    assert_state(found.state_dict, task.module, rtol=1e-5, atol=1e-6)


def test_a_loader_that_goes_on_elsewhere_is_refused(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """Killed within the second epoch, which a new loader takes for its first."""
    document = placement_file(captured, 0, 1, method=STASH)

    def train(**options: Path | bool | int) -> TrainingResult:
        samples = noisy(captured)
        loader = DataLoader(samples, batch_sampler=Counting(len(samples)))
        return PipelineTrainer(document, out=tmp_path, **options).fit(
            loader, epochs=2, minibatches=12
        )

    with killed_after_saving(4):
        train(checkpoint_every=5)
    with pytest.raises(InvalidInput, match="gives other minibatches in epoch 2 than when"):
        train(resume=True)


def test_another_kind_of_loader_is_refused(captured: CapturedModel, tmp_path: Path) -> None:
    document = placement_file(captured, 0, method=STASH)
    with killed_after_saving(1):
        PipelineTrainer(document, out=tmp_path).fit(
            LOADERS["with a generator"](noisy(captured)), epochs=2
        )
    trainer = PipelineTrainer(document, out=tmp_path, resume=True)
    with pytest.raises(InvalidInput, match=r"had 1 generators of its own, this one has 0"):
        trainer.fit(LOADERS["iterable"](noisy(captured)), epochs=2, minibatches=12)
    samples = data_for(captured).train
    fewer = TensorDataset(samples.inputs[0][:40], samples.targets[:40])
    with pytest.raises(InvalidInput, match="run with minibatches = 12; it cannot be resumed"):
        trainer.fit(DataLoader(fewer, batch_size=8), epochs=2)
