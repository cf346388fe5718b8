"""The report of a run: what stands in it."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import pytest
import vl_convert

from drlpp.costs.profile import RunFactors
from drlpp.errors import InvalidFile
from drlpp.io.documents import read_document, write_document
from drlpp.io.run_folder import CHANGES_NAME, RunRecord
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender
from drlpp.racing.curves import Curve, Point
from drlpp.racing.training_race import TrainingRace, TrainingRun
from drlpp.reporting.page import write_report
from drlpp.reporting.pipeline_charts import folded
from drlpp.runtime.training.training_reports import WorkersChanged, write_change
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.endurance.fuzzing.documents import every_document
from tests.support.measured import measurement
from tests.support.reports import (
    GRAPH,
    ONE,
    PROFILE,
    TWO,
    Page,
    charts_of,
    learned_run,
    raced_and_trained,
    values_of,
)
from tests.support.strategies.graphs import chain_of, cluster_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder of a run that learned and raced."""
    return learned_run(tmp_path)


def test_a_report_has_everything_that_the_run_has(run: Path) -> None:
    page = Page(write_report(run))
    assert page.headings == [
        "The race",
        "The search",
        "Every placement that was measured",
        "Where the time goes",
        "The model, by stage",
        "How late gradients are",
        "Who does what when",
        "Predicted and measured",
        "Machine, versions, settings",
    ]
    race, search, usage, model, late, timelines, agreement = page.charts
    assert sorted({row["contender"] for row in values_of(race)}) == [
        "exact · 1",
        "guided · 1-1",
        "plain PyTorch · 2 threads",
    ]
    assert [row["best"] for row in values_of(search)] == [10, 6]
    assert {round(row["share"], 6) for row in values_of(usage)} == {0.7, 0.3}
    stages = {row["name"]: row["stage"] for row in values_of(model) if "name" in row}
    assert list(stages.values()) == ["stage 0", "stage 0", "stage 1", "stage 1"]
    assert [row["updates"] for row in values_of(late)] == [1, 0, 0]
    assert {row["kind"] for row in values_of(timelines)} >= {"forward", "backward"}
    found = [row for row in values_of(agreement) if "placement" in row]
    assert [row["measured"] for row in found] == [10, 6]
    assert "failed: nobody said a word" in page.cells
    assert "2.00×" in page.cells


def test_predictions_have_the_error_bars_of_short_runs(run: Path) -> None:
    known = PROFILE.model_copy(update={"in_pipeline": RunFactors(spread=0.06)})
    write_document(run / "profile.json", known)
    chart = Page(write_report(run)).charts[-1]
    alone, both = [row for row in values_of(chart) if "placement" in row]
    assert both["error bar"] == "± 6%"
    assert both["most"] / both["simulated"] == pytest.approx(math.exp(0.06))
    assert both["least"] / both["simulated"] == pytest.approx(math.exp(-0.06))
    # No short run is of a single accelerator.
    assert alone["error bar"] == "not known"
    assert alone["least"] == alone["simulated"] == alone["most"]


def race_of(run: Path, *contenders: Contender) -> None:
    comparison = Comparison(model="m", minibatches=10, contenders=contenders)
    write_document(run / "comparison.json", comparison)


def test_contenders_of_one_name_are_apart_in_every_chart(run: Path) -> None:
    other = Placement.from_assignment([0, 0, 0, 1], [0, 1])
    found = [
        Contender(
            found_by="guided", placement=placement, method=method, measurements=(measurement(s),)
        )
        for placement, method, s in (
            (TWO, Method(), 0.005),
            (other, Method(), 0.006),
            (other, Method(recompute=True), 0.007),
            (TWO, Method(recompute=True), 0.008),
        )
    ]
    race_of(run, *found)
    page = Page(write_report(run))
    charts = charts_of(page)
    names = [
        f"guided · 1-1{what}" for what in ("", " (2)", ", recomputation", ", recomputation (2)")
    ]
    race = charts["Every round of the race, and medians"]
    assert [row["contender"] for row in race] == names
    assert [name for name in page.cells if name in names] == names


def test_the_winner_stands_beside_the_best_of_every_other_kind(run: Path) -> None:
    other = Placement.from_assignment([0, 0, 0, 1], [0, 1])
    flushed = Method(schedule="gpipe", policy="sync", microbatches=2)
    race_of(
        run,
        *(
            Contender(found_by=who, placement=placement, method=method, measurements=(measured,))
            for who, placement, method, measured in (
                ("gpipe", TWO, flushed, measurement(0.009)),
                ("guided", other, Method(), measurement(0.007)),
                ("guided", TWO, Method(), measurement(0.005)),
                ("exact", TWO, Method(), measurement(0.005)),
                ("data-parallel", ONE, Method(), measurement(0.008, 1)),
                ("pipedream", other, Method(), measurement(0.007)),
                ("gpipe", ONE, flushed, measurement(0.010, 1)),
            )
        ),
        Contender(found_by="plain PyTorch", method=Method(), measurements=(measurement(0.004, 0),)),
    )
    charts = charts_of(Page(write_report(run)))
    names = [
        "guided, exact · 1-1",
        "guided, pipedream · 1-1",
        "data-parallel · 1",
        "gpipe · 1-1, M = 2",
    ]
    timelines = charts["Who does what when, simulated timelines"]
    assert list(dict.fromkeys(row["candidate"] for row in timelines)) == names
    usage = charts["What part of its time every worker computed"]
    assert list(dict.fromkeys(row["contender"] for row in usage)) == names
    late = charts["How late gradients are, by stage"]
    assert [(row["candidate"], row["updates"]) for row in late] == [
        (names[0], 1),
        (names[0], 0),
        (names[1], 1),
        (names[1], 0),
        (names[2], 0),
    ]


def test_without_a_rival_the_fastest_accelerator_stands_alone_beside_it(run: Path) -> None:
    write_document(run / "cluster.yaml", cluster_of(2, bandwidth=1e9).with_speeds([0.5, 1.0]))
    guided = Contender(
        found_by="guided", placement=TWO, method=Method(), measurements=(measurement(0.005),)
    )
    race_of(run, guided)
    timelines = charts_of(Page(write_report(run)))["Who does what when, simulated timelines"]
    workers = {(row["candidate"], row["worker"]) for row in timelines}
    assert {name for name, _ in workers} == {"guided · 1-1", "accelerator 1 alone"}
    assert len(workers) == 3


def test_a_placement_tells_its_stages(run: Path) -> None:
    page = Page(write_report(run))
    named = {a["id"] for _, a in page.tags if a.get("role") == "tooltip"}
    assert {a["aria-describedby"] for _, a in page.tags if a.get("class") == "look"} == named
    assert len(named) == 3
    names = [operator.name for operator in GRAPH.operators]
    one, two = (
        f"stage {stage} on accelerator {stage}: 2 operators, {names[first]} to {names[first + 1]}; "
        f"0.00 MB of parameters; 5.00 ms profiled"
        for stage, first in ((0, 0), (1, 2))
    )
    # Measured twice: once it failed.
    assert page.text.count(one) == page.text.count(two) == 2
    (run / "profile.json").unlink()
    assert "stage 1 on accelerator 1: 2 operators" in Page(write_report(run)).text


def test_a_timeline_has_every_worker_of_many(run: Path) -> None:
    graph, profile = chain_of(seconds=[0.003] * 8, parameter_bytes=[4] * 8, output_bytes=[8] * 8)
    write_document(run / "profile.json", profile)
    write_document(run / "cluster.yaml", cluster_of(8, bandwidth=1e9))
    (run / "measurements.jsonl").unlink()
    placement = Placement.from_assignment(range(len(graph)), range(8))
    method = Method(schedule="gpipe", policy="sync", microbatches=64)
    race_of(
        run,
        Contender(
            found_by="exact", placement=placement, method=method, measurements=(measurement(1),)
        ),
    )
    path = write_report(run)
    rows = charts_of(Page(path))["Who does what when, simulated timelines"]
    assert len({row["worker"] for row in rows}) == 8
    assert len(rows) <= 1500
    # Each of the eight shows all of its passes of as many minibatches as the text says.
    assert "simulated with the profile of this run: a minibatch in steady state" in path.read_text()
    for worker in {row["worker"] for row in rows}:
        forwards = [r for r in rows if r["worker"] == worker and r["kind"] == "forward"]
        assert len(forwards) >= 64


def test_what_was_changed_since_is_named_and_the_rest_is_shown(run: Path) -> None:
    write_document(run / "cluster.yaml", cluster_of(1, bandwidth=1e9))
    page = Page(write_report(run))
    assert "The model, by stage" in page.headings
    assert "Who does what when" not in page.headings
    assert (
        "cluster.yaml: lists 1 of the 2 accelerators that placements of this run use" in page.text
    )
    small = chain_of(seconds=[0.003] * 2, parameter_bytes=[4] * 2, output_bytes=[8] * 2)[1]
    write_document(run / "profile.json", small)
    page = Page(write_report(run))
    assert page.headings[:2] == ["The race", "The search"]
    assert "The model, by stage" not in page.headings
    assert "profile.json: a placement of this run does not fit its graph" in page.text


def test_a_placement_of_another_graph_is_named(tmp_path: Path) -> None:
    write_document(tmp_path / "run.json", RunRecord(command="drlpp train", settings={}))
    write_document(tmp_path / "placement.json", every_document()["placement"])
    write_document(tmp_path / "profile.json", PROFILE)
    page = Page(write_report(tmp_path))
    assert page.headings == ["Machine, versions, settings"]
    assert "placement.json: does not fit the graph of profile.json" in page.text


def test_a_section_that_fails_is_named_and_the_page_is_written(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise IndexError("out of range")

    monkeypatch.setattr("drlpp.reporting.pipeline_charts.graph_chart", fail)
    page = Page(write_report(run))
    assert "The model, by stage" not in page.headings
    assert "Who does what when" in page.headings
    assert "not shown: the model, by stage (out of range)" in page.text


def test_a_race_that_plain_pytorch_failed_says_so(tmp_path: Path) -> None:
    write_document(tmp_path / "run.json", RunRecord(command="drlpp race", settings={}))
    race = every_document()["training race"]
    assert isinstance(race, TrainingRace)
    curve = Curve(points=(Point(minibatches=0, seconds=0, loss=2.0),), failure="it burned")
    failed = TrainingRun(candidate=0, rate=0.1, curve=curve)
    race = race.model_copy(update={"target_loss": None, "runs": (failed,)})
    write_document(tmp_path / "race.json", race)
    page = Page(write_report(tmp_path))
    assert page.headings[0] == "The race to a loss, on digits"
    assert "the race failed: plain PyTorch" in page.text
    assert "it burned" in page.text


def test_nothing_of_a_run_becomes_part_of_the_page(run: Path) -> None:
    """Nor is anything loaded from elsewhere, and the page is small."""
    path = write_report(run)
    page = Page(path)
    assert len(page.scripts) == 2
    policies = [a["content"] for t, a in page.tags if a.get("http-equiv")]
    assert policies == [
        "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'unsafe-inline'; img-src data: blob:"
    ]
    assert ("script", {}) in page.tags
    for tag, attributes in page.tags:
        assert tag not in ("img", "link", "iframe")
        for name in ("src", "href"):
            value = attributes.get(name) or "#"
            assert value.startswith("#"), (tag, value)
    assert path.stat().st_size < 5e6


def test_a_race_to_a_loss_and_a_training(tmp_path: Path) -> None:
    write_document(tmp_path / "run.json", RunRecord(command="drlpp race", settings={}))
    write_document(tmp_path / "profile.json", PROFILE.model_copy(update={"batch_size": 32}))
    raced_and_trained(tmp_path)
    page = Page(write_report(tmp_path))
    assert page.headings[:2] == ["The race to a loss, on digits", "The training"]
    race, training = page.charts
    # All three orders of samples of both, each with three evaluations.
    seconds = values_of(race["hconcat"][0])
    lines = Counter((row["candidate"], row["order of samples"]) for row in seconds)
    own = "adam betas=[0.9, 0.99] eps=1e-08"
    names = {"plain PyTorch · 2 threads", f"exact · 2-2, {own}, pipemare, recomputation"}
    assert lines == {(name, seed): 3 for name in names for seed in (0, 1, 2)}
    assert all(part["encoding"]["detail"] for part in race["hconcat"])
    samples = [part["encoding"]["x"]["field"] for part in race["hconcat"]]
    assert samples == ["seconds", "samples"]
    assert {row["samples"] for row in seconds} == {32 * row["minibatches"] for row in seconds}
    assert {row["candidate"] for row in seconds if row["plain"]} == {"plain PyTorch · 2 threads"}
    assert training["hconcat"][0]["encoding"]["x"]["title"] == [
        "seconds since the beginning,",
        "pauses and evaluations included",
    ]
    held_out = [row for row in values_of(training) if row["loss of"] == "held-out samples"]
    assert {(row["minibatches"], row["loss"]) for row in held_out} == {(4, 2.5), (8, 2.0)}
    assert {row["seconds"] for row in held_out} == {3.5, 7.5}
    # The training says by its speed how large its minibatches are.
    assert training["hconcat"][1]["encoding"]["x"]["field"] == "samples"
    assert {row["samples"] for row in held_out} == {4 * 16, 8 * 16}
    (tmp_path / "profile.json").unlink()
    race = Page(write_report(tmp_path)).charts[0]
    assert race["hconcat"][1]["encoding"]["x"]["field"] == "minibatches"


def test_a_damaged_file_is_named_and_the_rest_is_shown(run: Path) -> None:
    (run / "profile.json").write_text("{")
    page = Page(write_report(run))
    assert "The race" in page.headings
    assert "The model, by stage" not in page.headings
    assert "not read" in (run / "report.html").read_text()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"has no run\.json"):
        write_report(tmp_path)


def test_a_large_graph_is_drawn_by_modules() -> None:
    from drlpp.capturing.capture import capture

    reference = ModelReference.named(
        "gpt2", layers=24, hidden=8, heads=2, vocabulary=11, sequence_length=4, tied=False
    )
    graph = capture(reference, check=False).graph
    stages = [int(op >= len(graph) // 2) for op in range(len(graph))]
    placement = Placement.from_assignment(stages, [0, 1])
    nodes = folded(graph, placement, None)
    assert len(nodes) <= 150
    assert [op for node in nodes for op in node.operators] == list(range(len(graph)))
    assert all(stages[op] == node.stage for node in nodes for op in node.operators)
    assert sum(node.parameter_bytes for node in nodes) == graph.parameter_bytes


def test_every_chart_draws(run: Path) -> None:
    """By the same Vega as in a browser, in this process."""
    raced_and_trained(run)
    charts = Page(write_report(run)).charts
    assert len(charts) == 9
    for chart in charts:
        svg = vl_convert.vegalite_to_svg(chart)
        marks = re.findall(r'class="mark-(?:rect|symbol|line|rule|text|area|arc)', svg)
        assert marks, chart["description"]
        assert "NaN" not in svg, chart["description"]


def test_what_was_exported_is_said_and_how_to_train_with_it(run: Path) -> None:
    exported = PlacementFile.create(
        ModelReference(name="alexnet"),
        GRAPH,
        TWO,
        cluster_of(2, bandwidth=1e9),
        method=Method(microbatches=4),
        optimizer=OptimizerSpec(),
        found_by="exact",
    )
    write_document(run / "placement.json", exported)
    comparison = read_document(run / "comparison.json", Comparison)
    write_document(run / "comparison.json", comparison.model_copy(update={"speeds": (0.5, 0.25)}))
    text = Page(write_report(run)).text
    assert f"exported: 1-1, found by exact; {exported.method}" in text
    assert f"drlpp train {run / 'placement.json'} --data DATA --speeds 0.5,0.25" in text


def test_a_training_that_lost_a_host_says_so(tmp_path: Path) -> None:
    write_document(tmp_path / "run.json", RunRecord(command="drlpp train", settings={}))
    raced_and_trained(tmp_path)
    change = WorkersChanged(
        epochs=0, minibatches=3, reason="host far is lost", workers=(0, 1), configuration="1-1"
    )
    write_change(tmp_path / CHANGES_NAME, change)
    assert change.text in write_report(tmp_path).read_text()
