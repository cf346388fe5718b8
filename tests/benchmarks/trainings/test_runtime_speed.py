"""The benchmark of the runtime's speed at its smallest: what is compared, and that it is equal."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.machine import this_machine
from benchmarks.models import placement_of, reference
from benchmarks.runtime_speed import __main__ as runtime_speed
from benchmarks.runtime_speed.__main__ import (
    FULL,
    SHORT,
    as_plain,
    check_numerics,
    measure,
)
from benchmarks.runtime_speed.report import NUMERICS_GOAL, rows_of, verdicts_of
from benchmarks.runtime_speed.runner import check_cores
from benchmarks.runtime_speed.samples import Case, Contender, Sample, SpeedSamples
from drlpp.capturing.capture import capture
from drlpp.errors import InvalidInput, RunFailure
from drlpp.io.documents import write_document
from drlpp.schedule.method import Method
from drlpp.torch_versions import older_than

SMALLEST = SHORT.model_copy(
    update={
        "models": {"feed_forwards": {"batch_size": 4, "hidden": 8, "tokens": 2}},
        "straight": ((3, 5), (4, 4)),
        "replicated": (),
        "minibatches": 2,
    }
)
EVEN = Case(model="feed_forwards", blocks=(4, 4), replicas=(1, 1))
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speed") / "samples.json"


@pytest.fixture(scope="module")
def measured(path: Path) -> SpeedSamples:
    if older_than("2.13"):
        pytest.skip("the rival's stages and schedules take what torch has since 2.13")
    return measure(SMALLEST, path, QUIET)


@pytest.mark.system
def test_everybody_trains_to_the_same_weights(measured: SpeedSamples) -> None:
    assert len(measured.differences) == len(measured.samples)
    assert max(measured.differences.values()) < 1e-5


@pytest.mark.system
def test_every_contender_has_its_samples(measured: SpeedSamples) -> None:
    names = [str(s.contender) for s in measured.samples if s.case == EVEN]
    assert names == [
        "1f1b vanilla",
        "1f1b pipeoptim",
        "1f1b stash",
        "1f1b vanilla, 1 more in flight per link",
        "gpipe, M = 2",
        "1f1b-flush, M = 2",
        "torch pipelining gpipe, M = 2",
        "torch pipelining 1f1b, M = 2",
        "torch data parallel",
    ]
    uneven = [str(s.contender) for s in measured.samples if s.case != EVEN]
    assert uneven == [*names[:2], names[3]]
    # Faster than its busiest worker computes no pipeline can be, but for where the window's edges
    # cut; and no worker has been asleep for nothing.
    assert all(0 < s.busiest_seconds < 2 * s.seconds for s in measured.samples)


@pytest.mark.system
def test_a_run_goes_on_where_it_was_interrupted(
    measured: SpeedSamples, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_speed, "side_by_side", None)
    assert measure(SMALLEST, path, QUIET) == measured
    with pytest.raises(InvalidInput, match="other settings"):
        measure(SMALLEST.model_copy(update={"minibatches": 3}), path, QUIET)


def test_samples_of_another_machine_are_not_gone_on_with(tmp_path: Path) -> None:
    here = this_machine()
    assert here.is_like(here.model_copy(update={"date": "1970-01-01"}))
    sample = Sample(
        case=EVEN,
        contender=Contender(theirs="data parallel"),
        repetition=0,
        seconds=1,
        busiest_seconds=1,
    )
    there = here.model_copy(update={"cores": here.cores + 1})
    document = SpeedSamples(settings=SMALLEST, machine=there, samples=(sample,))
    write_document(tmp_path / "samples.json", document)
    with pytest.raises(InvalidInput, match=f"another machine .*{here.cores + 1} cores"):
        measure(SMALLEST, tmp_path / "samples.json", QUIET)


def test_accelerators_that_do_not_fit_the_cores_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    check_cores([0.45] * 4)
    # 1.5 of 1.8 cores, but no core can give two halves away.
    with pytest.raises(InvalidInput, match=r"3 workers of speed 0\.5 .* at most 0\.45"):
        check_cores([0.5] * 3)
    for emulation in ("dilation", "control-groups"):
        settings = SMALLEST.model_copy(update={"emulation": emulation, "speed": 0.95})
        with pytest.raises(InvalidInput, match=r"add up to 1\.9 cores"):
            measure(settings, tmp_path / "samples.json", QUIET)


@pytest.mark.parametrize(("seconds", "code"), [(1.01, 0), (2.0, 1)])
def test_a_missed_goal_is_told_by_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, seconds: float, code: int
) -> None:
    vanilla = Contender(ours=Method(policy="vanilla"))
    sample = Sample(case=EVEN, contender=vanilla, repetition=0, seconds=seconds, busiest_seconds=1)
    document = SpeedSamples(settings=SMALLEST, machine=this_machine(), samples=(sample,))
    monkeypatch.setattr(runtime_speed, "measure", lambda *_: document)
    result = CliRunner().invoke(runtime_speed.app, [])
    assert result.exit_code == code, result.output
    assert str(this_machine().torch) in result.output


def test_weights_that_differ_end_the_comparison() -> None:
    cluster = SimpleNamespace(difference=lambda case, contender: 2 * NUMERICS_GOAL)
    with pytest.raises(RunFailure, match="torch data parallel ends with weights that differ"):
        check_numerics(cluster, [(EVEN, Contender(theirs="data parallel"))])  # type: ignore[arg-type]


def test_verdicts_are_medians_of_paired_samples() -> None:
    flushed = Contender(theirs="pipelining 1f1b", microbatches=4)
    seconds = {
        Contender(ours=Method(policy="vanilla")): (1.0, 2.0, 4.0),
        Contender(ours=Method(policy="pipeoptim")): (1.01, 2.06, 4.04),
        flushed: (1.3, 2.4, 4.8),
    }
    samples = [
        Sample(case=EVEN, contender=who, repetition=n, seconds=t, busiest_seconds=t / 1.02)
        for who, times in seconds.items()
        for n, t in enumerate(times)
    ]
    document = SpeedSamples(settings=SMALLEST, machine=this_machine(), samples=tuple(samples))
    found = {(v.question, v.subject.split(": ")[1]): v for v in verdicts_of(rows_of(document))}
    ratios = {
        ("over the busiest worker", "1f1b vanilla"): (1.02, 1.03, True),
        ("over the busiest worker", "1f1b pipeoptim"): (1.02, 1.03, True),
        ("cost of predicting", "1f1b pipeoptim against 1f1b vanilla"): (1.01, 1.025, True),
        # (M + P − 1)/M
        ("faster than flushing", f"1f1b vanilla against {flushed}"): (1.2, 1.25, False),
    }
    assert {k: (round(v.ratio, 6), v.goal, v.met) for k, v in found.items()} == ratios
    plain = as_plain(document)
    assert [row["samples_per_second"] for row in plain["rows"]] == pytest.approx(
        [4 / 2, 4 / 2.06, 4 / 2.4]
    )
    assert [verdict["met"] for verdict in plain["verdicts"]] == [True, True, True, False]


def test_blocks_are_cut_where_a_case_says() -> None:
    captured = capture(reference("convolutions", SHORT.models["convolutions"]))
    placement = placement_of(captured.graph, (3, 1, 4), (1, 2, 1))
    assert placement.configuration == "1-2-1"
    modules = [
        {captured.graph.operators[i].module.split(".")[0] for i in stage.operators}
        for stage in placement.stages
    ]
    assert modules == [{"0", "1", "2"}, {"3"}, {"4", "5", "6", "7"}]


@pytest.mark.parametrize("settings", [FULL, SHORT])
def test_cases_use_all_blocks(settings: object) -> None:
    assert settings is FULL or settings is SHORT
    for model in settings.models:
        for accelerators in settings.accelerators:
            for case in settings.cases(model, accelerators):
                assert sum(case.blocks) == 8
                assert len(case.blocks) == len(case.replicas)
                assert sum(case.replicas) <= accelerators
