"""``drlpp learn``: what its agent may choose, races with ``--data``, and what is exported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from drlpp.agents import AGENTS
from drlpp.capturing.capture import capture
from drlpp.cli.learn_command import LearningJob, worth_racing
from drlpp.cli.race_command import export_winner
from drlpp.cli.settings import MethodSettings, RaceSettings, SearchSettings
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.io.documents import read_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender
from drlpp.racing.halving import replay
from drlpp.racing.rivals import PLAIN, YOURS, without_equals
from drlpp.racing.to_loss import Course, RaceData
from drlpp.racing.training_race import Final, RaceEnd, TrainingRace
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.cluster import Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.measured import measurement
from tests.support.models.classified_points import NAME
from tests.support.programs import shell
from tests.support.programs.short_comparisons import short_comparisons
from tests.support.simulated_chains import chain
from tests.support.training.endless_agent import ENDLESS
from tests.support.training.pipelines import in_a_row
from tests.support.training.races import race_of

MODEL, AGENT, FINALISTS, TARGET = f"{NAME}:classifier", "searching", 3, 0.9


class Learnt(NamedTuple):
    """What a run has left."""

    folder: Path
    printed: str
    race: TrainingRace
    end: RaceEnd


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Learnt:
    parent = tmp_path_factory.mktemp("time-to-loss")
    agent, folder = parent / f"{AGENT}.yaml", parent / "run"
    agent.write_text(ENDLESS)
    with short_comparisons(), pytest.MonkeyPatch.context() as patch:
        # One learning rate, and one training of each finalist.
        rules = {"target_loss": TARGET, "rates": 1, "finals": 1}
        patch.setattr(RaceSettings, "options", rules)
        done = shell.done(
            *("learn", MODEL, "--data", f"{NAME}:points", "--workers", 2),
            *("--target-loss", TARGET, "--optimizer", "adam"),
            *("--lr", 0.01, "--method-option", "microbatches=1", "--out", folder),
            *("--agent", agent, "--budget", 4, "--finalists", FINALISTS, "--rounds", 1),
            *("--minibatches", 4, "--repetitions", 1),
        )
    race = read_document(folder / "race" / "race.json", TrainingRace)
    end = replay(race)
    assert end is not None
    return Learnt(folder, done.words, race, end)


def written(path: Path) -> Candidate:
    """Return the candidate of a placement file."""
    document = read_document(path, PlacementFile)
    graph = capture(ModelReference.named(MODEL)).graph
    return Candidate(document.resolve(graph), document.method)


@pytest.mark.system
def test_what_the_agent_found_trains_in_turns_with_what_a_user_has(learnt: Learnt) -> None:
    agents = [one for one in learnt.race.candidates if AGENT in one.names]
    assert 1 <= len(agents) <= FINALISTS
    others = {name for contender in learnt.race.candidates for name in contender.names} - {AGENT}
    assert PLAIN in others
    # All of them were trained, the agent's too.
    trained = {run.candidate for run in learnt.race.runs if run.curve.minibatches}
    assert trained == set(range(len(learnt.race.candidates)))
    assert (learnt.race.target_loss, learnt.race.data) == (TARGET, f"{NAME}:points")


@pytest.mark.system
def test_what_is_printed_is_what_the_files_say(learnt: Learnt) -> None:
    _, printed, race, end = learnt
    for line in end.lines():
        assert " ".join(line.split()) in printed
    for contender in race.candidates:
        assert f"{contender.found_by} {contender.configuration}" in printed
    assert ("its weights so far: " in printed) == (end.winner is not None)


@pytest.mark.system
def test_what_is_exported_at_the_end_is_what_the_race_says(learnt: Learnt) -> None:
    """What is the fastest by seconds is exported as long as no placement has won the race.

    It was exported in any case, with a command to train with it, also where the race had just said
    that another placement, or plain PyTorch, has a good model first.
    """
    folder, printed, race, end = learnt
    comparison = read_document(folder / "comparison.json", Comparison)
    verdict = comparison.verdict
    assert verdict is not None
    assert verdict.placement is not None
    winner = None if end.winner is None else race.candidates[end.winner].candidate
    fastest = comparison.contenders[verdict.placement].candidate
    assert written(folder / "placement.json") == (winner or fastest)
    assert f"exported to {folder / 'placement.json'} until the race to a loss has ended" in printed
    plainly = end.verdict is not None and end.verdict.is_torch_as_good
    assert ("use plain PyTorch, as the race says" in printed) == plainly
    assert ("train with it: drlpp train" in printed) == (not plainly and winner is not None)
    assert AGENT in {name for contender in comparison.contenders for name in contender.names}


@pytest.mark.system
def test_placements_that_were_written_by_learn_and_plan_take_part(
    learnt: Learnt, tmp_path: Path
) -> None:
    learned, planned = learnt.folder / "placement.json", tmp_path / "planned.json"
    costs = ("--profile", learnt.folder / "profile.json")
    costs += ("--cluster", learnt.folder / "cluster.yaml")
    shell.done("plan", MODEL, *costs, "--out", planned)
    usual = ("race", MODEL, "--data", f"{NAME}:points", "--workers", 2, "--target-loss", 1.05)
    usual += ("--rates", 1, "--repetitions", 1, "--out", tmp_path / "race")
    given = [part for path in (learned, planned) for part in ("--compare", path)]
    with short_comparisons():
        shell.done(*usual, *given)
    race = read_document(tmp_path / "race" / "race.json", TrainingRace)
    given_again = [Contender.of(written(path), "again") for path in (learned, planned)]
    everyone = without_equals([*race.candidates, *given_again], CLUSTER)
    assert len(everyone) == len(race.candidates)
    names = {name for one in race.candidates for name in one.names}
    assert {f"{YOURS} 1", f"{YOURS} 2"} <= names
    # Other placements do not continue it.
    assert "placements" in shell.drlpp(*usual, *given[:2], "--resume").refusal


@pytest.mark.system
def test_a_run_to_a_loss_is_not_resumed_by_seconds(learnt: Learnt) -> None:
    """Its rivals have raced to a loss, and stay."""
    options = "--config", learnt.folder / "run.yaml", "--out", learnt.folder
    with short_comparisons():
        done = shell.drlpp("learn", *options, "--resume", "--objective", "seconds")
    assert "objective = 'loss'; it cannot be resumed with 'seconds'" in done.refusal


def test_of_each_kind_what_promises_the_loss_first_takes_part() -> None:
    """By seconds times samples: what is a little slower and less late is better."""
    one, two = (Placement.from_assignment(stages, (0, 1)) for stages in ([0, 0], [0, 1]))
    deep, usual, shallow = (Method(in_flight_per_link=links) for links in (2, 1, 0))
    deepest, middle, fresh = (Candidate(two, method) for method in (deep, usual, shallow))
    single, workload = Candidate(one, Method()), Workload.of(chain(1.0, 1.0))
    close = [(deepest, 1.0), (middle, 1.01), (fresh, 1.02), (single, 1.3)]
    assert worth_racing(close, workload) == [fresh, single]
    apart = [(deepest, 1.0), (middle, 2.0), (fresh, 3.0), (single, 1.2)]
    assert worth_racing(apart, workload) == [single, deepest]


def test_the_search_chooses_the_depth_unasked_and_folds() -> None:
    usual = MethodSettings()
    assert SearchSettings().space(Method(), usual).deepens
    flushing = Method(schedule="gpipe", policy="sync")
    schedules = SearchSettings(vary="schedule").space(flushing, usual)
    assert "zb-v" in {method.schedule for method in schedules.methods}


@pytest.mark.parametrize("agent", ["drl-pp", "guided"])
def test_a_method_that_no_policy_can_draw_is_refused_before_a_profile(agent: str) -> None:
    session: Any = SimpleNamespace(method=Method(schedule="zb-v", policy="sync"))
    given: Any = None
    with pytest.raises(InvalidInput, match="gives every accelerator one stage, and schedule zb-v"):
        LearningJob(session, Path(), agent, given, AGENTS[agent], "seconds", None, None).run()


CLUSTER = local_cluster(2, Link(bandwidth_bytes_per_second=1e9))


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    captured = capture(ModelReference.named(f"{NAME}:classifier"))
    with ClusterSession(captured, 2, optimizer=OptimizerSpec.parse("adam", lr=0.01)) as session:
        yield session


def told(
    session: ClusterSession, folder: Path, capsys: pytest.CaptureFixture[str], *seconds: float
) -> str:
    """Return what is printed after a race in which plain PyTorch and two pipelines took so long.

    An infinite time is of one that was not there.
    """
    stash = choose_method("stash", {"microbatches": 2})
    placement = in_a_row(session.graph, 0, 1)
    race = race_of(
        (
            Contender(found_by=PLAIN, method=Method(), threads=1),
            Contender(found_by="searching", placement=placement, method=Method()),
            Contender(found_by="even split", placement=placement, method=stash),
        ),
        rates=(0.01,),
        data=f"{NAME}:points",
    )
    costs = {number: cost for number, cost in enumerate(seconds) if cost < float("inf")}
    finals = {
        number: [Final(cost * wobble, True) for wobble in (0.99, 1.0, 1.01)]
        for number, cost in costs.items()
    }
    finalists = sorted(costs, key=costs.__getitem__)
    end = RaceEnd(race, 0.5, 60.0, {0: 0.01, 1: 0.03, 2: 0.05}, {}, costs, finalists, finals)
    course = Course(session, race, RaceData(session.captured, f"{NAME}:points"), folder)
    measured = Contender(
        found_by="searching",
        placement=placement,
        method=Method(),
        measurements=(measurement(0.004),),
    )
    export_winner(folder, (measured,), course, end, CLUSTER)
    return " ".join(capsys.readouterr().out.split())


def test_the_winner_is_exported_and_what_to_do_is_said(
    session: ClusterSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where plain PyTorch or nothing has won, no command trains with a placement."""
    path = tmp_path / "placement.json"
    for seconds, said in (
        ((5.0, 8.0, 9.0), "its weights so far: "),
        ((), "a longer race continues this one"),
    ):
        printed = told(session, tmp_path, capsys, *seconds)
        assert said in printed
        assert "drlpp train" not in printed
        assert not path.exists()
    for plain in (10.0, float("inf")):
        printed = told(session, tmp_path, capsys, plain, 5.0, 8.0)
        assert f"exported to {path}: 1-1, found by searching, the winner of the race" in printed
        model = f"--model {NAME}:classifier --data {NAME}:points"
        assert f"train with it: drlpp train {path} {model}" in printed
    document = read_document(path, PlacementFile)
    assert document.optimizer.settings == OptimizerSpec.parse("adam", lr=0.03).settings
    assert document.measurement is not None


@pytest.mark.system
def test_learning_weighs_samples_and_says_so(tmp_path: Path) -> None:
    """Search, race and verdict do; microbatches vary, and plain PyTorch needs no more samples."""
    with short_comparisons():
        printed = shell.done(
            *("learn", MODEL, "--workers", 2, "--out", tmp_path / "run"),
            *("--budget", 3, "--finalists", 2, "--rounds", 1, "--minibatches", 4),
            *("--repetitions", 1),
        ).words
    assert "reaches a loss" in printed
    assert "not trained here" in printed
    comparison = read_document(tmp_path / "run" / "comparison.json", Comparison)
    by_name = {name: one for one in comparison.contenders for name in one.names}
    assert by_name[PLAIN].samples == 1.0
    assert by_name["large-batch"].samples == 0.0
    late = [one for one in comparison.contenders if one.samples > 1]
    stages = [1 if one.placement is None else len(one.placement.stages) for one in late]
    assert all(n > 1 or one.approximates for n, one in zip(stages, late, strict=True))
