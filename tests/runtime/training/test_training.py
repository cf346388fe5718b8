"""Training with a placement: it learns, resumes exactly, and gives back the user's own weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import InvalidInput, TrialTimeout
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import EpochReport, PipelineTrainer, TrainerCallbacks
from drlpp.runtime.ipc.tensor_file import read_checkpoint
from drlpp.runtime.training.data.samples_in_memory import SamplesInMemory
from drlpp.runtime.training.training_reports import losses_text
from drlpp.schedule.method import Method
from drlpp.specs.data import Data, Samples, load_data
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.in_turns import in_turns, words
from tests.support.training.killing import killed_after_saving, killed_after_savings
from tests.support.training.loading import DATA, placement_file, same, train
from tests.support.training.placement_files import ADAM


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))


@pytest.mark.parametrize(
    ("accelerators", "method"),
    [
        pytest.param((0, 1, 2), Method(policy="pipeoptim"), marks=pytest.mark.slow),
        ((0, 0, 1), Method(policy="stash")),
        ((0, 1, 2), Method(policy="pipeoptim", microbatches=2)),
        pytest.param(
            (0, 1),
            Method(schedule="gpipe", policy="sync", microbatches=4),
            marks=pytest.mark.slow,
        ),
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
    assert same(second.state_dict, whole.state_dict)
    assert not same(first.state_dict, whole.state_dict)
    assert [report.loss for report in second.epochs] == [report.loss for report in whole.epochs]


KILLED = [
    ((0, 1, 2), Method(policy="pipeoptim")),
    ((0, 0, 1), Method(policy="stash")),
    ((0, 1, 2), Method(policy="pipemare", annealing_minibatches=9, correction_decay=0.1)),
    ((0, 1), Method(policy="2bw", accumulate=2)),
    ((0, 0, 1), Method(policy="pipeoptim", microbatches=4, clip_norm=1.0)),
]


@pytest.mark.parametrize(
    ("trained", "saved"), in_turns(KILLED, [1, 3, 4], one_of=5, slow=KILLED[1:3]), ids=words
)
def test_training_killed_in_an_epoch_goes_on_bit_for_bit(
    captured: CapturedModel,
    tmp_path: Path,
    trained: tuple[tuple[int, ...], Method],
    saved: int,
) -> None:
    """Two epochs of 12 minibatches, checkpoints every 5: learning rates and warm-up go on, too.

    It was killed after so many checkpoints.
    """
    accelerators, method = trained
    document = placement_file(captured, *accelerators, method=method)
    options = {
        "data": DATA,
        "epochs": 2,
        "learning_rate": LearningRateSchedule.parse("linear", interval="minibatch", total_iters=20),
        "synchronous_epochs": 1 if method.policy == "pipemare" else 0,
    }
    whole = train(document, out=tmp_path / "whole", **options)
    out = tmp_path / "parts"
    with killed_after_saving(saved):
        train(document, out=out, checkpoint_every=5, **options)
    rest = train(document, out=out, checkpoint_every=5, resume=True, **options)
    assert same(rest.state_dict, whole.state_dict)
    assert [report.loss for report in rest.epochs] == [report.loss for report in whole.epochs]


@pytest.mark.parametrize(
    ("policy", "every"), in_turns(["vanilla", "pipeoptim"], [1, 3], slow=["vanilla", 1])
)
def test_training_killed_twice_in_an_epoch_goes_on(
    captured: CapturedModel,
    tmp_path: Path,
    policy: str,
    every: int,
) -> None:
    """With a checkpoint after every minibatch, some are in flight over several of them."""
    method = Method.model_validate({"policy": policy})
    document = placement_file(captured, 0, 1, 2, method=method)
    options = {"data": DATA, "epochs": 1, "checkpoint_every": every}
    whole = train(document, out=tmp_path / "whole", **options)
    for attempt in range(2):
        with killed_after_saving(2 - attempt):
            train(document, out=tmp_path / "parts", resume=attempt > 0, **options)
    rest = train(document, out=tmp_path / "parts", resume=True, **options)
    assert same(rest.state_dict, whole.state_dict)


def test_a_method_that_flushes_goes_on_exactly_under_another_placement(
    captured: CapturedModel, tmp_path: Path
) -> None:
    method = Method(schedule="1f1b-flush", policy="sync", microbatches=2)
    two, three = (
        placement_file(captured, *accelerators, method=method)
        for accelerators in ((0, 1), (0, 1, 1))
    )
    options = {"data": DATA, "epochs": 2, "checkpoint_every": 4}
    whole = train(two, out=tmp_path / "whole", **options)
    with killed_after_saving(2):
        train(two, out=tmp_path / "parts", **options)
    rest = train(three, out=tmp_path / "parts", resume=True, **options)
    for name, value in whole.state_dict.items():
        torch.testing.assert_close(rest.state_dict[name], value, rtol=1e-4, atol=1e-6)
    assert [r.loss for r in rest.epochs] == pytest.approx([r.loss for r in whole.epochs], rel=1e-5)


def test_minibatches_in_flight_are_sent_again_under_another_placement(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """A pipeline of one stage has no staleness: from the checkpoint on it is plain training."""
    options = {"data": DATA, "epochs": 1, "checkpoint_every": 5}
    with killed_after_saving(1):
        train(placement_file(captured, 0, 1, 2), out=tmp_path, **options)
    saved = read_checkpoint(tmp_path / "checkpoint.safetensors")
    assert saved["position"] == 5
    in_flight = [set(stage["stage"]["parts"]) for _, stage in sorted(saved["in_flight"].items())]
    assert in_flight == [{(5, 0), (6, 0)}, {(5, 0)}, set()]
    result = train(placement_file(captured, 0), out=tmp_path, resume=True, **options)

    task = captured.reference.build()
    task.module.load_state_dict(saved["model"])
    weights = dict(task.module.named_parameters())
    adam = torch.optim.Adam(weights.values(), lr=0.01)
    for name, weight in weights.items():
        adam.state[weight] = saved["optimizer"][name]
    data = load_data(DATA, task.inputs, task.targets)
    order = torch.randperm(96, generator=torch.Generator().manual_seed(1)).view(12, 8)
    assert task.loss is not None
    for indices in order[5:]:
        adam.zero_grad()
        task.loss(
            task.module(data.train.inputs[0][indices]), data.train.targets[indices]
        ).backward()
        adam.step()
    for name, value in task.module.state_dict().items():
        torch.testing.assert_close(result.state_dict[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (Method(policy="stash"), Method(schedule="gpipe", policy="sync", microbatches=2)),
        (Method(schedule="gpipe", policy="sync", microbatches=4), Method(policy="pipeoptim")),
        (Method(policy="spectrain"), Method(policy="xpipe")),
        (Method(policy="xpipe"), Method(policy="pipemare", correction_decay=0.1)),
        (Method(policy="pipemare", correction_decay=0.1), Method(policy="spectrain")),
    ],
)
def test_training_goes_on_with_another_method(
    captured: CapturedModel,
    tmp_path: Path,
    first: Method,
    then: Method,
) -> None:
    document = placement_file(captured, 0, 1).model_copy(
        update={"optimizer": OptimizerSpec(name="sgd", options={"lr": 0.05})}
    )
    options = {"data": DATA, "epochs": 2, "checkpoint_every": 5}
    with killed_after_saving(1):
        train(document, out=tmp_path, method=first, **options)
    told = []
    observer = TrainerCallbacks(on_other_placement=lambda: told.append(True))
    result = train(document, out=tmp_path, method=then, resume=True, observer=observer, **options)
    assert told == [True]
    assert [report.epoch for report in result.epochs] == [1, 2]
    assert result.epochs[1].loss < result.epochs[0].loss


def test_a_rate_that_changes_is_not_lost_for_predictions(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """Nesterov with weight decay predicts from the rate of the last update."""
    optimizer = OptimizerSpec(
        name="sgd", options={"lr": 0.1, "nesterov": True, "weight_decay": 0.1}
    )
    document = placement_file(captured, 0, 1, 2).model_copy(update={"optimizer": optimizer})
    options = {
        "data": DATA,
        "epochs": 2,
        "checkpoint_every": 4,
        "learning_rate": LearningRateSchedule.parse("exponential", gamma=0.8, interval="minibatch"),
    }
    whole = train(document, out=tmp_path / "whole", **options)
    parts = {saved: tmp_path / str(saved) for saved in (1, 3)}
    with killed_after_savings(parts):
        train(document, out=tmp_path / "killed", **options)
    for out in parts.values():
        assert same(train(document, out=out, resume=True, **options).state_dict, whole.state_dict)


def test_a_run_does_not_end_before_its_checkpoint(captured: CapturedModel, tmp_path: Path) -> None:
    document = placement_file(captured, 0, 1)
    options = {"data": DATA, "checkpoint_every": 4, "out": tmp_path}
    with killed_after_saving(4):
        train(document, epochs=3, **options)
    done = read_checkpoint(tmp_path / "checkpoint.safetensors")
    assert len(done["epochs"]) == 1
    assert done["position"] > 0
    with pytest.raises(InvalidInput, match=r"has done 1 epochs and \d+ minibatches .* at least 2"):
        train(document, epochs=1, resume=True, **options)
    whole = train(document, epochs=2, resume=True, **options)
    with pytest.warns(UserWarning, match="done 2 epochs already; .* not of epoch 1"):
        again = train(document, epochs=1, resume=True, **options)
    assert same(again.state_dict, whole.state_dict)


def test_a_training_that_needs_more_time_goes_on_with_another_limit(
    captured: CapturedModel, tmp_path: Path
) -> None:
    document = placement_file(captured, 0, 1)
    with pytest.raises(TrialTimeout, match=r"longer time limit \(--timeout, timeout_seconds\)"):
        train(document, data=DATA, epochs=1, out=tmp_path, timeout_seconds=1e-6)
    train(document, data=DATA, epochs=1, out=tmp_path, resume=True, timeout_seconds=60)
    train(document, data=DATA, epochs=2, out=tmp_path, resume=True)


@pytest.mark.parametrize(("epochs", "noted"), [(1, True), (2, False)])
def test_more_synchronous_epochs_than_there_are_is_noted(
    captured: CapturedModel, tmp_path: Path, epochs: int, noted: bool
) -> None:
    notes: list[str] = []
    observer = TrainerCallbacks(on_note=notes.append)
    document = placement_file(captured, 0)
    train(document, out=tmp_path, epochs=epochs, synchronous_epochs=2, observer=observer)
    told = "synchronous_epochs is 2, but training ends after 1: every epoch flushes before every"
    assert [note.startswith(told) for note in notes] == [True] * noted


@pytest.mark.parametrize("seed", [10**14, 2**64 - 1, -5])
def test_any_seed_of_torch_orders_the_samples(
    captured: CapturedModel, tmp_path: Path, seed: int
) -> None:
    result = train(placement_file(captured, 0), data=DATA, epochs=1, seed=seed, out=tmp_path)
    assert len(result.epochs) == 1


def test_large_samples_are_compared_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drlpp.runtime.training.data.samples_in_memory._MOST_HASHED_BYTES", 1000)

    def fingerprint(inputs: Tensor, targets: Tensor) -> str | None:
        samples = Samples((inputs,), targets)
        return SamplesInMemory(None, Data(samples, samples), 8, seed=0).fingerprint

    zeros, targets = torch.zeros(100, 16, dtype=torch.bfloat16), torch.zeros(100)
    first, second = zeros.clone(), zeros.clone()
    first[0, 0], second[1, 0] = 1, 1
    same = fingerprint(zeros, targets)
    assert fingerprint(zeros.clone(), targets.clone()) == same
    assert fingerprint(second, targets) == same
    different = [(first, targets), (zeros.half(), targets), (zeros, targets + 1)]
    assert same not in [fingerprint(*samples) for samples in different]
    assert fingerprint(zeros.view(100, 4, 4), targets) != same


@pytest.mark.parametrize(
    ("method", "lines"),
    [
        (Method(policy="stash"), 2),
        (Method(schedule="gpipe", policy="sync", microbatches=2), 0),
    ],
)
def test_what_staleness_costs_is_said_before_training_and_after_it(
    captured: CapturedModel, tmp_path: Path, method: Method, lines: int
) -> None:
    """To who listens, and to nobody else; not at all where training is as plain PyTorch's."""
    told: list[str] = []
    epochs: list[int] = []

    def at_the_end_of_an_epoch(report: EpochReport) -> None:
        epochs.append(len(told))

    observer = TrainerCallbacks(on_epoch=at_the_end_of_an_epoch, on_staleness=told.append)
    document = placement_file(captured, 0, 1, method=method)
    trainer = PipelineTrainer(document, out=tmp_path, observer=observer)
    result = trainer.fit(DATA, epochs=2)
    assert told == [trainer.staleness, trainer.outcome(result)][:lines]
    assert epochs == [lines // 2] * 2
    if lines:
        first, last = (f"{report.held_out_loss:.4f}" for report in result.epochs)
        assert told[1].startswith(f"held-out loss {first} after epoch 1, {last} after epoch 2: ")
        assert "minibatches/s" in told[1]


def test_losses_are_those_held_out_where_there_are_any() -> None:
    seen = [EpochReport(e, 1 / e, None, None, 9.0) for e in (1, 2, 3)]
    assert losses_text(seen) == "training loss 1.0000 after epoch 1, 0.3333 after epoch 3"
    assert losses_text(seen[1:2]) == "training loss 0.5000 after epoch 2"
    evaluated = [replace(report, held_out_loss=2 / report.epoch) for report in seen]
    assert losses_text(evaluated) == "held-out loss 2.0000 after epoch 1, 0.6667 after epoch 3"
    assert losses_text([seen[0], evaluated[2]]).startswith("training loss")
