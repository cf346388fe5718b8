"""Training whose workers turn slow and fast again: planned anew, and nothing is lost."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.profile import Profile
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import LinkUsage, Measurement, WorkerUsage
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.planners.replanning import Elastic, Replanner
from drlpp.runtime import ClusterSession, PipelineTrainer, TrainerCallbacks, TrainingResult
from drlpp.runtime.session.measuring import RunMeter
from drlpp.runtime.training import elastic_training
from drlpp.runtime.training.elastic_training import ElasticTraining
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.losable_hosts import LosableHosts
from tests.support.models.counting import every_sample
from tests.support.models.slowing import FAST, SLOW, SlowedSGD, slow_counting
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of
from tests.support.training.strikes import changes_in

METHOD = Method(policy="stash")
SPEEDS = [0.08] * 4
SGD = OptimizerSpec.parse(f"{SlowedSGD.__module__}:SlowedSGD")


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.of(slow_counting))


@pytest.fixture(scope="module")
def profile(captured: CapturedModel) -> Profile:
    with ClusterSession(captured, 1) as session:
        return session.profile(5)[0]


def test_messages_are_timed_if_only_minibatches_take_longer(
    captured: CapturedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = file_of(captured, in_a_row(captured.graph, 0, 1, 2, 3), METHOD, SGD)
    # What is computed takes next to nothing beside messages of 50 KB.
    planner = Replanner(document, captured.graph, Profile.estimated(captured.graph, 1e12))
    plan = planner.plan(range(4), 4)
    notes: list[str] = []
    trainer: Any = SimpleNamespace(
        session=SimpleNamespace(present=range(4), host_of={}, take_back=lambda: ()),
        observer=TrainerCallbacks(on_note=notes.append),
        saved=(0, 20),
        left=1000,
        deploying_seconds=1.0,
        folder=tmp_path,
        meter=SimpleNamespace(results={}),
    )
    training = ElasticTraining(trainer, Elastic(1, 4), planner)
    seconds = 1e-4
    monkeypatch.setattr(
        elastic_training,
        "time_ways",
        lambda *_: (LinkUsage(sender=0, receiver=1, bytes_=10_000, seconds=seconds),),
    )

    def look(pace: float, times: int, busy: float = 1e-3) -> None:
        usages = [
            WorkerUsage(
                worker=worker,
                stage=worker,
                busy_seconds=busy,
                waiting_seconds=0.0,
                peak_memory_bytes=0,
                bytes_sent=0,
            )
            for worker in range(4)
        ]
        trainer.meter.latest = Measurement(
            seconds_per_minibatch=pace,
            median_seconds=pace,
            standard_deviation_seconds=0.0,
            minibatches=20,
            workers=tuple(usages),
        )
        for _ in range(times):
            training._at_checkpoint()

    look(0.1, times=3)
    # The loader is slow; then all workers are alike; then a single measurement.
    seconds = 1e-5
    look(0.2, times=4)
    look(0.2, times=4, busy=5e-3)
    look(0.4, times=1)
    look(0.2, times=2)
    assert training._plan == plan
    assert notes == []
    seconds = 1e-4
    look(0.4, times=1)
    with pytest.raises(elastic_training._PlannedAnew):
        look(0.4, times=1)
    (change,) = changes_in(tmp_path)
    assert change.reason.startswith("by its messages a minibatch takes ")
    assert notes == [change.text]
    assert training._plan.placement != plan.placement


class Watched:
    """A training on four workers, of which number 2 gets signals.

    Args:
        captured: the model.
        folder: of the training.
        signals: one for each deployment, when three measurements of it have been made.

    Attributes:
        document: the placement that it begins with.
        placements: that it was deployed with.
        notes: what it told; when it told the first, its folder was copied.
    """

    def __init__(self, captured: CapturedModel, folder: Path, *signals: int) -> None:
        row = in_a_row(captured.graph, 0, 1, 2, 3)
        self.document = file_of(captured, row, METHOD, SGD)
        self.copy = folder.with_name("copy")
        self.placements: list[Placement] = []
        self.notes: list[str] = []
        self._captured, self._folder, self._signals = captured, folder, list(signals)
        self._hosts = LosableHosts([4])

    def train(self, profile: Profile, epochs: int) -> TrainingResult:
        """Train elastically."""
        with self._hosts.used(), self._sending():
            return self.trainer(
                self.document,
                self._folder,
                elastic=Elastic(1, 4, profile),
                observer=TrainerCallbacks(on_note=self._note),
            ).fit(every_sample(), epochs=epochs)

    def trainer(self, document: PlacementFile, folder: Path, **options: object) -> PipelineTrainer:
        return PipelineTrainer(
            document,
            model=self._captured,
            checkpoint_every=20,
            speeds=SPEEDS,
            out=folder,
            **options,  # type: ignore[arg-type]
        )

    def _note(self, text: str) -> None:
        if not self.notes:
            shutil.copytree(self._folder, self.copy)
        self.notes.append(text)

    @contextmanager
    def _sending(self) -> Iterator[None]:
        look = ElasticTraining._look

        def look_and_send(training: ElasticTraining, meter: RunMeter) -> None:
            if not self.placements or training._plan.placement != self.placements[-1]:
                self.placements.append(training._plan.placement)
            look(training, meter)
            if training._measured == 3 and len(self._signals) >= len(self.placements):
                # Not to be sent again before the plan has changed.
                number = self._signals[len(self.placements) - 1]
                os.kill(self._hosts.hosts[0].process_ids[2], number)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ElasticTraining, "_look", look_and_send)
            yield


@pytest.mark.slow
def test_a_slow_worker_is_planned_for_and_its_training_is_that_of_the_plan(
    captured: CapturedModel, profile: Profile, tmp_path: Path
) -> None:
    watched = Watched(captured, tmp_path / "run", SLOW)
    result = watched.train(profile, epochs=4)
    (slow,) = changes_in(tmp_path / "run")
    assert watched.notes == [slow.text]
    assert slow.reason.startswith("worker 2 takes ")
    assert "as planned: planned anew, " in slow.reason
    assert "instead of 1-1-1-1; predicted " in slow.reason
    first, planned = watched.placements
    work = {worker: len(stage.operators) for stage in first.stages for worker in stage.accelerators}
    left = [len(stage.operators) for stage in planned.stages if 2 in stage.accelerators]
    assert sum(left) < work[2]

    document = PlacementFile.create(
        captured.reference,
        captured.graph,
        planned,
        watched.document.cluster,
        method=METHOD,
        optimizer=SGD,
        found_by="test",
    )
    again = watched.trainer(
        document, watched.copy, resume=True, observer=TrainerCallbacks(on_note=lambda note: None)
    ).fit(every_sample(), epochs=4)
    for name, weight in result.state_dict.items():
        assert torch.equal(weight, again.state_dict[name]), name


@pytest.mark.slow
def test_a_worker_that_is_fast_again_is_planned_for(
    captured: CapturedModel, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker without a stage does not show it.
    monkeypatch.setattr(elastic_training, "_RETRY", 5)
    watched = Watched(captured, tmp_path / "run", SLOW, FAST)
    watched.train(profile, epochs=6)
    slow, fast = changes_in(tmp_path / "run")
    assert watched.notes == [slow.text, fast.text]
    first, without, again = watched.placements
    assert without != first
    assert 2 in again.accelerators


@pytest.mark.slow
def test_a_worker_that_stays_slow_is_tried_in_vain(
    captured: CapturedModel, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic_training, "_RETRY", 5)
    watched = Watched(captured, tmp_path / "run", SLOW)
    watched.train(profile, epochs=8)
    slow, tried, again = changes_in(tmp_path / "run")
    assert slow.reason.startswith("worker 2 takes ")
    assert tried.reason.startswith("worker 2 is tried again: planned anew, ")
    assert again.reason.startswith("worker 2 takes ")
    assert watched.placements[1] == watched.placements[3]


@pytest.mark.slow
def test_without_a_slow_worker_the_plan_stays(
    captured: CapturedModel, profile: Profile, tmp_path: Path
) -> None:
    watched = Watched(captured, tmp_path / "run")
    watched.train(profile, epochs=4)
    assert changes_in(tmp_path / "run") == ()
    assert len(watched.placements) == 1
