"""Time to a loss as seconds times minibatches: what is measured, replayed and shown."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.learning.race_tasks import TASKS, race_name
from benchmarks.learning.samples_needed import PLAIN, SamplesNeeded
from benchmarks.samples_to_loss.tasks import TASKS as STUDY_TASKS
from benchmarks.time_to_loss.__main__ import app
from benchmarks.time_to_loss.report import DEFAULT, chosen, table, time_to_loss
from benchmarks.time_to_loss.seconds import DIVIDED, KINDS, WHOLE, Speed


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


def needed(method: str, depth: int, ratio: float | None, deviation: float = 0.0) -> SamplesNeeded:
    return SamplesNeeded(
        task="race-mlp",
        method=method,
        depth=depth,
        target=0.1,
        minibatches=40,
        ratio=ratio,
        deviation=deviation,
    )


REPLAYED = [
    needed(PLAIN, 1, 0.9),
    needed(WHOLE, 2, 2.0),
    needed(WHOLE, 4, None),
    needed(DIVIDED, 2, 1.1),
    needed(DIVIDED, 4, 1.1, deviation=0.05),
]


def test_minibatches_of_a_replay_times_measured_seconds() -> None:
    for kind in set(KINDS) - {WHOLE, DIVIDED}:
        found = time_to_loss(speed(kind, 0.01), REPLAYED)
        assert found is not None
        # At its best rate plain training is there a little before its end at another.
        assert found.seconds == pytest.approx(0.01 * 36)
    late = time_to_loss(speed(WHOLE, 0.01, accelerators=2), REPLAYED)
    assert late is not None
    assert late.seconds == pytest.approx(0.01 * 80)
    divided = time_to_loss(speed(DIVIDED, 0.01), REPLAYED)
    assert divided is not None
    assert divided.seconds == pytest.approx(0.01 * 44)
    assert (divided.low, divided.high) == pytest.approx((0.01 * 42, 0.01 * 46))
    assert time_to_loss(speed(WHOLE, 0.01), REPLAYED) is None


def test_a_row_shows_all_workers_and_fewer_where_that_is_sooner() -> None:
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
    heading, _, row = table(speeds, REPLAYED).splitlines()
    assert heading == f"| workers | links | {' | '.join(KINDS)} | {DEFAULT} | soonest |"
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[:6] == ["4", "fast", "36", "27 on 3", "18", "–"]
    assert cells[7:9] == ["never; 32 on 2", "8.8 (8.4–9.2); 4.4 on 2"]
    assert cells[9:] == ["never, M = 1", f"{DIVIDED}, 2"]


def test_who_was_not_replayed_is_not_said_to_be_never_there() -> None:
    only_two = [one for one in REPLAYED if one.depth < 4]
    never = [one.model_copy(update={"ratio": None}) for one in only_two if one.method == WHOLE]
    speeds = [
        speed("plain PyTorch", 1.0, accelerators=1),
        speed(WHOLE, 0.1),
        speed(WHOLE, 0.4, accelerators=2),
        speed(DIVIDED, 0.2),
    ]
    row = table(speeds, [needed(PLAIN, 1, 0.9), *never]).splitlines()[2]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[7:10] == ["never on 2", "–", "–"]


def test_the_default_weighs_seconds_by_the_samples_that_late_gradients_need() -> None:
    def divided(seconds: float) -> Speed:
        return speed(DIVIDED, seconds).model_copy(update={"microbatches": 4})

    whole = speed(WHOLE, 1.0)
    # Three updates late 1.48 times the samples, 0.75 late 1.07.
    assert chosen([whole, divided(1.3)], 4) == divided(1.3)
    assert chosen([whole, divided(1.4)], 4) == whole


def test_the_default_has_a_stage_on_every_worker() -> None:
    whole = speed(WHOLE, 1.0)
    assert chosen([speed(WHOLE, 0.1, accelerators=2), whole], 4) == whole
    assert chosen([speed(WHOLE, 0.1, accelerators=2)], 4) is None
    assert chosen([speed("flushed 1F1B", 0.1)], 4) is None


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
    more = ["--needed", str(tmp_path / "none.jsonl"), "--document", str(document)]
    run = CliRunner().invoke(app, ["report", "--results", str(results), *more])
    assert run.exit_code == 0, run.output
    assert "|" not in document.read_text(), "nothing has been replayed"
