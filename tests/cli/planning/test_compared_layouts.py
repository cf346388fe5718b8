"""``--compare``: a user's own layouts, simulated beside a plan and measured in a race."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drlpp import ModelReference, Workload, simulate
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.cli.layouts import layout_contenders, layout_line, measured_lines
from drlpp.costs.profile import RunFactors
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.exporting.layouts.module_cuts import read_layout
from drlpp.io.documents import write_document
from drlpp.io.formatting import seconds_text
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, WorkerUsage
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender
from drlpp.racing.rivals import is_rival
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster
from tests.support.programs.shell import Shell

MODEL = "tests.exporting.decoder:decoder"
LAYOUT = "modules:layers.5"


@pytest.fixture(scope="module")
def decoder() -> CapturedModel:
    return capture(ModelReference.named(MODEL))


def usage(stage: int, busy: float, waiting: float) -> WorkerUsage:
    return WorkerUsage(
        worker=stage,
        stage=stage,
        busy_seconds=busy,
        waiting_seconds=waiting,
        peak_memory_bytes=0,
        bytes_sent=0,
    )


def measured(seconds: float, *usages: WorkerUsage) -> Measurement:
    return Measurement(
        seconds_per_minibatch=seconds,
        minibatches=10,
        median_seconds=seconds,
        standard_deviation_seconds=0.0,
        workers=usages,
    )


def test_a_layout_is_explained() -> None:
    workers = [usage(0, 10.0, 0.0), usage(1, 6.9, 3.1), usage(1, 4.9, 5.1)]
    assert layout_line("modules:a", 0.114, 0.1, workers) == (
        "your layout modules:a: 114.00 ms per minibatch, 14% slower: stage 1 waits 41% of the "
        "time, stage 0 0%"
    )
    assert "5% faster: stage 0 waits 0%" in layout_line("x", 0.095, 0.1, workers[:1])
    assert "per minibatch, as fast: stage" in layout_line("x", 0.1002, 0.1, workers)


def test_a_plan_says_what_a_layout_costs(
    decoder: CapturedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shell = Shell(monkeypatch, capsys)
    profile = estimate_profile(decoder.graph).model_copy(
        update={"in_pipeline": RunFactors(spread=0.06)}
    )
    costs = write_document(tmp_path / "profile.json", profile)
    arguments = ("plan", MODEL, "--profile", costs, "--workers", 2, "--bandwidth", 1e9)
    at_noam = ("--method-option", "in_flight_per_link=0")
    compared = (*arguments, *at_noam, "--compare", LAYOUT)
    code, out, error = shell(*compared, "--json")
    assert code == 0, error
    record = json.loads(out)
    (own,) = record["compared"]
    placement = read_layout(LAYOUT, decoder.task.module, decoder.graph, 2)
    cluster = local_cluster(2, Link(bandwidth_bytes_per_second=1e9))
    played = simulate(Workload.of(profile, Method()), cluster, placement, Method())
    assert own["simulated_seconds_per_minibatch"] == played.seconds_per_minibatch
    assert own["waiting"] == list(played.bubble.values())
    ratio = own["simulated_seconds_per_minibatch"] / record["simulated_seconds_per_minibatch"]
    assert ratio > 1.01
    code, out, _ = shell(*compared)
    assert f"{LAYOUT}: {seconds_text(played.seconds_per_minibatch)} ± 6% per minibatch" in out
    assert own["error_bar"] == played.error_bar == 0.06
    assert f"{ratio - 1:.0%} slower" in out
    assert f"waits {max(played.bubble.values()):.0%} of the time" in out
    code, _, error = shell("plan", *arguments[2:], "--compare", LAYOUT)
    assert (code, "name the MODEL as well" in error) == (2, True)


def test_a_layout_races_as_a_rival(decoder: CapturedModel) -> None:
    layouts = layout_contenders([LAYOUT, "modules:layers.1"], decoder, 4, Method())
    first, second = layouts.values()
    assert [first.found_by, second.found_by] == ["your layout 1", "your layout 2"]
    assert is_rival(first.found_by)
    placement = read_layout("modules:layers.2", decoder.task.module, decoder.graph, 4)
    learned = Contender.of(Candidate(placement, Method()), "guided")
    comparison = Comparison(
        model=MODEL,
        minibatches=10,
        contenders=(
            learned.with_outcome(measured(0.1, usage(0, 1.0, 0.0), usage(1, 1.0, 0.0))),
            first.with_outcome(measured(0.12, usage(0, 1.2, 0.0), usage(1, 0.6, 0.6))),
            second.model_copy(update={"failure": "lost"}),
        ),
    )
    assert list(measured_lines(comparison, layouts)) == [
        f"your layout {LAYOUT}: 120.00 ms per minibatch, 20% slower: stage 1 waits 50% of the "
        "time, stage 0 0%"
    ]
