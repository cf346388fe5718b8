"""Training with a placement: it learns, resumes exactly, and gives back the user's own weights."""

from pathlib import Path

import pytest
import torch

from drlpp.capture import CapturedModel, capture
from drlpp.cluster import Link, local_cluster
from drlpp.errors import InvalidFile, InvalidInput, InvalidPlacement
from drlpp.optimizer_spec import OptimizerSpec
from drlpp.placement import Placement
from drlpp.placement_file import PlacementFile
from drlpp.runtime import TrainingResult, train
from drlpp.task import ModelReference
from drlpp.training_options import Method

DATA = "tests.models:separable"
ADAM = OptimizerSpec(name="adam", options={"lr": 0.01})


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference(name="tests.models:perceptron", options={"layers": 2}))


def placement_file(
    captured: CapturedModel, *accelerators: int, method: Method | None = None
) -> PlacementFile:
    stages = max(accelerators) + 1
    assignment = [
        min(stages * i // len(captured.graph), stages - 1) for i in range(len(captured.graph))
    ]
    return PlacementFile.create(
        captured.reference,
        captured.graph,
        Placement.from_assignment(assignment, accelerators),
        local_cluster(len(accelerators), Link(bandwidth_bytes_per_second=1e9)),
        method=method or Method(),
        optimizer=ADAM,
        found_by="test",
    )


@pytest.mark.parametrize(
    ("accelerators", "method"),
    [
        ((0, 1, 2), Method(policy="pipeoptim")),
        ((0, 0, 1), Method(policy="stash")),
        ((0, 1), Method(schedule="gpipe", policy="sync", microbatches=4)),
    ],
)
def test_a_model_learns_and_its_own_module_scores_the_same(
    captured: CapturedModel, tmp_path: Path, accelerators: tuple[int, ...], method: Method
) -> None:
    document = placement_file(captured, *accelerators, method=method)
    result = train(document, data=DATA, epochs=6, out=tmp_path)
    assert [report.epoch for report in result.epochs] == [1, 2, 3, 4, 5, 6]
    assert result.epochs[-1].loss < 0.7 * result.epochs[0].loss
    assert result.epochs[-1].score is not None
    assert result.epochs[-1].score > 0.6
    assert result.module_score == pytest.approx(result.epochs[-1].score, abs=1e-6)
    module = captured.reference.build().module
    module.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert list(tmp_path.glob("events.out.tfevents*"))


def _same_weights(one: TrainingResult, other: TrainingResult) -> bool:
    return all(torch.equal(value, other.state_dict[name]) for name, value in one.state_dict.items())


@pytest.mark.parametrize(
    "optimizer",
    [ADAM, OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.0, "weight_decay": 0.1})],
)
def test_resumed_training_equals_uninterrupted_training(
    captured: CapturedModel, tmp_path: Path, optimizer: OptimizerSpec
) -> None:
    document = placement_file(captured, 0, 1).model_copy(update={"optimizer": optimizer})
    whole = train(document, data=DATA, epochs=3, out=tmp_path / "whole")
    first = train(document, data=DATA, epochs=2, out=tmp_path / "parts")
    second = train(document, data=DATA, epochs=3, out=tmp_path / "parts", resume=True)
    assert _same_weights(second, whole)
    assert not _same_weights(first, whole)
    assert [report.loss for report in second.epochs] == [report.loss for report in whole.epochs]


def test_another_number_of_workers_is_refused(captured: CapturedModel, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidPlacement, match="6 workers were asked for, but the placement is for 2"
    ):
        train(placement_file(captured, 0, 1), data=DATA, workers=6, out=tmp_path)


def test_a_model_without_a_loss_cannot_be_trained(tmp_path: Path) -> None:
    captured = capture(ModelReference(name="tests.models:without_loss"))
    with pytest.raises(InvalidInput, match="no loss to train with"):
        train(placement_file(captured, 0), data=DATA, out=tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("cifar", "unknown; there is digits"),
        ("digits", "fits models with one input of images"),
        ("tests.models:nothing", "no function 'nothing'"),
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
    (tmp_path / "checkpoint.pt").write_bytes(b"half a che")
    with pytest.raises(InvalidFile, match=r"checkpoint.pt: not a checkpoint"):
        train(document, data=DATA, epochs=2, out=tmp_path, resume=True)
