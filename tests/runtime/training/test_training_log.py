"""What stays of a training besides its weights: TensorBoard's events, and changes of workers."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drlpp.capturing.capture import CapturedModel
from drlpp.runtime import PipelineTrainer
from drlpp.runtime.training.training_log import training_log
from drlpp.runtime.training.training_reports import WorkersChanged, write_change
from drlpp.specs.learning_rate import LearningRateSchedule
from tests.support.training.killing import killed_after_saving
from tests.support.training.loading import data_for, loaders_for, placement_file
from tests.support.training.strikes import changes_in


def _steps(folder: Path) -> dict[str, dict[int, float]]:
    """Of every tag the value at every step, each written once."""
    found: dict[str, dict[int, float]] = {}
    board = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    for tag in board.Tags()["scalars"]:
        for event in board.Scalars(tag):
            assert event.step not in found.setdefault(tag, {}), f"{tag} {event.step} twice"
            found[tag][event.step] = event.value
    return found


def test_everything_is_written_once_also_when_training_goes_on(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """Two epochs of 12 minibatches, killed at a checkpoint within the second."""
    document = placement_file(captured, 0, 0, 1)
    options = {
        "learning_rate": LearningRateSchedule.parse("exponential", gamma=0.5),
        "checkpoint_every": 4,
        "out": tmp_path,
    }
    with killed_after_saving(4):
        PipelineTrainer(document, **options).fit(*loaders_for(data_for(captured)), epochs=2)
    trainer = PipelineTrainer(document, resume=True, **options)
    result = trainer.fit(*loaders_for(data_for(captured)), epochs=2)
    steps = _steps(tmp_path)
    workers = [f"{kind}/worker_{w}" for kind in ("utilisation", "memory_bytes") for w in range(3)]
    epochs = ["eval/loss", "eval/score", "time/minibatches_per_second", "time/samples_per_second"]
    assert set(steps) == {"train/loss", "train/learning_rate", *epochs, *workers}
    assert all(list(steps[tag]) == [1, 2] for tag in (*epochs, *workers))
    assert sorted(steps["train/loss"]) == list(range(24))
    rates = [steps["train/learning_rate"][step] for step in range(24)]
    assert rates == pytest.approx([0.01] * 12 + [0.005] * 12)
    for report in result.epochs:
        of_epoch = [steps["train/loss"][12 * (report.epoch - 1) + k] for k in range(12)]
        assert sum(of_epoch) / 12 == pytest.approx(report.loss, rel=1e-5)
        assert steps["eval/loss"][report.epoch] == pytest.approx(report.held_out_loss)
        assert steps["eval/score"][report.epoch] == pytest.approx(report.score)
        speed = steps["time/minibatches_per_second"][report.epoch]
        assert steps["time/samples_per_second"][report.epoch] == pytest.approx(8 * speed)
        assert all(0 < steps[f"utilisation/worker_{w}"][report.epoch] < 1 for w in range(3))


def test_minibatches_behind_the_checkpoint_are_taken_back_and_none_is_written_twice(
    tmp_path: Path,
) -> None:
    with training_log(tmp_path, first=0) as log:
        log.minibatches({0: 5.0, 2: 5.2, 1: 5.1}, dict.fromkeys(range(3), 0.1))
        log.minibatches({2: 9.0, 3: 5.3, 5: 5.5}, dict.fromkeys(range(6), 0.1))
    with training_log(tmp_path, first=3) as log:
        log.minibatches({2: 9.0, 3: 6.3, 4: 6.4, 5: 6.5}, dict.fromkeys(range(6), 0.1))
    losses = _steps(tmp_path)["train/loss"]
    assert [losses[step] for step in range(6)] == pytest.approx([5.0, 5.1, 5.2, 6.3, 6.4, 6.5])


def test_changes_are_read_as_written_but_for_a_half_line(tmp_path: Path) -> None:
    path = tmp_path / "changes.jsonl"
    assert changes_in(tmp_path) == ()
    change = WorkersChanged(
        epochs=1,
        minibatches=40,
        reason="host far cannot be reached: workers 2, 3 are given up",
        given_up=(2, 3),
        workers=(0, 1),
        configuration="1-1",
    )
    write_change(path, change)
    with path.open("a") as file:
        file.write('{"epochs"')
    assert changes_in(tmp_path) == (change,)
    write_change(path, change)
    assert changes_in(tmp_path) == (change, change)
    assert change.text.endswith(
        "given up; training continues at minibatch 41 of epoch 2 on 2 workers, 1-1"
    )
