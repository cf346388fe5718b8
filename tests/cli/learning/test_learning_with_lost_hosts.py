"""A run that learns goes on without hosts that are lost, and with them when they have returned."""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.agent import ENDLESS
from benchmarks.host_loss.losable_hosts import LosableHost, LosableHosts
from drlpp.cli.learning import learn_command
from drlpp.comparison.compare import compare
from drlpp.comparison.comparison_file import Comparison
from drlpp.envs import MeasurementMemory
from drlpp.io.documents import read_document
from drlpp.io.run_folder import CHANGES_NAME
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.measurements_file import Entry, read_measurements
from drlpp.placement.placement_file import PlacementFile
from drlpp.runtime import ClusterSession
from drlpp.runtime.ipc.time_limits import TimeLimits
from drlpp.runtime.training.changes_file import MeasuringChanged, read_changes
from drlpp.specs.cluster import Cluster
from drlpp.training_race.training_race_file import Racer, TrainingRace
from tests.support.models.classified_points import NAME
from tests.support.programs import shell
from tests.support.programs.shell import Finished
from tests.support.programs.short_comparisons import short_comparisons

BRIEF = ["--minibatches", 4, "--repetitions", 1, "--rounds", 1, "--finalists", 1]
BRIEF += ["--method-option", "microbatches=1"]


MODEL = ["--model", "tests.support.models.small:perceptron", "--model-option", "batch_size=2"]


def learn(out: Path, budget: int, *more: object, model: Sequence[str] = MODEL) -> Finished:
    agent = out.with_name("guided.yaml")
    agent.write_text(ENDLESS)
    job = [*model, "--out", out, "--budget", budget, "--agent", agent, *BRIEF, *more]
    with short_comparisons():
        return shell.finish(learn_command.main, "drlpp learn", *job)


def entries(out: Path) -> list[Entry]:
    return list(read_measurements(out / "measurements.jsonl")[1])


def used(entry: Entry | Racer) -> set[int]:
    assert entry.placement is not None
    return set(entry.placement.accelerators)


def changes(out: Path) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    found = read_changes(out / CHANGES_NAME, MeasuringChanged)
    return [(change.given_up, change.returned, change.workers) for change in found]


@contextmanager
def after(runs: int, act: Callable[[], None], then: int = 0) -> Iterator[None]:
    """Act when so many runs have been measured, and again after so many more."""
    count, moments = itertools.count(1), {runs, runs + then}
    run = MeasurementMemory._run

    def counted(memory: MeasurementMemory, plan: object) -> None:
        if next(count) - 1 in moments:
            act()
        run(memory, plan)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MeasurementMemory, "_run", counted)
        yield


class Flapping(LosableHost):
    """Once it is lost, it is back at once, and lost whenever it starts a worker."""

    def has_returned(self, worker: int) -> bool:
        return True

    def publish(self, path: Path) -> None:
        if not self.is_lost:
            super().publish(path)


def called(name: str) -> Callable[..., LosableHost]:
    """What makes hosts of this name."""

    def host(workers: range, folder: Path, _: str, *, limits: TimeLimits) -> LosableHost:
        return LosableHost(workers, folder, name, limits=limits)

    return host


@contextmanager
def failing_on(numbers: tuple[int, ...]) -> Iterator[None]:
    """Let everything fail that the agent measures on these accelerators."""
    run = MeasurementMemory._run
    failure = FailedMeasurement(failure="out of memory", reason="there is too little")

    def fails(memory: MeasurementMemory, plan: object) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if memory._part.numbers == numbers:
                patch.setattr(memory.measurer, "measure", lambda *given: failure)
            run(memory, plan)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MeasurementMemory, "_run", fails)
        yield


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.system
def test_it_goes_on_with_what_is_left_and_grows_again(out: Path) -> None:
    hosts = LosableHosts([2, 2])
    acts = iter([hosts.lose, hosts.return_])
    with hosts.used(), after(2, lambda: next(acts)(), then=3):
        done = learn(out, 7, "--workers", 4)
    assert done.code == 0, done.err
    assert changes(out) == [((2, 3), (), (0, 1)), ((), (2, 3), (0, 1, 2, 3))]
    found = entries(out)
    assert len(found) == 7
    assert not any(used(entry) & {2, 3} for entry in found[2:5])
    assert len({(entry.placement, entry.method) for entry in found}) == len(found)
    printed = " ".join(done.out.split())
    assert "host host-1 cannot be reached: accelerators 2, 3 are not there" in printed
    comparison = read_document(out / "comparison.json", Comparison)
    assert comparison.cluster is None
    assert read_document(out / "placement.json", PlacementFile).cluster.accelerators == 4


@pytest.mark.system
def test_a_run_on_fewer_exports_for_these_and_is_resumed_on_any_number(out: Path) -> None:
    hosts = LosableHosts([2, 2])
    with hosts.used(), after(2, hosts.lose):
        done = learn(out, 4, "--workers", 4)
    assert done.code == 0, done.err
    comparison = read_document(out / "comparison.json", Comparison)
    placement = read_document(out / "placement.json", PlacementFile)
    assert comparison.cluster is not None
    assert comparison.cluster.host_names == placement.cluster.host_names == ("host-0",)
    assert placement.cluster.accelerators == 2
    assert {
        used for c in comparison.contenders if c.placement for used in c.placement.accelerators
    } <= {0, 1}
    assert "on 2 accelerators, of host-0" in (out / "report.html").read_text()
    search = json.loads((out / "search.json").read_text())
    assert search["accelerators"] == [0, 1]
    known = entries(out)

    # With the workers that were left, nothing new is there, and nothing is measured again.
    with LosableHosts([2]).used():
        done = learn(out, len(known), "--workers", 2, "--resume")
    assert done.code == 0, done.err
    assert changes(out) == [((2, 3), (), (0, 1))]
    assert entries(out) == known

    with LosableHosts([2, 2]).used():
        done = learn(out, len(known) + 1, "--workers", 4, "--resume")
    assert done.code == 0, done.err
    assert changes(out)[1:] == [((), (2, 3), (0, 1, 2, 3))]
    assert entries(out)[: len(known)] == known
    assert len(entries(out)) == len(known) + 1

    # One more host than there ever was.
    with LosableHosts([2, 2, 1]).used():
        done = learn(out, len(known) + 2, "--workers", 5, "--resume")
    assert done.code == 0, done.err
    assert changes(out)[2:] == [((), (4,), (0, 1, 2, 3, 4))]
    assert read_measurements(out / "measurements.jsonl")[0].accelerators == 5
    assert read_document(out / "placement.json", PlacementFile).cluster.accelerators == 5


@pytest.mark.system
def test_a_single_accelerator_is_too_few(out: Path) -> None:
    hosts = LosableHosts([1, 2])
    with hosts.used(), after(2, hosts.lose):
        done = learn(out, 4, "--workers", 3)
    assert done.code == 1
    assert "1 worker is left, and a comparison wants 2 at least" in " ".join(done.err.split())
    assert (out / "placement.json").exists()


@pytest.mark.system
def test_a_host_lost_in_the_comparison_leaves_one_of_what_is_planned(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is spent, on a host that is lost: what was measured there corrects the costs."""
    hosts = LosableHosts([2, 2])
    planned: list[object] = []

    def compare_when_lost(
        session: ClusterSession, contenders: object, *given: Any, **named: Any
    ) -> Comparison:
        planned.append(contenders)
        hosts.hosts[0].lose()
        return compare(session, contenders, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("drlpp.comparison.compare.compare", compare_when_lost)
    with hosts.used():
        done = learn(out, 1, "--workers", 4)
    assert done.code == 0, done.err
    assert changes(out) == [((0, 1), (), (2, 3))]
    (measured,) = entries(out)
    assert used(measured) & {0, 1}
    assert len(planned) == 2
    placement = read_document(out / "placement.json", PlacementFile)
    assert placement.cluster.host_names == ("host-1",)
    comparison = read_document(out / "comparison.json", Comparison)
    assert comparison.contenders[0].found_by == "guided"
    assert comparison.contenders[0].measurements


@pytest.mark.system
def test_what_fails_on_those_that_are_left_leaves_what_is_planned(out: Path) -> None:
    hosts = LosableHosts([2, 2])
    with hosts.used(), failing_on((2, 3)), after(2, lambda: hosts.hosts[0].lose()):
        done = learn(out, 4, "--workers", 4)
    assert done.code == 0, done.err
    found = entries(out)
    assert not any(used(entry) <= {2, 3} for entry in found[:2])
    failed = {entry.placement.canonical for entry in found if entry.outcome.outcome == "failed"}
    assert len(failed) == 2
    comparison = read_document(out / "comparison.json", Comparison)
    best = comparison.contenders[0]
    assert best.found_by == "guided"
    assert best.measurements
    assert best.placement is not None
    assert best.placement.on([2, 3]).canonical not in failed
    assert read_document(out / "placement.json", PlacementFile).cluster.host_names == ("host-1",)


@pytest.mark.system
def test_a_host_that_returns_only_to_be_lost_at_once_is_done_without(out: Path) -> None:
    hosts = LosableHosts([2, 2], Flapping)
    with hosts.used(), after(2, hosts.lose):
        done = learn(out, 6, "--workers", 4)
    assert done.code == 0, done.err
    found = changes(out)
    # Lost, taken back after a run, lost; again after two more runs; not after four, nor before the
    # comparison: the budget is spent.
    lost, back = ((2, 3), (), (0, 1)), ((), (2, 3), (0, 1, 2, 3))
    assert found == [lost, back, lost, back, lost]
    printed = " ".join(done.out.split())
    assert "is asked after 2 more runs" in printed
    assert "is asked after 4 more runs" in printed
    assert len(entries(out)) == 6
    placement = read_document(out / "placement.json", PlacementFile)
    assert placement.cluster.host_names == ("host-0",)


@pytest.mark.system
def test_a_host_that_flaps_when_the_budget_is_spent_is_taken_back_once(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = LosableHosts([2, 2], Flapping)

    def compare_without(session: ClusterSession, *given: Any, **named: Any) -> Comparison:
        hosts.lose()
        return compare(session, *given, **named)

    monkeypatch.setattr("drlpp.comparison.compare.compare", compare_without)
    with hosts.used():
        done = learn(out, 1, "--workers", 4)
    assert done.code == 0, done.err
    lost, back = ((2, 3), (), (0, 1)), ((), (2, 3), (0, 1, 2, 3))
    assert changes(out) == [lost, back, lost]
    assert len(entries(out)) == 1


@pytest.mark.system
def test_a_race_is_resumed_on_fewer_workers_and_on_all(out: Path) -> None:
    """Who needs others is out, what was trained stays, and others join for those that are left."""
    racing = ["--objective", "time-to-loss", "--data", f"{NAME}:points", "--target-loss", 1.05]
    racing += ["--optimizer", "adam", "--lr", 0.01, "--limit", 20]
    model = ["--model", f"{NAME}:classifier"]

    def race() -> TrainingRace:
        return read_document(out / "race" / "race.json", TrainingRace)

    with LosableHosts([1, 2]).used():
        done = learn(out, 2, "--workers", 3, *racing, model=model)
    assert done.code == 0, done.err
    first = race()
    assert any(used(racer) == {0, 1, 2} for racer in first.candidates if racer.placement)
    # The first host is gone: who is there has other numbers as a worker.
    with LosableHosts([2], called("host-1")).used():
        done = learn(out, 3, "--workers", 2, *racing, "--resume", model=model)
    assert done.code == 0, done.err
    second = race()
    assert second.absent == (0,)
    assert any(used(racer) == {1, 2} for racer in second.candidates if racer.placement)
    assert read_document(out / "placement.json", PlacementFile).cluster.host_names == ("host-1",)
    for training, curve in first.curves.items():
        assert second.curves[training].points[: len(curve.points)] == curve.points
    with LosableHosts([1, 2]).used():
        done = learn(out, 4, "--workers", 3, *racing, "--resume", model=model)
    assert done.code == 0, done.err
    assert race().absent == ()
    assert race().candidates[: len(second.candidates)] == second.candidates


@pytest.mark.system
def test_a_host_lost_while_the_profile_is_made_is_done_without(out: Path) -> None:
    hosts = LosableHosts([2, 2])
    profile = ClusterSession.profile
    moments = itertools.count()

    def lost_at_first(session: ClusterSession, *given: Any) -> object:
        if next(moments) == 0:
            hosts.lose()
        return profile(session, *given)

    with hosts.used(), after(2, hosts.return_), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClusterSession, "profile", lost_at_first)
        done = learn(out, 5, "--workers", 4)
    assert done.code == 0, done.err
    printed = " ".join(done.out.split())
    told = "host host-1 cannot be reached: the profile is of the 2 workers that are there"
    assert told in printed
    # Nothing was known of the others: they have joined.
    assert changes(out) == [((), (2, 3), (0, 1, 2, 3))]
    found = entries(out)
    assert not any(used(entry) & {2, 3} for entry in found[:3])
    assert len(found) == 5
    assert read_document(out / "placement.json", PlacementFile).cluster.accelerators == 4
    assert read_document(out / "cluster.yaml", Cluster).host_names == ("host-0", "host-1")
