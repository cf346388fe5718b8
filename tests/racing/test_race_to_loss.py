"""Races on live workers: pauses change nothing, what was killed continues, weights are left."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from drlpp.capturing.capture import capture
from drlpp.cli.main import app
from drlpp.errors import InvalidInput, RunFailure, WorkerLost
from drlpp.io.documents import read_document, write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.planners import Space
from drlpp.racing.contenders import Contender
from drlpp.racing.halving import replay
from drlpp.racing.parallel import ParallelLearner
from drlpp.racing.plain import MODULE_CHECKPOINT, PlainLearner
from drlpp.racing.prospects import usual_candidates, with_a_chance
from drlpp.racing.rivals import PLAIN, Grounds
from drlpp.racing.to_loss import RaceData, race_to_loss
from drlpp.racing.training_race import Curve, Training, TrainingRace
from drlpp.runtime import ClusterSession
from drlpp.runtime.ipc.protocol import ParallelWay
from drlpp.runtime.training.checkpoints import export_weights
from drlpp.runtime.training.trainer import Trainer
from drlpp.runtime.training.training_plan import TrainerCallbacks, TrainingPlan
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.cluster import Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.in_turns import fast_are
from tests.support.models.classified_points import NAME, classifier, data
from tests.support.training.pipelines import in_a_row


def candidates(session: ClusterSession) -> list[Contender]:
    placement = in_a_row(session.graph, 0, 1)
    flushed = choose_method("sync", {"schedule": "1f1b-flush", "microbatches": 2})
    methods = [Method(), flushed]
    pipelines = [Contender.of(Candidate(placement, method), "by hand") for method in methods]
    return [Contender(found_by=PLAIN, method=Method(), threads=1), *pipelines]


@pytest.mark.parametrize(
    "method", fast_are([Method()], [Method(), Method(microbatches=2), Method(accumulate=2)])
)
def test_pauses_change_nothing(session: ClusterSession, tmp_path: Path, method: Method) -> None:
    """Bit for bit as checkpoints there, though others use the workers meanwhile."""
    plan = session.plan(in_a_row(session.graph, 0, 1), method)
    whole = Trainer(
        session,
        data(),
        _new(tmp_path / "whole"),
        TrainingPlan(2, checkpoint_every=4),
        TrainerCallbacks(),
    ).train(plan)
    endless, folder = TrainingPlan(1, checkpoint_every=4), _new(tmp_path / "pauses")
    trainer = Trainer(session, data(), folder, endless, TrainerCallbacks())
    seen = []
    # An epoch has 12 minibatches.
    for stop in (4, 8, 12, 20, 24):
        stint = trainer.train_until(plan, stop)
        session.measure(in_a_row(session.graph, 1, 0), 4)
        seen.append((stint.first, stint.done))
        assert stint.seconds > 0
    assert seen == [(0, 4), (4, 8), (8, 12), (12, 20), (20, 24)]
    checkpoint = folder / "checkpoint.pt"
    again = session.collect(session.deploy(plan, checkpoint=checkpoint))[0]
    torch.testing.assert_close(again, whole, rtol=0, atol=0)


@pytest.mark.parametrize("way", ["ddp", "powersgd", "fsdp", "local-sgd", "diloco"])
def test_torchs_own_data_parallelism_trains_in_pauses(
    session: ClusterSession, tmp_path: Path, way: ParallelWay
) -> None:
    """As without them, dropout included; in epochs of 12 minibatches."""

    def trained(*stops: int) -> tuple[Any, Any]:
        one = Contender(found_by=way, method=Method(), way=way, processes=2, every=4, threads=1)
        folder = _new(tmp_path / f"{len(stops)} stints")
        learner = ParallelLearner(session, one, data(), folder, session.optimizer)
        stints = [learner.train_until(stop) for stop in stops]
        assert [(one.first, one.done) for one in stints] == [*pairwise((0, *stops))]
        # As if the note of the last was lost.
        assert learner.train_until(stops[-1]).first == stops[-1]
        return torch.load(folder / MODULE_CHECKPOINT)["model"], stints[-1].held_out_loss

    torch.testing.assert_close(trained(6, 12, 16), trained(12, 16), rtol=1e-5, atol=1e-7)


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


OPTIONS: dict[str, Any] = {"epochs": 1, "every": 4, "rates": 1, "finals": 2}


def _race(session: ClusterSession, folder: Path, **options: Any) -> TrainingRace:
    folder.mkdir(exist_ok=True)
    data = RaceData(session.captured, f"{NAME}:points")
    course, _ = race_to_loss(session, candidates(session), data, folder, **(OPTIONS | options))
    return course.race


@pytest.mark.system
def test_where_one_accelerator_has_not_got_the_memory_torchs_shards_set_the_loss(
    tmp_path: Path,
) -> None:
    """Plain PyTorch needs 6.4 megabytes for weights, gradients and Adam's state alone."""
    short = local_cluster(2, Link(bandwidth_bytes_per_second=1e9), memory_bytes=5.6e6)
    adam = OptimizerSpec.parse("adam")
    emulated: dict[str, Any] = {"speeds": [0.4, 0.4], "links": short, "optimizer": adam}
    with ClusterSession(f"{NAME}:large", 2, **emulated) as session:
        grounds = Grounds(session, *session.profile(repeats=2), Space(session.method))
        usual = usual_candidates(grounds)
        assert usual[0].way in ("zero-1", "zero-2", "fsdp")
        chosen, _ = with_a_chance(grounds, usual)
        data = RaceData(session.captured, f"{NAME}:points")
        course, end = race_to_loss(session, chosen[:2], data, tmp_path, **OPTIONS)
    assert end.loss < course.race.runs[0].curve.points[0].comparable_loss
    assert 0 in end.costs
    assert PLAIN not in " ".join(end.lines())


def test_a_race_that_was_killed_is_continued(
    session: ClusterSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last note is lost, as if it was killed between a checkpoint and the note.

    Workers that are lost once, before that, decide nothing.
    """
    path, train_until, losses = tmp_path / "race.json", Trainer.train_until, iter([1, 0, 0, 1])

    def sometimes_lost(*given: Any) -> object:
        if next(losses, False):
            raise WorkerLost("worker 1 was killed by signal 9")
        return train_until(*given)

    monkeypatch.setattr(Trainer, "train_until", sometimes_lost)
    race = _race(session, tmp_path)
    assert read_document(path, TrainingRace) == race
    end = replay(race)
    assert end is not None
    # Plain PyTorch has set the loss, so it has reached it.
    assert 0 in end.costs
    assert end.loss < race.runs[0].curve.points[0].comparable_loss
    for run in race.runs:
        assert run.curve.failure is None
        done = [point.minibatches for point in run.curve.points[:4]]
        assert done == [0, 4, 8, 12][: len(done)]
    with monkeypatch.context() as patch:
        # Whoever trained would raise: a finished race trains nothing again.
        patch.delattr(Trainer, "train_until")
        patch.delattr(PlainLearner, "train_until")
        assert _race(session, tmp_path) == race
    *others, last = race.runs
    cut = last.model_copy(update={"curve": Curve(points=last.curve.points[:-1])})
    write_document(path, race.model_copy(update={"runs": (*others, cut)}))
    again = _race(session, tmp_path)
    assert replay(again) is not None
    # How far a training goes depends on the time that it takes; what it gives does not.
    for training, curve in race.curves.items():
        pairs = zip(again.curves[training].points, curve.points, strict=False)
        assert all(one.loss == pytest.approx(other.loss, rel=1e-5) for one, other in pairs)


def test_where_plain_pytorch_diverges_the_race_says_so(
    session: ClusterSession, tmp_path: Path
) -> None:
    options = {"epochs": 3, "every": 6, "finals": 1}
    wild = OptimizerSpec.parse("sgd", lr=3e38)
    session.optimizer, before = wild, session.optimizer
    try:
        with pytest.raises(RunFailure, match=r"plain PyTorch.* not finite"):
            _race(session, tmp_path, **options)
        # With a target of the user's own it is one candidate that fails, like others.
        race = _race(session, tmp_path / "target", **options, target_loss=0.1)
        end = replay(race)
        assert end is not None
        assert end.winner is None
        assert all("not finite" in end.ended[number] for number in range(3))
    finally:
        session.optimizer = before


def test_what_cannot_be_raced_is_refused(session: ClusterSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="held-out"):
        RaceData(session.captured, f"{NAME}:without_held_out")
    data = RaceData(session.captured, f"{NAME}:points")
    with pytest.raises(ValueError, match="plain PyTorch"):
        race_to_loss(session, candidates(session)[1:], data, tmp_path)


@pytest.mark.system
def test_the_command_races_and_is_resumed(tmp_path: Path) -> None:
    """A user's own layout takes part: the last module of six is a stage."""
    out = tmp_path / "race"
    arguments = [
        "race", f"{NAME}:classifier", "--data", f"{NAME}:points", "--workers", "2", "--epochs", "1",
        "--repetitions", "1", "--rates", "1", "--out", str(out),
        "--compare", "modules:5",
    ]  # fmt: skip
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "plain PyTorch" in result.output
    race = read_document(out / "race.json", TrainingRace)
    *others, last = range(len(capture(ModelReference.named(f"{NAME}:classifier")).graph))
    # By another name where a planner proposes the same.
    own = {
        number
        for number, one in enumerate(race.candidates)
        if one.placement is not None
        and [stage.operators for stage in one.placement.stages] == [tuple(others), (last,)]
    }
    assert own & {run.candidate for run in race.runs}
    shown = CliRunner().invoke(app, ["show", str(out / "race.json")], catch_exceptions=False)
    assert "first at" in shown.output
    assert isinstance(CliRunner().invoke(app, arguments).exception, InvalidInput)
    resumed = CliRunner().invoke(app, [*arguments, "--resume"], catch_exceptions=False)
    assert resumed.exit_code == 0
    assert read_document(out / "race.json", TrainingRace) == race
    other = [*arguments[:-1], "modules:3", "--resume"]
    assert isinstance(CliRunner().invoke(app, other).exception, InvalidInput)
    trained = {run.candidate for run in race.runs if run.curve.minibatches}
    assert trained == set(range(len(race.candidates)))


def test_a_race_leaves_weights_of_what_it_trained(session: ClusterSession, tmp_path: Path) -> None:
    """They load into the user's module, plain PyTorch's and a pipeline's."""
    data = RaceData(session.captured, f"{NAME}:points", seed=3)
    options = OPTIONS | {"every": 6, "finals": 1}
    course, end = race_to_loss(session, candidates(session), data, tmp_path, **options)
    plain, pipeline = (Training(number, end.rates[number] or 0.01) for number in (0, 1))
    for training in (plain, pipeline):
        course.train(training, lambda curve: curve.minibatches >= 16)
    saved = torch.load(course.folder_of(plain) / MODULE_CHECKPOINT, weights_only=True)
    exported = tmp_path / "model.safetensors"
    assert export_weights(course.folder_of(pipeline), exported)
    for weights in (saved["model"], load_file(exported)):
        classifier().module.load_state_dict(weights)


def test_a_race_continues_with_more_finals_and_candidates(
    session: ClusterSession, tmp_path: Path
) -> None:
    data = RaceData(session.captured, f"{NAME}:points")
    *two, third = candidates(session)
    # A loss that all reach, whatever their time: so all of them are there in the end.
    options = OPTIONS | {"target_loss": 1.05}
    course, _ = race_to_loss(session, two, data, tmp_path, **options)
    known = course.race.curves
    more = options | {"finals": 3}
    course, end = race_to_loss(session, [*two, third], data, tmp_path, **more)
    for training, curve in known.items():
        assert course.race.curves[training].points[: len(curve.points)] == curve.points
    assert {training.seed for training in course.race.curves} == {0, 1, 2, 3}
    assert any(training.candidate == 2 for training in course.race.curves)
    assert end.winner is not None
    with pytest.raises(InvalidInput, match="every = 4"):
        race_to_loss(session, [*two, third], data, tmp_path, **(more | {"every": 6}))
