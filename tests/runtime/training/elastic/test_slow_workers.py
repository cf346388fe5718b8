"""Training whose workers turn slow and fast again: planned anew, and nothing is lost."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.profile import Profile
from drlpp.costs.stage_cost import Array
from drlpp.costs.workload import Workload
from drlpp.errors import NothingFits
from drlpp.models.model_reference import ModelReference
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import LinkUsage, Measurement, WorkerUsage
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.planners.replanning import Elastic, Replanner
from drlpp.runtime import ClusterSession, PipelineTrainer, TrainerCallbacks, TrainingResult
from drlpp.runtime.session.measuring import RunMeter
from drlpp.runtime.training import elastic_training
from drlpp.runtime.training.elastic_training import ElasticTraining
from drlpp.runtime.training.training_plan import WorkersChanged
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.losable_hosts import LosableHosts
from tests.support.models.counting import every_sample
from tests.support.models.slowing import FAST, SLOW, SlowedSGD, slow_counting
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of
from tests.support.training.strikes import changes_in

METHOD = Method(policy="stash")
MESSAGES = -1
"""Stands for what makes minibatches take longer, and not workers."""

SGD = OptimizerSpec.parse(f"{SlowedSGD.__module__}:SlowedSGD")


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.of(slow_counting))


@pytest.fixture(scope="module")
def profile(captured: CapturedModel) -> Profile:
    with ClusterSession(captured, 1) as session:
        return session.profile(5)[0]


def _shares(placement: Placement, seconds: Array) -> dict[int, float]:
    """Return how long workers usually compute for a minibatch, by the seconds of operators."""
    return {
        worker: float(seconds[list(stage.operators)].sum()) / len(stage.accelerators)
        for stage in placement.stages
        for worker in stage.accelerators
    }


class Told:
    """A training whose workers take as long as it is told, and no clock is read.

    Args:
        captured: the model.
        folder: of the training.
        costs: of every operator, as a part of what its profile says.
        flops: in a second, by this profile.

    Attributes:
        planner: by the profile.
        seconds: that operators usually take.
        plans: that were measured, an entry a checkpoint.
        links: the seconds of 10 KB, whenever they are timed; by default as declared.
        notes: what was told.
    """

    def __init__(
        self,
        captured: CapturedModel,
        folder: Path,
        costs: Sequence[float] = (1.0,) * 23,
        flops: float = 1e8,
    ) -> None:
        document = file_of(captured, in_a_row(captured.graph, 0, 1, 2, 3), METHOD, SGD)
        profile = Profile.estimated(captured.graph, flops)
        self.planner = Replanner(document, captured.graph, profile)
        self.plans: list[ExecutionPlan] = []
        self.links: list[float] = []
        self.notes: list[str] = []
        self.seconds = Workload.of(profile, METHOD).seconds * costs
        self._folder = folder

    def train(self, *slower: dict[int, float]) -> tuple[WorkersChanged, ...]:
        """Train with a checkpoint after every one of these, and return what was changed."""
        left = iter(slower)

        def train(plan: ExecutionPlan) -> dict[str, Tensor]:
            for factors in left:
                self.plans.append(plan)
                trainer.meter.latest = self._measured(plan, factors)
                trainer.on_checkpoint()
            return {}

        trainer: Any = SimpleNamespace(
            train=train,
            session=SimpleNamespace(present=range(4), host_of={}, take_back=lambda: ()),
            observer=TrainerCallbacks(on_note=self.notes.append),
            saved=(0, 20),
            folder=self._folder,
            meter=SimpleNamespace(results={}),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(elastic_training, "time_ways", self._timed)
            ElasticTraining(trainer, Elastic(1, 4), self.planner).train()
        changes = changes_in(self._folder)
        assert self.notes == [change.text for change in changes]
        return changes

    def _timed(self, *_: object) -> tuple[LinkUsage, ...]:
        seconds = self.links.pop(0) if self.links else 1e-5
        return (LinkUsage(sender=0, receiver=1, bytes_=10_000, seconds=seconds),)

    def _measured(self, plan: ExecutionPlan, slower: dict[int, float]) -> Measurement:
        usages = []
        for worker, usual in _shares(plan.placement, self.seconds).items():
            usage = WorkerUsage(
                worker=worker,
                stage=plan.pipeline.stage_of(worker),
                busy_seconds=20 * usual * slower.get(worker, 1.0),
                waiting_seconds=0.0,
                peak_memory_bytes=0,
            )
            usages.append(usage)
        slowest = max(usage.busy_seconds for usage in usages) / 20
        pace = slower.get(MESSAGES, 1.0) * max(slowest, self.planner.seconds(plan))
        return Measurement(
            seconds_per_minibatch=pace,
            median_seconds=pace,
            standard_deviation_seconds=0.0,
            minibatches=20,
            workers=tuple(usages),
        )


def test_a_worker_that_turns_slow_and_fast_again_is_planned_for(
    captured: CapturedModel, tmp_path: Path
) -> None:
    told = Told(captured, tmp_path)
    slow, fast = told.train(*[{}] * 4, *[{2: 1.6}] * 5, *[{}] * 5)
    assert slow.reason.startswith("worker 2 takes 1.6 times as long as planned: planned anew, ")
    assert fast.reason.startswith("worker 2 takes 1.0 times as long as planned: planned anew, ")
    # Once is chance, twice is not; of a deployment the first measurement tells nothing.
    first, *_, last = told.plans
    without, again = told.plans[6], told.plans[11]
    assert told.plans == [first] * 6 + [without] * 5 + [again] * 3
    assert len({first, without, again}) == 3
    assert 2 in without.placement.accelerators
    shares = _shares(last.placement, told.seconds).values()
    assert max(shares) < 1.1 * min(shares)


def test_a_worker_that_is_slow_from_the_beginning_is_planned_for(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """What its operators cost is not known by then: a second plan may know better."""
    told = Told(captured, tmp_path)
    slow, *again = told.train(*[{2: 3.0}] * 20)
    assert told.plans[2] != told.plans[3]
    assert {change.reason[:14] for change in (slow, *again)} == {"worker 2 takes"}
    assert len(again) <= 1


@pytest.mark.parametrize("slower", [dict.fromkeys(range(4), 1.6), {2: 1.3}])
def test_what_all_take_longer_and_chance_are_no_reason(
    captured: CapturedModel, tmp_path: Path, slower: dict[int, float]
) -> None:
    told = Told(captured, tmp_path)
    assert told.train({}, {}, slower, slower, slower, {2: 5.0}, slower, {2: 5.0}, slower) == ()


def test_an_unused_worker_stays_as_slow_as_it_was(captured: CapturedModel, tmp_path: Path) -> None:
    told = Told(captured, tmp_path)
    (slow,) = told.train(*[{}] * 2, *[{2: 1e4}] * 3, *[{}] * 40)
    assert slow.reason.startswith("worker 2 takes 10000.0 times as long")
    assert 2 not in told.plans[-1].placement.accelerators


def test_a_profile_that_is_off_is_put_right_and_planned_with_once_or_twice(
    captured: CapturedModel, tmp_path: Path
) -> None:
    costs = [1.0] * 23
    costs[7] = 3.0
    told = Told(captured, tmp_path, costs)
    assert len(told.train(*[{}] * 60)) <= 2
    assert len(set(told.plans[10:])) == 1


def test_a_plan_that_cannot_be_made_ends_no_training(
    captured: CapturedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(captured, tmp_path)
    plan = Replanner.plan

    def fails(planner: Replanner, *given: Any) -> ExecutionPlan:
        if planner.slower:
            raise NothingFits("too large")
        return plan(planner, *given)

    monkeypatch.setattr(Replanner, "plan", fails)
    assert told.train(*[{}] * 2, *[{2: 3.0}] * 10) == ()
    assert len(told.plans) == 12


def test_messages_are_timed_if_only_minibatches_take_longer(
    captured: CapturedModel, tmp_path: Path
) -> None:
    told = Told(captured, tmp_path, flops=1e12)
    told.links = [1e-5, 2e-4]
    # The loader is slow; then a single measurement; then messages.
    loader, messages = {MESSAGES: 2.0}, {MESSAGES: 8.0}
    (change,) = told.train(*[{}] * 3, *[loader] * 5, messages, loader, messages, messages, loader)
    assert told.links == []
    assert change.reason.startswith("by its messages a minibatch takes ")
    assert len(told.plans[-1].placement.stages) == 1


class Watched:
    """A training whose worker ``workers // 2`` gets signals.

    Args:
        captured: the model.
        folder: of the training.
        signals: one for each deployment, when three measurements of it have been made.
        workers: how many.

    Attributes:
        document: the placement that it begins with.
        placements: that it was deployed with.
        notes: what it told; when it told the first, its folder was copied.
    """

    def __init__(
        self, captured: CapturedModel, folder: Path, *signals: int, workers: int = 4
    ) -> None:
        row = in_a_row(captured.graph, *range(workers))
        self.document = file_of(captured, row, METHOD, SGD)
        self.copy = folder.with_name("copy")
        self.placements: list[Placement] = []
        self.notes: list[str] = []
        self._captured, self._folder, self._signals = captured, folder, list(signals)
        self._hosts = LosableHosts([workers])
        self._workers = workers

    def train(self, profile: Profile, epochs: int) -> TrainingResult:
        """Train elastically."""
        with self._hosts.used(), self._sending():
            return self.trainer(
                self.document,
                self._folder,
                elastic=Elastic(1, self._workers, profile),
                observer=TrainerCallbacks(on_note=self._note),
            ).fit(every_sample(), epochs=epochs)

    def trainer(self, document: PlacementFile, folder: Path, **options: object) -> PipelineTrainer:
        return PipelineTrainer(
            document,
            model=self._captured,
            checkpoint_every=20,
            speeds=[0.08] * self._workers,
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
                os.kill(self._hosts.hosts[0].process_ids[self._workers // 2], number)

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
    seconds = Workload.of(profile, METHOD).seconds
    assert _shares(planned, seconds).get(2, 0.0) < _shares(first, seconds)[2]

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
    captured: CapturedModel, profile: Profile, tmp_path: Path
) -> None:
    watched = Watched(captured, tmp_path / "run", SLOW, FAST, workers=2)
    watched.train(profile, epochs=6)
    slow, fast = changes_in(tmp_path / "run")
    assert watched.notes == [slow.text, fast.text]
    seconds = Workload.of(profile, METHOD).seconds
    first, planned, again = (_shares(one, seconds) for one in watched.placements)
    # A worker without a stage would not show it.
    assert 0 < planned[1] < min(first[1], again[1])


@pytest.mark.slow
def test_without_a_slow_worker_the_plan_stays(
    captured: CapturedModel, profile: Profile, tmp_path: Path
) -> None:
    watched = Watched(captured, tmp_path / "run")
    watched.train(profile, epochs=4)
    assert changes_in(tmp_path / "run") == ()
    assert len(watched.placements) == 1
