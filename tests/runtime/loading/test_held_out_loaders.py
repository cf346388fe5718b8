"""Held-out loaders: the mean is over their samples, whatever minibatches they come in."""

from collections.abc import Callable, Iterator
from itertools import islice, repeat
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import DataError, InvalidInput
from drlpp.racing.plain import held_out_loss
from drlpp.runtime import PipelineTrainer
from drlpp.runtime.training.held_out import HeldOutCount
from drlpp.runtime.training.training_data import LoadedData
from drlpp.schedule.method import Method
from drlpp.specs.data import Loaders
from tests.support.training.loading import data_for, loaders_for, placement_file


def _half(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return batch[0][::2], batch[1][::2]


class Parted(IterableDataset[tuple[Tensor, Tensor]]):
    """Held-out samples, a part of them in each process, whose last minibatch is small."""

    def __init__(self, samples: TensorDataset) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        here = get_worker_info()
        first, step = (0, 1) if here is None else (here.id, here.num_workers)
        yield from (self.samples[index] for index in range(first, len(self.samples), step))


HELD_OUT: dict[str, Callable[[TensorDataset], DataLoader]] = {
    "larger minibatches": lambda test: DataLoader(test, 20),
    "smaller minibatches": lambda test: DataLoader(test, 3),
    "processes": lambda test: DataLoader(Parted(test), 8, num_workers=2),
    "minibatches of several sizes": lambda test: DataLoader(
        test, batch_sampler=[[0, 1, 2], list(range(3, 17)), [17], list(range(18, len(test)))]
    ),
    "twice": lambda test: DataLoader(
        test, 4, collate_fn=lambda samples: default_collate(2 * samples)
    ),
    "unpack": lambda test: DataLoader(test, 16),
}


@pytest.mark.parametrize("kind", HELD_OUT)
def test_the_mean_is_over_held_out_samples_in_whatever_minibatches(
    captured: CapturedModel, tmp_path: Path, kind: str
) -> None:
    """Of the pipeline and of plain PyTorch, which read them each in a way of its own."""
    train, test = (TensorDataset(part.inputs[0], part.targets) for part in data_for(captured))
    loader, unpack = HELD_OUT[kind](test), _half if kind == "unpack" else None
    trained, document = DataLoader(train, 16 if unpack else 8), placement_file(captured, 0, 1)
    found = PipelineTrainer(document, out=tmp_path).fit(trained, loader, epochs=1, unpack=unpack)
    task = captured.reference.build()
    task.module.load_state_dict(found.state_dict)
    batches = map(unpack, loader) if unpack else loader
    inputs, targets = (torch.cat(values) for values in zip(*batches, strict=True))
    assert task.loss is not None
    wanted = pytest.approx(task.loss(task.module(inputs), targets).item(), rel=1e-5)
    assert found.epochs[0].held_out_loss == wanted
    loaders = Loaders(trained, loader)
    data = LoadedData("some", loaders, unpack, captured=captured, seed=0, note=print)
    assert data.held_out_count.samples == len(inputs)
    assert held_out_loss(task.module, task, data, Method()) == wanted


class Promising(Sampler[int]):
    """Gives so many samples, and says that it gives 24."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return 24

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.samples))


@pytest.mark.parametrize(("samples", "told"), [(16, "fewer"), (20, "fewer"), (25, "more")])
def test_held_out_samples_of_another_number_than_their_length_says_are_told(
    captured: CapturedModel, samples: int, told: str
) -> None:
    train, _ = loaders_for(data_for(captured))
    loaders = Loaders(train, DataLoader(train.dataset, 8, sampler=Promising(samples)))
    data = LoadedData("some", loaders, None, captured=captured, seed=0, note=print)
    with pytest.raises(DataError, match=f"gives {told} samples than the 24 that are expected"):
        # No more than the pipeline reads.
        list(islice(data.held_out(), data.held_out_count.minibatches))


def test_held_out_samples_without_end_are_refused(captured: CapturedModel, tmp_path: Path) -> None:
    """Where the data set has a length, and what draws from it has not."""
    train, held_out = loaders_for(data_for(captured))
    endless = DataLoader(held_out.dataset, 8, sampler=repeat(0))
    trainer = PipelineTrainer(placement_file(captured, 0, 1), out=tmp_path)
    with pytest.raises(InvalidInput, match="held-out loader does not say how many"):
        trainer.fit(train, endless, epochs=1)


@given(samples=st.integers(1, 60), batch_size=st.integers(1, 12), seed=st.integers(0, 99))
def test_means_are_those_over_all_samples(samples: int, batch_size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(samples, generator=generator, dtype=torch.float64)
    count = HeldOutCount(samples, batch_size)
    order = count.order
    assert order.shape[1] == batch_size
    assert set(order.flatten().tolist()) == set(range(samples))
    scores = [values[indices] for indices in order]
    assert count.minibatches == len(scores)
    losses = [minibatch.mean().item() for minibatch in scores]
    assert count.mean_loss(losses) == pytest.approx(values.mean().item())
    assert count.mean_score(scores) == pytest.approx(values.mean().item())
