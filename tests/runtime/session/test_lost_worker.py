"""A worker that is killed from outside costs no placement its measurement, but two in a row do."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drlpp.capturing.capture import CapturedModel
from drlpp.envs import MeasurementMemory
from drlpp.errors import WorkerLost
from drlpp.placement.measurement import LOST_TWICE, FailedMeasurement, Measurement
from drlpp.runtime import ClusterSession, PipelineTrainer, ProgressReport, TrainerCallbacks
from drlpp.specs.data import Data, Samples
from tests.support.processes import workers_of
from tests.support.training.loading import data_for
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

KILLED = "was killed by SIGKILL, as the system does for want of memory"


@pytest.fixture(scope="module")
def notes() -> list[str]:
    return []


@pytest.fixture(scope="module")
def session(captured: CapturedModel, notes: list[str]) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=2, note=notes.append) as session:
        yield session


@pytest.fixture
def kill(
    session: ClusterSession, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Have a worker killed in each of the next runs, None for none."""
    notes.clear()
    run = session.run
    victims: list[int | None] = []

    def strike(*arguments: Any, **options: Any) -> Any:
        victim = victims.pop(0) if victims else None
        if victim is not None:
            os.kill(session.process_ids[victim], signal.SIGKILL)
        return run(*arguments, **options)

    monkeypatch.setattr(session, "run", strike)
    return lambda *whom: victims.extend(whom)


def test_a_placement_that_loses_a_worker_is_measured_again_and_one_that_loses_two_has_failed(
    captured: CapturedModel, session: ClusterSession, notes: list[str], kill: Callable[..., None]
) -> None:
    kill(1)
    before = session.process_ids
    outcome = session.measure(in_a_row(captured.graph, 1, 0), 4)
    assert isinstance(outcome, Measurement)
    assert notes == [f"worker 1 (stage 0) {KILLED}; its placement, 1-1, is measured again"]
    assert session.timeline
    assert not set(before) & set(session.process_ids)

    placement = in_a_row(captured.graph, 0, 1)
    kill(0, 1)
    assert session.measure(placement, 4) == FailedMeasurement(
        failure="worker lost twice",
        reason=f"lost a worker twice: worker 0 (stage 0) {KILLED}; when measured again, worker 1 "
        f"(stage 1) {KILLED}",
    )
    assert session.timeline == ()
    assert isinstance(session.measure(placement, 4), Measurement)


def test_a_lost_worker_is_no_outcome_of_a_memory_and_two_are_for_good(
    captured: CapturedModel, session: ClusterSession, tmp_path: Path, kill: Callable[..., None]
) -> None:
    path = tmp_path / "measurements.jsonl"
    memory = MeasurementMemory(session, 4, path)
    once, twice = in_a_row(captured.graph, 0, 1), in_a_row(captured.graph, 1, 0)
    kill(0, None, 1, 0)
    assert isinstance(memory.measure(once), Measurement)
    failed = memory.measure(twice)
    assert isinstance(failed, FailedMeasurement)
    assert failed.failure == LOST_TWICE
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    # An older drlpp reads it too: it knows no other fields.
    assert set(json.loads(lines[2])["outcome"]) == {"outcome", "failure", "reason"}
    kill(0)
    again = MeasurementMemory(session, 4, path)
    assert again.measure(twice) == failed
    assert isinstance(again.measure(once), Measurement)
    assert path.read_text().splitlines() == lines


def test_a_training_that_loses_a_worker_says_which_and_where_it_goes_on(
    captured: CapturedModel, tmp_path: Path
) -> None:
    struck = []

    def strike(report: ProgressReport) -> None:
        if (tmp_path / "checkpoint.pt").exists() and not struck:
            struck.append(report)
            # The newest of all that sessions of this process have.
            os.kill(max(workers_of(os.getpid())), signal.SIGKILL)

    trainer = PipelineTrainer(
        file_of(captured, in_a_row(captured.graph, 0, 1)),
        out=tmp_path,
        # Reports come four times a second.
        checkpoint_every=1000,
        observer=TrainerCallbacks(on_progress=strike),
    )
    # So long that it cannot end before the worker does.
    (inputs,), targets = data_for(captured).train
    samples = Samples((inputs.repeat(2000, 1),), targets.repeat(2000))
    kept = r"\S+/checkpoint.pt has all up to \d+ minibatches of epoch 1, and the "
    with pytest.raises(WorkerLost, match=rf"^worker (\d) \(stage \1\) {KILLED}; {kept}"):
        trainer.fit(Data(samples, samples), epochs=1)
