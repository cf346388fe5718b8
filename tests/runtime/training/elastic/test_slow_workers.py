"""Training whose workers turn slow and fast again: planned anew, and nothing is lost."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.profile import Profile
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.planners.replanning import Elastic
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
    watched.train(profile, epochs=6)
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
