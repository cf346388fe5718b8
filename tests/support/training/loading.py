"""Data and loaders for tests of training through a ``DataLoader``."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Sampler, TensorDataset

from drlpp.capturing.capture import CapturedModel
from drlpp.placement.placement_file import PlacementFile
from drlpp.runtime import PipelineTrainer, TrainingResult
from drlpp.schedule.method import Method
from drlpp.specs.data import Data, load_data
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

DATA = "tests.support.models.small:separable"


def placement_file(
    captured: CapturedModel, *accelerators: int, method: Method | None = None
) -> PlacementFile:
    return file_of(captured, in_a_row(captured.graph, *accelerators), method)


def train(
    document: PlacementFile, *, data: str = DATA, epochs: int = 5, **options: Any
) -> TrainingResult:
    return PipelineTrainer(document, **options).fit(data, epochs=epochs)


def data_for(captured: CapturedModel) -> Data:
    return load_data(DATA, captured.task.inputs, captured.task.targets)


class OrderOfMemory(Sampler[int]):
    """The order that data in memory has: a permutation by the seed that torch has been given."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(torch.initial_seed())
        yield from torch.randperm(self.samples, generator=generator).tolist()


def loaders_for(data: Data, batch_size: int = 8, workers: int = 0) -> tuple[DataLoader, DataLoader]:
    """Give what ``data`` gives, in the same order."""
    train = TensorDataset(*data.train.inputs, data.train.targets)
    test = TensorDataset(*data.test.inputs, data.test.targets)
    batches = BatchSampler(OrderOfMemory(len(train)), batch_size, drop_last=False)
    return (
        DataLoader(train, batch_sampler=batches, num_workers=workers),
        DataLoader(test, batch_size=batch_size, num_workers=workers),
    )


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(value, other[name]) for name, value in one.items())
