"""What training refuses, before the folder of the run is claimed: a row for every refusal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession, EarlyStopping, PipelineTrainer, TrainerCallbacks
from drlpp.specs.data import Data, Samples, load_data
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.loading import DATA, placement_file, train

INPUTS, TARGETS = torch.zeros(16, 16), torch.zeros(16, dtype=torch.int64)
SAMPLES = Samples((INPUTS,), TARGETS)
LOADER = DataLoader(TensorDataset(INPUTS, TARGETS), 8)
WHOLE = "a whole number"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"checkpoint_every": -1}, "checkpoint_every is -1; at least 0"),
        ({"checkpoint_every": 1.5}, f"checkpoint_every is 1.5; {WHOLE}"),
        ({"synchronous_epochs": -2}, "synchronous_epochs is -2"),
        ({"epochs": "1.5"}, f"epochs is '1.5'; {WHOLE}"),
        ({"epochs": 0}, "epochs is 0; at least 1"),
        ({"timeout_seconds": float("inf")}, "a time limit of inf s"),
        ({"timeout_seconds": "5"}, "a time limit of 5 s"),
        ({"method": "stash"}, r"method is 'stash'; .*choose_method"),
        ({"optimizer": "adam"}, r"optimizer is 'adam'; .* OptimizerSpec\.parse"),
        ({"learning_rate": 0.1}, r"learning_rate is 0\.1; .*a rate is an option"),
        ({"early_stopping": 3}, r"early_stopping is 3; .* EarlyStopping\(patience=3\)"),
        ({"observer": print}, r"observer is .*; .* TrainerCallbacks\("),
        ({"elastic": 3}, r"elastic is 3; .*Elastic\(2, 4\)"),
        ({"seed": 2**64}, f"seed is .*; {WHOLE}"),
        ({"seed": 0.5}, f"seed is .*; {WHOLE}"),
        ({"data": "cifar"}, "unknown; there is digits"),
        ({"data": "digits"}, "fits models with one input of images"),
        ({"data": "tests.support.models.small:nothing"}, "no function 'nothing'"),
        ({"data": [(INPUTS, TARGETS)]}, "data to train on is a list; expected a name"),
        ({"data": LOADER, "held_out": [(INPUTS, TARGETS)]}, "held_out is a list; expected"),
        ({"data": DATA, "held_out": LOADER}, "held_out belongs to a DataLoader"),
        ({"data": DATA, "minibatches": 3}, r"minibatches belongs to loaders; tests\.support"),
        ({"data": LOADER, "minibatches": 0}, "minibatches is 0; at least 1"),
        ({"data": LOADER, "minibatches": 13}, "is 13, but the training loader gives 2 of 8"),
        ({"data": Data(SAMPLES, SAMPLES), "unpack": print}, "unpack belongs to loaders"),
        ({"data": LOADER, "unpack": lambda batch: batch["x"]}, "unpack raised TypeError"),
        ({"data": Data(Samples(INPUTS, TARGETS), SAMPLES)}, "inputs is a Tensor; expected"),
        ({"data": Data(SAMPLES, (INPUTS, TARGETS))}, "to test is a tuple; expected Samp"),  # type: ignore[arg-type]
        (
            {"data": Data(SAMPLES, Samples((INPUTS,), torch.tensor(1)))},
            "targets a single number, but",
        ),
        (
            {"data": "tests.support.models.small:separable_without_end", "minibatches": 10**9},
            "1000000000 minibatches in 1 parts through 1 stages",
        ),
        ({"data": LOADER, "early_stopping": EarlyStopping()}, "needs held-out data"),
    ],
)
def test_what_is_given_is_checked(
    captured: CapturedModel, tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    out = tmp_path / "out"
    of_fit = {
        name: options.pop(name)
        for name in ("held_out", "epochs", "minibatches", "unpack")
        if name in options
    }
    data = options.pop("data", DATA)
    with pytest.raises((InvalidInput, InvalidPlacement), match=told):
        PipelineTrainer(placement_file(captured, 0), out=out, **options).fit(data, **of_fit)
    assert not out.exists()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: EarlyStopping(patience=0), "field 'patience': .* or equal to 1, found 0"),
        (lambda: EarlyStopping(monitor="accuracy"), "field 'monitor': .* 'score' or 'loss'"),
        (lambda: EarlyStopping(3, delta=1), "field 'delta'.*; it has patience, min_delta and mon"),
        (lambda: ClusterSession("no such model", 16384), "16384 workers .* up to"),
    ],
)
def test_other_calls_are_checked(call: Callable[[], object], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        call()


def test_models_that_cannot_be_trained_or_monitored(tmp_path: Path) -> None:
    captured = capture(ModelReference.named("tests.support.models.small:without_loss"))
    with pytest.raises(InvalidInput, match="no loss to train with"):
        train(placement_file(captured, 0), out=tmp_path / "1")
    captured = capture(ModelReference.named("tests.exporting.decoder:decoder"))
    stopping = EarlyStopping(monitor="score")
    trainer = PipelineTrainer(
        placement_file(captured, 0), out=tmp_path / "2", early_stopping=stopping
    )
    task = captured.task
    loader = DataLoader(TensorDataset(*task.inputs, task.targets), task.batch_size)
    with pytest.raises(InvalidInput, match=r"monitors the score, but model .* has none"):
        trainer.fit(loader, loader)


def test_a_run_is_resumed_with_what_decided_its_result(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """A default that is given is the same; held-out samples may be others."""
    document = placement_file(captured, 0)
    given = {
        "optimizer": OptimizerSpec.parse("adam"),
        "learning_rate": LearningRateSchedule.parse("step", step_size=2),
    }
    data = load_data(DATA, captured.task.inputs, captured.task.targets)

    def fit(epochs: int, known: Data = data, **options: Any) -> None:
        chosen = {**given, **options}
        PipelineTrainer(document, out=tmp_path, resume=epochs > 1, **chosen).fit(
            known, epochs=epochs
        )

    fit(1)
    same = OptimizerSpec.parse("adam", lr=0.0005, betas=[0.9, 0.999])
    flipped = Samples(data.test.inputs, data.test.targets.flip(0))
    fit(2, data._replace(test=flipped), optimizer=same)
    other = data.train.inputs[0].clone()
    other[17, 3] += 1
    for told, options in (
        (r"optimizer = .* with .*'lr': 0\.1", {"optimizer": OptimizerSpec.parse("adam", lr=0.1)}),
        (r"learning_rate = .*", {"learning_rate": LearningRateSchedule.parse("step", step_size=3)}),
        (r"seed = 0; .* with 1", {"seed": 1}),
        ("samples_fingerprint", {"known": data._replace(train=Samples((other,), data.train[1]))}),
    ):
        with pytest.raises(InvalidInput, match=f"a run with {told}"):
            fit(3, **options)


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
