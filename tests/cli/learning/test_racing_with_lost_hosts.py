"""A race to a loss goes on without hosts that are lost, and with all when they have returned."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.host_loss.losable_hosts import LosableHost, LosableHosts
from drlpp.cli import main as command_line
from drlpp.io.documents import read_document
from drlpp.io.run_folder import CHANGES_NAME
from drlpp.placement.placement_file import PlacementFile
from drlpp.runtime.training.changes_file import MeasuringChanged, read_changes
from drlpp.training_race.judging import replay, verdict_lines
from drlpp.training_race.learners import PipelineLearner
from drlpp.training_race.training_race_file import Racer, TrainingRace
from tests.support.in_turns import fast_are
from tests.support.models.classified_points import NAME
from tests.support.programs import shell
from tests.support.programs.shell import Finished


def race(out: Path, workers: int, *more: object) -> Finished:
    job = [f"{NAME}:classifier", "--data", f"{NAME}:points", "--workers", workers, "--out", out]
    job += ["--epochs", 1, "--finals", 1, "--rates", 1, "--evaluate-every", 6, "--lr", 0.01]
    return shell.finish(command_line.main, "drlpp", "race", *job, *more)


@contextmanager
def after(stints: int, act: Callable[[], None], then: int = 0) -> Iterator[None]:
    """Act when pipelines have trained to so many evaluations, and again after so many more."""
    count, moments = itertools.count(), {stints, stints + then}
    train = PipelineLearner.train_until

    def counted(learner: PipelineLearner, minibatches: int) -> object:
        if next(count) in moments:
            act()
        return train(learner, minibatches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipelineLearner, "train_until", counted)
        yield


def raced(out: Path) -> TrainingRace:
    return read_document(out / "race.json", TrainingRace)


def used(racer: Racer) -> set[int]:
    return set() if racer.placement is None else set(racer.placement.accelerators)


def changes(out: Path) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [
        (one.given_up, one.returned) for one in read_changes(out / CHANGES_NAME, MeasuringChanged)
    ]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "race"


@pytest.mark.system
@pytest.mark.timeout(600)
# In other tests it is the last host.
@pytest.mark.parametrize("lost", fast_are([0], [0, 1]))
def test_it_goes_on_with_those_that_do_not_need_the_host(out: Path, lost: int) -> None:
    hosts = LosableHosts([2, 2])
    with hosts.used(), after(3, lambda: hosts.hosts[lost].lose()):
        done = race(out, 4)
    assert done.code == 0, done.err
    gone, left = ((0, 1), (2, 3)) if lost == 0 else ((2, 3), (0, 1))
    assert changes(out) == [(gone, ())]
    printed = " ".join(done.out.split())
    assert f"host host-{lost} cannot be reached: accelerators {gone[0]}, {gone[1]} are" in printed
    assert "trainings the race continues on 2 accelerators" in printed
    found = raced(out)
    assert found.absent == gone
    curves = found.curves
    trained = {training.candidate for training in curves if curves[training].minibatches}
    for number, racer in enumerate(found.candidates):
        # Plain PyTorch, who runs on the others alone, and who joined for these trained to the end.
        assert number in trained or used(racer) & set(gone)
    assert {number for number, one in enumerate(found.candidates) if used(one) & set(gone)} == set(
        found.lost
    )
    assert any(used(one) == set(left) for one in found.candidates)
    end = replay(found)
    assert end is not None
    assert not set(end.result.finalists) & set(found.lost)
    for number, why in found.lost.items():
        assert end.result.ended[number] == why
    assert " ".join(next(verdict_lines(found, end)).split()) in printed
    (kept,) = out.glob("winner-*")
    if (kept / "placement.json").exists():
        placement = read_document(kept / "placement.json", PlacementFile)
        assert placement.cluster.host_names == (f"host-{1 - lost}",)


@pytest.mark.system
@pytest.mark.timeout(600)
def test_with_the_host_back_all_take_part_and_nothing_is_trained_again(out: Path) -> None:
    hosts = LosableHosts([2, 2])
    acts = iter([hosts.lose, hosts.return_])
    with hosts.used(), after(3, lambda: next(acts)(), then=6):
        done = race(out, 4)
    assert done.code == 0, done.err
    assert changes(out) == [((2, 3), ()), ((), (2, 3))]
    found = raced(out)
    assert (found.absent, found.lost) == ((), {})
    end = replay(found)
    assert end is not None
    assert not any(why.startswith("needs") for why in end.result.ended.values())
    trained = {run.candidate for run in found.runs if run.curve.minibatches}
    assert trained == set(range(len(found.candidates)))
    # Those that joined for two accelerators are behind those for all.
    whole = [number for number, one in enumerate(found.candidates) if used(one) == {0, 1, 2, 3}]
    part = [number for number, one in enumerate(found.candidates) if used(one) == {0, 1}]
    assert min(whole) < max(part)
    # Continued where all are there, it is over.
    with LosableHosts([2, 2]).used():
        done = race(out, 4, "--resume")
    assert done.code == 0, done.err
    assert raced(out) == found


@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_race_that_lost_a_host_is_continued_with_it(out: Path) -> None:
    hosts = LosableHosts([2, 1])
    with hosts.used(), after(2, hosts.lose):
        done = race(out, 3)
    assert done.code == 0, done.err
    before = raced(out)
    assert before.absent == (2,)
    with LosableHosts([2, 1]).used():
        done = race(out, 3, "--resume")
    assert done.code == 0, done.err
    assert changes(out) == [((2,), ()), ((), (2,))]
    found = raced(out)
    assert (found.absent, found.lost) == ((), {})
    assert found.candidates == before.candidates
    for training, curve in before.curves.items():
        assert found.curves[training].points[: len(curve.points)] == curve.points


@pytest.mark.system
def test_a_single_accelerator_is_too_few(out: Path) -> None:
    hosts = LosableHosts([1, 1])
    with hosts.used(), after(1, hosts.lose):
        done = race(out, 2)
    assert done.code == 1
    told = " ".join(done.err.split())
    assert "1 worker is left, and a comparison wants 2 at least" in told
    assert f"kept in {out}" in told
    assert "with other --workers it would be another run, which needs another --out" in told
    assert raced(out).runs
    # As it says.
    with LosableHosts([1]).used():
        assert race(out, 1, "--resume").code == 2


class LostWhenAsked(LosableHost):
    """Lost as soon as it is to time a link, in the middle of a profile."""

    def send(self, worker: int, command: object) -> None:
        if type(command).__name__ == "TimeLink" and not LostWhenAsked.was_lost:
            LostWhenAsked.was_lost = True
            self.lose()
        super().send(worker, command)  # type: ignore[arg-type]

    was_lost = False


@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_host_lost_while_the_profile_is_made(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The race is of those that are left, and of all when it has returned."""
    monkeypatch.setattr(LostWhenAsked, "was_lost", False)
    hosts = LosableHosts([2, 2], kinds_of_last(LostWhenAsked))
    with hosts.used(), after(4, hosts.return_):
        done = race(out, 4)
    assert done.code == 0, done.err
    printed = " ".join(done.out.split())
    told = "host host-1 cannot be reached: the profile is of the 2 workers that are there"
    assert told in printed
    assert changes(out) == [((), (2, 3))]
    found = raced(out)
    sets = [used(one) for one in found.candidates if one.placement is not None]
    assert sets[0] <= {0, 1}
    assert {0, 1, 2, 3} in sets


def kinds_of_last(kind: type[LosableHost]) -> Callable[..., LosableHost]:
    """The last of two hosts of two is another kind."""

    def made(workers: range, *given: object, **named: object) -> LosableHost:
        own = LosableHost if 0 in workers else kind
        return own(workers, *given, **named)  # type: ignore[arg-type]

    return made
