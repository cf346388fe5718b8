"""What a loader is told of the epoch, and where its generators are found."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    Sampler,
    Subset,
)

from drlpp.runtime.loading.loaders import generators_of, iterate


class Numbers(Dataset[int]):
    """Numbers that are those of an epoch, with a generator where no one would look first."""

    def __init__(self) -> None:
        self.epoch = -1
        self.options: dict[str, list[object]] = {"noise": [torch.Generator()], "self": [self]}

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


def test_generators_are_found_once_wherever_they_are() -> None:
    loader = DataLoader(Subset(Numbers(), range(16)), 4, shuffle=True, generator=torch.Generator())
    assert len(generators_of(loader)) == 2
    assert loader.generator in generators_of(loader)
