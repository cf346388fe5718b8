"""Training with a placement: it learns, resumes exactly, gives back weights, and logs."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput, TrialTimeout
from drlpp.runtime import (
    ClusterSession,
    Deployment,
    PipelineTrainer,
    ProgressReport,
    RunOptions,
    TrainerCallbacks,
)
from drlpp.runtime.ipc.protocol import Progress
from drlpp.runtime.ipc.tensor_file import read_checkpoint
from drlpp.runtime.training.training_log import TrainingLog
from drlpp.runtime.training.training_plan import WorkersChanged, write_change
from drlpp.schedule.method import Method
from drlpp.specs.data import load_data
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.killing import killed_after_saving
from tests.support.training.loading import DATA, data_for, loaders_for, placement_file, same, train
from tests.support.training.pipelines import assert_state
from tests.support.training.strikes import changes_in


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
        "checkpoint_every": 5,
    }
    whole = train(document, out=tmp_path / "whole", **options)
    out = tmp_path / "parts"
    with killed_after_saving(saved):
        train(document, out=out, **options)
    rest = train(document, out=out, resume=True, **options)
    assert same(rest.state_dict, whole.state_dict)
    assert [report.loss for report in rest.epochs] == [report.loss for report in whole.epochs]


def test_another_placement_continues_with_the_next_minibatch(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """A pipeline of one stage has no staleness: from the checkpoint on it is plain training."""
    options = {"data": DATA, "epochs": 1, "checkpoint_every": 5}
    with killed_after_saving(1):
        train(placement_file(captured, 0, 1, 2), out=tmp_path, **options)
    saved = read_checkpoint(tmp_path / "checkpoint.pt")
    assert saved["position"] == 5
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
    assert_state(result.state_dict, task.module, rtol=1e-4, atol=1e-6)


def test_training_goes_on_with_another_method(captured: CapturedModel, tmp_path: Path) -> None:
    first = Method(schedule="gpipe", policy="sync", microbatches=4)
    then = Method(policy="pipeoptim")
    document = placement_file(captured, 0, 1).model_copy(
        update={"optimizer": OptimizerSpec(name="sgd", options={"lr": 0.05})}
    )
    options = {"data": DATA, "epochs": 2, "checkpoint_every": 5}
    with killed_after_saving(1):
        train(document, out=tmp_path, method=first, **options)
    result = train(document, out=tmp_path, method=then, resume=True, **options)
    assert [report.epoch for report in result.epochs] == [1, 2]
    assert result.epochs[1].loss < result.epochs[0].loss


def test_a_run_does_not_end_before_its_checkpoint(captured: CapturedModel, tmp_path: Path) -> None:
    document = placement_file(captured, 0, 1)
    options = {"data": DATA, "checkpoint_every": 4, "out": tmp_path}
    with killed_after_saving(4):
        train(document, epochs=3, **options)
    done = read_checkpoint(tmp_path / "checkpoint.pt")
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


def test_progress_tells_the_speed_since_the_epoch_began(
    captured: CapturedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve minibatches: runs of 5 and 5 that take 10 s each, and of 2 that take 20 s."""
    now, run = 0.0, ClusterSession.run
    reports: list[ProgressReport] = []

    def timed(
        session: ClusterSession,
        deployment: Deployment,
        count: int,
        options: RunOptions,
        on_progress: Callable[[Progress], None],
    ) -> object:
        nonlocal now
        found = run(session, deployment, count, options)
        now += 10 if count == 5 else 20
        on_progress(Progress(count, {(0, 0): 1.0}))
        return found

    monkeypatch.setattr(ClusterSession, "run", timed)
    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr("drlpp.runtime.training.trainer.time", clock)
    observer = TrainerCallbacks(on_progress=reports.append)
    options = {"out": tmp_path, "observer": observer, "checkpoint_every": 5}
    (epoch,) = train(placement_file(captured, 0, 1), data=DATA, epochs=1, **options).epochs
    assert reports == [
        ProgressReport(1, done, 12, 1.0, speed) for done, speed in ((5, 0.5), (10, 0.5), (12, 0.3))
    ]
    assert epoch.minibatches_per_second == 0.3


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


def test_minibatches_behind_the_checkpoint_are_taken_back(tmp_path: Path) -> None:
    for first, losses in ((0, {0: 5.0, 2: 5.2, 1: 5.1, 5: 5.5}), (2, {3: 6.3, 2: 6.2})):
        with closing(TrainingLog(tmp_path, first)) as log:
            for minibatch, loss in losses.items():
                log.minibatch(minibatch, loss, 0.1)
    losses = _steps(tmp_path)["train/loss"]
    assert losses == pytest.approx({0: 5.0, 1: 5.1, 2: 6.2, 3: 6.3})


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
