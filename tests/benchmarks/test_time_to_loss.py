"""Time to a loss as seconds times minibatches: what is measured, replayed and shown."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.samples_to_loss.methods import BASELINE
from benchmarks.samples_to_loss.runs import Result
from benchmarks.samples_to_loss.search import Progress, Study
from benchmarks.samples_to_loss.tasks import TASKS as STUDY_TASKS
from benchmarks.samples_to_loss.tasks import race_name
from benchmarks.time_to_loss.__main__ import app
from benchmarks.time_to_loss.report import table, time_to_loss
from benchmarks.time_to_loss.seconds import DIVIDED, KINDS, WHOLE, Speed
from benchmarks.time_to_loss.tasks import TASKS


def speed(kind: str, seconds: float, accelerators: int = 4, workers: int = 4) -> Speed:
    return Speed(
        task="mlp",
        workers=workers,
        links="fast",
        kind=kind,
        accelerators=accelerators,
        microbatches=1,
        seconds=(2 * seconds, seconds, seconds / 2),
    )


@pytest.fixture
def progress() -> Progress:
    """Whole minibatches need twice plain training's with two stages, and never get there on four.

    Divided ones need 1.1 times as many with any number of stages.
    """
    study = Study("race-mlp", False, 40, (2, 4), (WHOLE, DIVIDED))
    needed = {BASELINE: 1.0, DIVIDED: 1.1, WHOLE: 2.0}
    results: list[Result] = []
    while jobs := Progress(study, results).next_jobs():
        for job in jobs:
            factor = needed[job.method]
            if (job.method, job.depth) == (WHOLE, 4):
                factor = 10.0
            minibatches = tuple(range(4, job.minibatches + 1, 4))
            losses = tuple(
                factor * 40 / done + abs(job.learning_rate - 0.002) for done in minibatches
            )
            results.append(Result(job=job, minibatches=minibatches, losses=losses, seconds=1.0))
    return Progress(study, results)


def test_minibatches_of_a_replay_times_measured_seconds(progress: Progress) -> None:
    for kind in set(KINDS) - {WHOLE, DIVIDED}:
        found = time_to_loss(speed(kind, 0.01), progress)
        assert found is not None
        assert found.seconds == pytest.approx(0.01 * 40)
    late = time_to_loss(speed(WHOLE, 0.01, accelerators=2), progress)
    assert late is not None
    assert late.seconds == pytest.approx(0.01 * 80, rel=0.01)
    assert time_to_loss(speed(WHOLE, 0.01), progress) is None


def test_a_row_shows_all_workers_and_fewer_where_that_is_sooner(progress: Progress) -> None:
    speeds = [
        speed("plain PyTorch", 1.0, accelerators=1),
        speed("data parallelism", 0.75, accelerators=3),
        speed("flushed 1F1B", 0.5),
        speed("flushed 1F1B", 0.6, accelerators=2),
        speed(WHOLE, 0.1),
        speed(WHOLE, 0.4, accelerators=2),
        speed(DIVIDED, 0.2),
        speed(DIVIDED, 0.1, accelerators=2),
    ]
    heading, _, row = table(speeds, progress).splitlines()
    assert heading == f"| workers | links | {' | '.join(KINDS)} | soonest |"
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[:6] == ["4", "fast", "40.0", "30.0 on 3", "20.0", "–"]
    assert cells[7].startswith("32.0")
    assert cells[7].endswith(" on 2")
    assert cells[8].startswith("8.8")
    assert "; 4.4" in cells[8]
    assert cells[9] == f"{DIVIDED}, 2"


def test_epochs_are_those_of_the_data() -> None:
    for name, task in TASKS.items():
        study = STUDY_TASKS[race_name(name)]
        assert len(study.load().train) // task.batch_size == task.epoch
        assert study.minibatches == 3 * task.epoch
        assert study.model.build().inputs[0].shape[0] == task.batch_size


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_everybody_is_measured_and_reported(tmp_path: Path) -> None:
    results, document = tmp_path / "seconds.jsonl", tmp_path / "page.md"
    asked = ["mlp", "--workers", "2", "--speed", "1", "--rounds", "1", "--minibatches", "4"]
    run = CliRunner().invoke(app, ["seconds", *asked, "--results", str(results)])
    assert run.exit_code == 0, run.output
    found = [Speed.model_validate_json(line) for line in results.read_text().splitlines()]
    kinds = {speed.kind for speed in found}
    assert kinds == set(KINDS)
    assert all(speed.median > 0 for speed in found)
    document.write_text(
        "<!-- results: written by benchmarks.time_to_loss -->\n<!-- end of results -->\n"
    )
    more = ["--replays", str(tmp_path / "none.jsonl"), "--document", str(document)]
    run = CliRunner().invoke(app, ["report", "--results", str(results), *more])
    assert run.exit_code == 0, run.output
    assert "|" not in document.read_text(), "nothing has been replayed"
