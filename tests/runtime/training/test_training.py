"""Training with a placement: it learns, resumes exactly, and gives back the user's own weights."""

from pathlib import Path

import pytest
import torch

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput, TrialTimeout
from drlpp.runtime import PipelineTrainer, TrainerCallbacks
from drlpp.runtime.ipc.tensor_file import read_checkpoint
from drlpp.schedule.method import Method
from drlpp.specs.data import load_data
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.killing import killed_after_saving
from tests.support.training.loading import DATA, placement_file, same, train


def test_a_model_learns_and_its_own_module_scores_the_same(
    captured: CapturedModel, tmp_path: Path
) -> None:
    method = Method(policy="pipeoptim", microbatches=2)
    document = placement_file(captured, 0, 0, 1, method=method)
    result = train(document, data=DATA, epochs=6, out=tmp_path)
    assert [report.epoch for report in result.epochs] == [1, 2, 3, 4, 5, 6]
    assert result.epochs[-1].loss < 0.7 * result.epochs[0].loss
    assert result.epochs[-1].score is not None
    assert result.epochs[-1].score > 0.6
    task = captured.reference.build()
    task.module.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    test = load_data(DATA, task.inputs, task.targets).test
    assert task.score is not None
    score = task.score(task.module.eval()(*test.inputs), test.targets).mean().item()
    assert score == pytest.approx(result.epochs[-1].score, abs=1e-6)
    assert list(tmp_path.glob("events.out.tfevents*"))


@pytest.mark.parametrize("saved", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_training_killed_in_an_epoch_goes_on_bit_for_bit(
    captured: CapturedModel, tmp_path: Path, saved: int
) -> None:
    """Two epochs of 12 minibatches, checkpoints every 5: learning rates and warm-up go on, too.

    It was killed after so many checkpoints.
    """
    method = Method(policy="pipemare", annealing_minibatches=9, correction_decay=0.1)
    document = placement_file(captured, 0, 1, 2, method=method)
    options = {
        "data": DATA,
        "epochs": 2,
        "learning_rate": LearningRateSchedule.parse("linear", interval="minibatch", total_iters=20),
        "synchronous_epochs": 1,
    }
    whole = train(document, out=tmp_path / "whole", **options)
    out = tmp_path / "parts"
    with killed_after_saving(saved):
        train(document, out=out, checkpoint_every=5, **options)
    rest = train(document, out=out, checkpoint_every=5, resume=True, **options)
    assert same(rest.state_dict, whole.state_dict)
    assert [report.loss for report in rest.epochs] == [report.loss for report in whole.epochs]


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


def test_training_goes_on_with_another_method(captured: CapturedModel, tmp_path: Path) -> None:
    first = Method(schedule="gpipe", policy="sync", microbatches=4)
    then = Method(policy="pipeoptim")
    document = placement_file(captured, 0, 1).model_copy(
        update={"optimizer": OptimizerSpec(name="sgd", options={"lr": 0.05})}
    )
    options = {"data": DATA, "epochs": 2, "checkpoint_every": 5}
    with killed_after_saving(1):
        train(document, out=tmp_path, method=first, **options)
    told: list[str] = []
    observer = TrainerCallbacks(on_note=told.append)
    result = train(document, out=tmp_path, method=then, resume=True, observer=observer, **options)
    assert ["of another placement or method" in note for note in told] == [True]
    assert [report.epoch for report in result.epochs] == [1, 2]
    assert result.epochs[1].loss < result.epochs[0].loss


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
    train(document, data=DATA, epochs=1, out=tmp_path, resume=True)


def test_what_a_user_should_know_is_said_before_training(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """What staleness costs is not said where training is as plain PyTorch's."""
    notes: list[str] = []
    told: list[str] = []
    trainer = PipelineTrainer(
        placement_file(captured, 0, 1, method=Method(policy="stash")),
        out=tmp_path,
        observer=TrainerCallbacks(on_note=notes.append, on_staleness=told.append),
        seed=2**64 - 1,
        synchronous_epochs=2,
    )
    trainer.fit(DATA, epochs=1)
    assert told == [trainer.staleness]
    assert [n.startswith("synchronous_epochs is 2, but training ends") for n in notes] == [True]
    flushed = Method(schedule="gpipe", policy="sync", microbatches=2)
    assert PipelineTrainer(placement_file(captured, 0, 1, method=flushed)).staleness is None
