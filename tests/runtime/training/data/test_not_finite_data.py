"""Values in the data that are no numbers are named where they do harm, and only there."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import DataError, NotFinite
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.runtime import PipelineTrainer, TrainerCallbacks
from drlpp.runtime.loading.finite_data import bad_samples, is_finite
from drlpp.specs.data import Data, Samples
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

TINY = OptimizerSpec(name="sgd", options={"lr": 1e-6, "momentum": 0.0})


class Sums(nn.Module):
    """Of two inputs; what is no number is masked ``early``, ``late`` (no gradient is), or never."""

    def __init__(self, masked: str) -> None:
        super().__init__()
        self.masked = masked
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        if self.masked == "early":
            left = left.nan_to_num()
        hidden = self.first(left)
        if self.masked == "late":
            hidden = torch.where(hidden.isnan(), 0.0, hidden)
        return self.head(torch.relu(hidden) + self.second(right)).squeeze(1)


def sums(masked: str = "never") -> Task:
    inputs = torch.randn(8, 4), torch.randn(8, 4)
    return Task(Sums(masked), inputs, torch.randn(8), F.mse_loss)


def captured(masked: str) -> CapturedModel:
    return capture(ModelReference.named(f"{__name__}:sums", masked=masked))


def samples(count: int) -> Samples:
    generator = torch.Generator().manual_seed(7)
    left, right = (torch.randn(count, 4, generator=generator) for _ in range(2))
    return Samples((left, right), left.sum(1))


def data_with(*bad: tuple[str, int, float]) -> Data:
    """Of 12 minibatches, with 2 bad values of a sample in ``left``, ``right``, else 1."""
    data = Data(samples(96), samples(16))
    for name, sample, value in bad:
        train, test = data.train, data.test
        tensors = {
            "left": train.inputs[0][:, :2],
            "right": train.inputs[1][:, 1:3],
            "targets": train.targets,
            "held out": test.inputs[1][:, 1:3],
        }
        tensors[name][sample] = value
    return data


def minibatch_of(sample: int, epoch: int = 1) -> int:
    """With the sample, counted from 1 in the epoch; independent of the code under test."""
    generator = torch.Generator().manual_seed(epoch)
    order = torch.randperm(96, generator=generator)
    return int((order == sample).nonzero()) // 8 + 1


def in_order(data: Data) -> tuple[DataLoader, DataLoader]:
    train, test = (TensorDataset(*part.inputs, part.targets) for part in data)
    return DataLoader(train, 8), DataLoader(test, 4)


def train(
    out: Path,
    data: Data,
    masked: str = "never",
    *,
    loaded: bool = False,
    optimizer: OptimizerSpec = TINY,
    epochs: int = 2,
    **options: object,
) -> list[str]:
    """What is noted of a training on two workers."""
    model = captured(masked)
    document = file_of(model, in_a_row(model.graph, 0, 1), optimizer=optimizer)
    notes: list[str] = []
    observer = TrainerCallbacks(on_note=notes.append)
    trainer = PipelineTrainer(document, out=out, observer=observer, **options)  # type: ignore
    if loaded:
        trainer.fit(*in_order(data), epochs=epochs)
    else:
        trainer.fit(data, epochs=epochs)
    return notes


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (("left", 50, torch.nan), r"2 of 32 values of inputs\[0\] are not finite, the first nan"),
        (("right", 50, -torch.inf), r"2 of 32 values of inputs\[1\] are .*, the first -inf"),
        (("targets", 50, torch.inf), r"1 of 8 values of targets are not finite, the first inf"),
    ],
)
def test_bad_values_in_memory_are_told_with_their_sample(
    tmp_path: Path, bad: tuple[str, int, float], text: str
) -> None:
    number = minibatch_of(50)
    with pytest.raises(
        DataError,
        match=rf"^the data to train on is not finite in minibatch {number} of epoch 1, where "
        rf"{text}, of sample 50 \(counted from 0\), and the loss of minibatch {number} is "
        r".*; mend or leave out .* has all up to \d+ minibatches of epoch 1",
    ):
        train(tmp_path, data_with(bad), checkpoint_every=1)


def test_the_first_of_several_bad_minibatches_is_named(tmp_path: Path) -> None:
    bad = [("left", 11, torch.nan), ("right", 50, torch.nan), ("left", 90, torch.nan)]
    number = min(minibatch_of(sample) for _, sample, _ in bad)
    with pytest.raises(DataError, match=rf"in minibatch {number} of epoch 1, .*nothing had been"):
        train(tmp_path, data_with(*bad))


def test_bad_values_of_a_loader_are_told_with_their_place(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"in minibatch 7 of epoch 1, where 2 of 32 values of inputs\[1\] are not finite, the "
        r"first nan, of its sample 2 \(counted from 0\), and the loss of minibatch 7 is nan",
    ):
        train(tmp_path, data_with(("right", 50, torch.nan)), loaded=True)


@pytest.mark.parametrize("loaded", [False, True])
def test_bad_values_that_poison_a_gradient_are_found_behind_a_finite_loss(
    tmp_path: Path, loaded: bool
) -> None:
    """0 times nan is nan: weights are, and then the loss of a minibatch that has no bad value."""
    number = 7 if loaded else minibatch_of(50)
    with pytest.raises(
        DataError, match=rf"in minibatch {number} of epoch 1, where 2 of .* and "
    ) as e:
        train(tmp_path, data_with(("left", 50, torch.nan)), "late", loaded=loaded)
    found = re.search(
        r"the loss of minibatch (\d+) is nan|has values that are not finite", str(e.value)
    )
    assert found is not None
    assert found[1] is None or int(found[1]) > number


@pytest.mark.parametrize("loaded", [False, True])
def test_bad_values_that_the_model_masks_are_nobodys_business(tmp_path: Path, loaded: bool) -> None:
    data = data_with(("left", 3, torch.nan), ("left", 50, torch.nan))
    assert train(tmp_path, data, "early", loaded=loaded) == []


@pytest.mark.parametrize("loaded", [False, True])
def test_a_training_that_diverges_on_masked_values_has_diverged(
    tmp_path: Path, loaded: bool
) -> None:
    """Not the samples did that: there were some before."""
    data = data_with(*(("left", sample, torch.nan) for sample in range(0, 96, 8)))
    train(tmp_path, data, "early", loaded=loaded, epochs=1)
    huge = OptimizerSpec(name="sgd", options={"lr": 0.6, "momentum": 0.0})
    with pytest.raises(
        NotFinite,
        match=r"^training diverged in epoch \d+: .* may help; the data is not finite either, but "
        r"did no harm before: in minibatch \d of epoch 1, where [24] of 32 values of inputs\[0\]",
    ):
        train(tmp_path / "huge", data, "early", loaded=loaded, optimizer=huge, epochs=8)


def test_masked_values_do_not_hide_others(tmp_path: Path) -> None:
    """The model masks its first input, not its second."""
    data = data_with(*(("left", sample, torch.nan) for sample in range(0, 96, 8)))
    data.train.inputs[1][90, 0] = torch.nan
    with pytest.raises(
        DataError, match=r"minibatch 12 of epoch 1, where 1 of 32 values of inputs\[1\]"
    ):
        train(tmp_path, data, "early", loaded=True)


@pytest.mark.parametrize("loaded", [False, True])
def test_bad_held_out_values_are_noted_and_training_goes_on(tmp_path: Path, loaded: bool) -> None:
    notes = train(tmp_path, data_with(("held out", 13, torch.nan)), loaded=loaded, epochs=1)
    whose = "its sample 5" if loaded else "sample 13"
    assert notes == [
        "the held-out data is not finite in minibatch 2, where 2 of 32 values of inputs[1] are not "
        f"finite, the first nan, of {whose} (counted from 0); so the held-out loss or score of "
        "epoch 1 is not finite either"
    ]


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        (torch.full((3, 2), 3e38), True),  # Their sum is infinite.
        (torch.full((3, 2), 60000.0, dtype=torch.float16), True),
        (torch.tensor([[1.0, torch.inf], [1.0, -torch.inf], [0.0, 0.0]]), False),
        (torch.tensor([[1.0, torch.nan], [1.0, 2.0], [torch.inf, 0.0]]), False),
        (torch.tensor([[1 + 2j, complex(0, torch.nan)]]), False),
        (torch.tensor([torch.nan, 1.0]), False),
        (torch.tensor([[2**62, 2**62]]), True),
        (torch.tensor([[True, False]]), True),
        (torch.zeros(0, 4), True),
    ],
)
def test_finite_tensors_are_told_from_others(values: Tensor, finite: bool) -> None:
    assert is_finite(values) == finite
    expected = [not sample.isfinite().all() for sample in values]
    assert bad_samples(values).tolist() == expected
