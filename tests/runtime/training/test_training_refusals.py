"""What training refuses: options, data, checkpoints and folders, told in words."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import InvalidFile, InvalidInput, InvalidPlacement
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession, PipelineTrainer, TrainerCallbacks
from drlpp.runtime.ipc.tensor_file import write_checkpoint
from drlpp.specs.data import Data, Samples, load_data
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.loading import DATA, placement_file, train


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))


def test_every_option_of_training_is_checked(captured: CapturedModel, tmp_path: Path) -> None:
    document = placement_file(captured, 0)
    with pytest.raises(InvalidInput, match="checkpoint_every is -1; at least 0 is needed"):
        train(document, data=DATA, out=tmp_path, checkpoint_every=-1)
    with pytest.raises(InvalidInput, match="synchronous_epochs is -2"):
        train(document, data=DATA, out=tmp_path, synchronous_epochs=-2)
    with pytest.raises(InvalidInput, match="a time limit of inf s was given"):
        train(document, data=DATA, out=tmp_path, timeout_seconds=float("inf"))
    with pytest.raises(InvalidInput, match="a time limit of 5 s was given; expected a number"):
        train(document, data=DATA, out=tmp_path, timeout_seconds="5")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "stash"}, r"method is 'stash'; .*choose_method"),
        ({"optimizer": "adam"}, r"optimizer is 'adam'; .* OptimizerSpec\.parse"),
        (
            {"learning_rate": 0.1},
            r"learning_rate is 0\.1; .*parse\(\"cosineannealing\", T_max=10\); a rate is an option",
        ),
        ({"early_stopping": 3}, r"early_stopping is 3; .* EarlyStopping\(patience=3\)"),
        ({"observer": print}, r"observer is .*; .* TrainerCallbacks\("),
        ({"workers": "1"}, "workers is '1'; a whole number"),
    ],
)
def test_what_the_command_line_takes_as_words_has_a_class_here(
    captured: CapturedModel, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        PipelineTrainer(placement_file(captured, 0), out=tmp_path, **options)


def test_a_default_that_is_given_is_the_same_run(captured: CapturedModel, tmp_path: Path) -> None:
    document = placement_file(captured, 0)
    options: dict[str, Any] = {"data": DATA, "out": tmp_path}
    short = {
        "optimizer": OptimizerSpec.parse("adam"),
        "learning_rate": LearningRateSchedule.parse("step", step_size=2),
    }
    train(document, epochs=1, **options, **short)
    given = {
        "optimizer": OptimizerSpec.parse("adam", lr=0.0005, betas=[0.9, 0.999]),
        "learning_rate": LearningRateSchedule.parse("steplr", step_size=2, gamma=0.1),
    }
    train(document, epochs=2, resume=True, **options, **given)
    other = {**given, "optimizer": OptimizerSpec.parse("adam", lr=0.001)}
    with pytest.raises(InvalidInput, match=r"optimizer = .* cannot be resumed with .*'lr': 0\.001"):
        train(document, epochs=3, resume=True, **options, **other)
    other = {**given, "learning_rate": LearningRateSchedule.parse("step", step_size=2, gamma=0.2)}
    with pytest.raises(InvalidInput, match=r"learning_rate = .* resumed with .*'gamma': 0\.2"):
        train(document, epochs=3, resume=True, **options, **other)


@pytest.mark.parametrize("given", ["1.5", 1.5, None])
def test_numbers_have_to_be_whole(captured: CapturedModel, tmp_path: Path, given: Any) -> None:
    out = tmp_path / "out"
    with pytest.raises(InvalidInput, match=r"epochs is .*; a whole number is expected"):
        train(placement_file(captured, 0), data=DATA, out=out, epochs=given)
    with pytest.raises(InvalidInput, match=r"checkpoint_every is .*; a whole number is expected"):
        train(placement_file(captured, 0), data=DATA, out=out, checkpoint_every=given)
    assert not out.exists()


def test_an_epoch_that_no_memory_holds_is_refused(captured: CapturedModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    trainer = PipelineTrainer(placement_file(captured, 0), out=out)
    with pytest.raises(InvalidInput, match=r"1000000000 minibatches in 1 parts through 1 stages"):
        trainer.fit("tests.support.models.small:separable_without_end", minibatches=10**9)
    assert not out.exists()


def test_no_more_workers_than_a_machine_holds() -> None:
    """A placement's cluster may have thousands of accelerators, each of which is a process."""
    with pytest.raises(InvalidInput, match=r"16384 workers were asked for, .* up to \d+ are"):
        ClusterSession("no such model: it is told before one is captured", 16384)
    with pytest.raises(InvalidInput, match="1000000000000 workers were asked for"):
        ClusterSession("alexnet", 10**12)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 0.5])
def test_other_seeds_are_refused(captured: CapturedModel, tmp_path: Path, seed: Any) -> None:
    out = tmp_path / "out"
    with pytest.raises(InvalidInput, match=r"seed is .*; a whole number from"):
        train(placement_file(captured, 0), data=DATA, epochs=1, seed=seed, out=out)
    assert not out.exists()


INPUTS, TARGETS = torch.zeros(16, 16), torch.zeros(16, dtype=torch.int64)
SAMPLES = Samples((INPUTS,), TARGETS)
LOADER = DataLoader(TensorDataset(INPUTS, TARGETS), 8)
NO_SAMPLES = r"to (train|test) is no Samples\(\(inputs, ...\), targets\)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([(INPUTS, TARGETS)],), "data to train on is a list; expected a name"),
        ((TensorDataset(INPUTS, TARGETS),), r"is a TensorDataset; expected .* DataLoader"),
        (((INPUTS, TARGETS),), "is a tuple; expected"),
        ((None,), "is a NoneType; expected"),
        ((LOADER, [(INPUTS, TARGETS)]), "held_out is a list; expected a torch"),
        ((Data(Samples(INPUTS, TARGETS), SAMPLES),), NO_SAMPLES),  # type: ignore[arg-type]
        ((Data(SAMPLES, (INPUTS, TARGETS)),), NO_SAMPLES),  # type: ignore[arg-type]
        ((Data(SAMPLES, None),), NO_SAMPLES),  # type: ignore[arg-type]
        ((Data(SAMPLES, Samples((INPUTS,), torch.tensor(1))),), NO_SAMPLES),
        ((Data(SAMPLES, Samples((INPUTS,), [1])),), NO_SAMPLES),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_data_is_refused(
    captured: CapturedModel, tmp_path: Path, given: tuple[Any, ...], message: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(InvalidInput, match=message):
        PipelineTrainer(placement_file(captured, 0), out=out).fit(*given)
    assert not out.exists()


def test_another_number_of_workers_is_refused(captured: CapturedModel, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidPlacement, match="6 workers were asked for, but the placement is for 2"
    ):
        train(placement_file(captured, 0, 1), data=DATA, workers=6, out=tmp_path)


def test_a_model_without_a_loss_cannot_be_trained(tmp_path: Path) -> None:
    captured = capture(ModelReference.named("tests.support.models.small:without_loss"))
    with pytest.raises(InvalidInput, match="no loss to train with"):
        train(placement_file(captured, 0), data=DATA, out=tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("cifar", "unknown; there is digits"),
        ("digits", "fits models with one input of images"),
        ("tests.support.models.small:nothing", "no function 'nothing'"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    captured: CapturedModel, tmp_path: Path, data: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        train(placement_file(captured, 0), data=data, out=tmp_path)


def test_a_damaged_checkpoint_is_told(captured: CapturedModel, tmp_path: Path) -> None:
    document = placement_file(captured, 0)
    train(document, data=DATA, epochs=1, out=tmp_path)
    checkpoint = tmp_path / "checkpoint.safetensors"
    for damaged in (b"half a che", checkpoint.read_bytes()[:-1]):
        checkpoint.write_bytes(damaged)
        with pytest.raises(InvalidFile, match=r"checkpoint.safetensors: not a checkpoint"):
            train(document, data=DATA, epochs=2, out=tmp_path, resume=True)


def test_a_checkpoint_of_something_else_is_told(captured: CapturedModel, tmp_path: Path) -> None:
    document = placement_file(captured, 0)
    train(document, data=DATA, epochs=1, out=tmp_path)
    write_checkpoint(tmp_path / "checkpoint.safetensors", {"model": {}})
    with pytest.raises(InvalidFile, match="not a checkpoint of drlpp train"):
        train(document, data=DATA, epochs=2, out=tmp_path, resume=True)


def test_a_checkpoint_of_an_older_version_is_told(captured: CapturedModel, tmp_path: Path) -> None:
    document = placement_file(captured, 0)
    train(document, data=DATA, epochs=1, out=tmp_path)
    (tmp_path / "checkpoint.safetensors").rename(tmp_path / "checkpoint.pt")
    with pytest.raises(InvalidFile, match=r"checkpoint.pt: a checkpoint of an older drlpp"):
        train(document, data=DATA, epochs=2, out=tmp_path, resume=True)


def test_no_other_training_comes_into_the_folder_of_one_that_runs(
    captured: CapturedModel, tmp_path: Path
) -> None:
    document = placement_file(captured, 0)
    refused = []

    def another() -> None:
        for resume in (False, True):
            with pytest.raises(InvalidInput, match="another process writes there"):
                train(document, out=tmp_path, epochs=1, seed=1, resume=resume)
            refused.append(resume)

    train(document, out=tmp_path, epochs=1, observer=TrainerCallbacks(on_begin=another))
    assert refused == [False, True]
    train(document, out=tmp_path, epochs=2, resume=True)


def test_other_samples_in_memory_are_refused(captured: CapturedModel, tmp_path: Path) -> None:
    """Of the same number, shapes and types; held-out samples may be others."""
    document = placement_file(captured, 0)
    data = load_data(DATA, captured.task.inputs, captured.task.targets)

    def fit(inputs: Tensor, test: Samples, epochs: int) -> None:
        samples = Data(Samples((inputs,), data.train.targets), test)
        trainer = PipelineTrainer(document, out=tmp_path, resume=epochs > 1)
        trainer.fit(samples, epochs=epochs)

    inputs, other = data.train.inputs[0], data.train.inputs[0].clone()
    other[17, 3] += 1
    fit(inputs, data.test, 1)
    with pytest.raises(InvalidInput, match=r"a run with samples_fingerprint = '\w+'; it cannot"):
        fit(other, data.test, 2)
    fit(inputs.clone(), Samples(data.test.inputs, data.test.targets.flip(0)), 2)


def test_a_folder_whose_name_is_no_utf8_is_refused(captured: CapturedModel, tmp_path: Path) -> None:
    out = tmp_path / "caf\udce9"
    with pytest.raises(InvalidInput, match="has a name that is no UTF-8"):
        train(placement_file(captured, 0), data=DATA, out=out)
    assert not out.exists()
