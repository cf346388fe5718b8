"""TensorBoard's events of a training."""

from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drlpp.capturing.capture import capture
from drlpp.io.run_folder import BY_TIME_NAME
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import PipelineTrainer, ProgressReport, TrainerCallbacks
from drlpp.specs.learning_rate import LearningRateSchedule
from tests.support.training.killing import killed_after_saving
from tests.support.training.loading import DATA, data_for, loaders_for, placement_file


def _steps(folder: Path) -> dict[str, dict[int, float]]:
    """Of every tag the value at every step, each written once."""
    found: dict[str, dict[int, float]] = {}
    board = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    for tag in board.Tags()["scalars"]:
        for event in board.Scalars(tag):
            assert event.step not in found.setdefault(tag, {}), f"{tag} {event.step} twice"
            found[tag][event.step] = event.value
    return found


def test_everything_is_written_once_also_when_training_goes_on(tmp_path: Path) -> None:
    """Two epochs of 12 minibatches, killed at a checkpoint within the second."""
    captured = capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))
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
    workers = [
        f"{kind}/worker_{w}" for kind in ("utilisation", "bubble", "memory_bytes") for w in range(3)
    ]
    epochs = ["eval/loss", "eval/score", "time/minibatches_per_second", "time/samples_per_second"]
    assert set(steps) == {"train/loss", "train/learning_rate", *epochs, *workers}
    assert all(list(steps[tag]) == [1, 2] for tag in (*epochs, *workers))
    assert sorted(steps["train/loss"]) == sorted(steps["train/learning_rate"]) == list(range(24))
    rates = [steps["train/learning_rate"][step] for step in range(24)]
    assert rates == pytest.approx([0.01] * 12 + [0.005] * 12)
    for report in result.epochs:
        of_epoch = [steps["train/loss"][12 * (report.epoch - 1) + k] for k in range(12)]
        assert sum(of_epoch) / 12 == pytest.approx(report.loss, rel=1e-5)
        assert steps["eval/loss"][report.epoch] == pytest.approx(report.held_out_loss)
        assert steps["eval/score"][report.epoch] == pytest.approx(report.score)
        speed = steps["time/minibatches_per_second"][report.epoch]
        assert steps["time/samples_per_second"][report.epoch] == pytest.approx(8 * speed)
        for worker in range(3):
            used = steps[f"utilisation/worker_{worker}"][report.epoch]
            assert 0 < used < 1
            assert used + steps[f"bubble/worker_{worker}"][report.epoch] == pytest.approx(1)
            assert steps[f"memory_bytes/worker_{worker}"][report.epoch] > 1e6

    by_time = _steps(tmp_path / BY_TIME_NAME)
    assert by_time.keys() == {"loss_by_millisecond/train", "loss_by_millisecond/held_out"}
    seconds = [12 / report.minibatches_per_second for report in result.epochs]
    for tag, losses in (
        ("train", [report.loss for report in result.epochs]),
        ("held_out", [report.held_out_loss for report in result.epochs]),
    ):
        written = by_time[f"loss_by_millisecond/{tag}"]
        assert list(written) == [round(1e3 * seconds[0]), round(1e3 * sum(seconds))]
        assert list(written.values()) == pytest.approx(losses)


class _Stopped(Exception):
    pass


@pytest.mark.slow
def test_minibatches_are_written_as_training_goes_on_and_taken_back_on_resuming(
    tmp_path: Path,
) -> None:
    """Stopped within the second epoch, of which no checkpoint knows."""
    captured = capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))
    document = placement_file(captured, 0, 1)
    data = f"{DATA}_without_end"

    def stop(report: ProgressReport) -> None:
        if report.epoch == 2:
            raise _Stopped

    # Reports come every quarter of a second, in which fast workers are done.
    for minibatches in (400 * 2**attempt for attempt in count()):
        out = tmp_path / str(minibatches)
        trainer = PipelineTrainer(document, out=out, observer=TrainerCallbacks(on_progress=stop))
        with suppress(_Stopped):
            trainer.fit(data, epochs=2, minibatches=minibatches)
            continue
        break
    assert max(_steps(out)["train/loss"]) > minibatches
    PipelineTrainer(document, out=out, resume=True).fit(data, epochs=2, minibatches=minibatches)
    assert sorted(_steps(out)["train/loss"]) == list(range(2 * minibatches))
