"""The report of a run: what stands in it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from drlpp.envs.measuring.policy_curve import TAGS, policy_curve
from drlpp.errors import InvalidFile
from drlpp.io.documents import write_document
from drlpp.io.files import append
from drlpp.io.run_folder import RunRecord
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.measurements_file import Entry, Header, open_measurements
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender
from drlpp.racing.halving import replay
from drlpp.racing.training_race import Curve, Point, TrainingRace, TrainingRun
from drlpp.report.charts import loss_chart, race_chart
from drlpp.report.page import write_report
from drlpp.report.run_files import RunFiles
from drlpp.report.tables import comparison_table
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.measured import measurement
from tests.support.strategies.graphs import chain_of, cluster_of
from tests.support.training.races import race_of

EVIL = "a model</script><script>alert(1)</script>"
GRAPH, PROFILE = chain_of(
    seconds=[0.003, 0.002, 0.004, 0.001], parameter_bytes=[4] * 4, output_bytes=[8] * 4
)
TWO = Placement.from_assignment([0, 0, 1, 1], [0, 1])
ONE = Placement.from_assignment([0] * 4, [0])


def learned_run(folder: Path) -> Path:
    """Fill the folder of a run that learned and raced."""
    settings = {"model": {"name": EVIL}, "seed": 0, "method": {"microbatches": 2}}
    record = RunRecord(command="drlpp learn", settings=settings, started_as="drlpp learn x")
    write_document(folder / "run.json", record)
    write_document(folder / "profile.json", PROFILE)
    write_document(folder / "cluster.yaml", cluster_of(2, bandwidth=1e9))
    contenders = tuple(
        Contender(
            found_by=who,
            placement=placement,
            method=Method(),
            threads=None if placement else 2,
            measurements=tuple(measurement(s, workers) for s in seconds),
        )
        for who, placement, workers, seconds in (
            ("guided", TWO, 2, (0.006, 0.007, 0.005)),
            ("plain PyTorch", None, 0, (0.012, 0.011, 0.013)),
            ("exact", ONE, 1, (0.010, 0.011, 0.010)),
        )
    )
    comparison = Comparison(model=EVIL, minibatches=10, contenders=contenders)
    write_document(folder / "comparison.json", comparison)
    path = folder / "measurements.jsonl"
    header = Header(
        model=EVIL,
        graph_fingerprint=GRAPH.fingerprint,
        accelerators=2,
        minibatches=10,
        method=Method(),
    )
    open_measurements(path, header)
    append(path, Entry(placement=ONE, outcome=measurement(0.010, 1)))
    append(path, Entry(placement=TWO, outcome=measurement(0.006)))
    failure = FailedMeasurement(failure="timeout", reason="no worker said a word")
    append(path, Entry(placement=TWO, outcome=failure, method=Method(recompute=True)))
    return folder


class Page(HTMLParser):
    """What a test asks of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.lines: list[str] = []
        self.text = ""
        self._within = ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within = tag
        if tag in ("h2", "td", "p"):
            {"h2": self.headings, "td": self.cells, "p": self.lines}[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        self.text += data
        lists = {"h2": self.headings, "td": self.cells, "p": self.lines}
        if self._within in lists:
            lists[self._within][-1] += data

    @property
    def charts(self) -> list[str | None]:
        """What screen readers are told of its charts."""
        return [given["aria-label"] for tag, given in self.tags if tag == "figure"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder of a run that learned and raced."""
    return learned_run(tmp_path)


def test_the_search_says_who_found_what_and_what_a_policy_imagined(run: Path) -> None:
    found = Entry(placement=ONE, outcome=measurement(0.010, 1), found_by="planner rule")
    for entry in (found, found.model_copy(update={"placement": TWO, "found_by": "search"})):
        append(run / "measurements.jsonl", entry)
    assert "found by: search 1, planners 1 of 2" in Page(write_report(run)).lines
    with SummaryWriter(str(run / "tensorboard" / "agent_0")) as board:
        for step, values in enumerate(((-1.0, 2.0, 1.5), (-0.5, 1.75, 1.25)), start=2):
            for tag, value in zip(TAGS, values, strict=True):
                board.add_scalar(tag, value, step)
        board.add_scalar(TAGS[0], 0.0, 4)
    curve = policy_curve(run / "tensorboard" / "agent_0")
    assert curve == [(2, -1.0, 2.0, 1.5), (3, -0.5, 1.75, 1.25)], "but no half-written round"
    page = Page(write_report(run))
    assert "found by: search 1, planners 1, policy 0 of 2" in page.lines
    assert page.charts[-1] == "What the policy imagined"


def test_a_report_has_everything_that_the_run_has(run: Path) -> None:
    page = Page(write_report(run))
    assert page.headings == ["The race", "The search", "Machine, versions, settings"]
    assert page.lines[1].startswith("guided (1-1) trains a minibatch 2.0"), "the gain comes first"
    assert [tag for tag, _ in page.tags].count("svg") == len(page.charts) == 1
    assert page.charts[0] == (
        "Every round of the race, and medians: guided 1-1 6.00 ms; plain PyTorch 2 threads "
        "12.00 ms; exact 1 10.00 ms"
    )
    assert "failed: no worker said a word" in page.cells
    assert "2.01×" in page.cells, "paired by rounds, as in the verdict"
    assert "of 2 placements" in page.text, "how far off the simulator is"
    assert "drlpp learn x" in page.text


def test_placements_of_another_graph_are_shown_without_the_simulator(run: Path) -> None:
    """As those of a run with ``--cut-at modules``, whose profile is of operators."""
    of_modules = Placement.from_assignment([0, 1], [0, 1])
    append(run / "measurements.jsonl", Entry(placement=of_modules, outcome=measurement(0.007)))
    page = Page(write_report(run))
    assert any(line.startswith("not compared with the simulator") for line in page.lines)


def a_race() -> TrainingRace:
    """One that has ended: both candidates, and their finals, have all their curves."""
    points = tuple(Point(minibatches=m, seconds=m / 10, loss=2.0 - m / 10) for m in (0, 5, 10))
    curve = Curve(points=points, failure="it failed")
    candidates = (
        Contender(found_by="plain PyTorch", method=Method(), threads=2),
        Contender(found_by="exact", placement=TWO, method=Method()),
    )
    runs = tuple(
        TrainingRun(candidate=candidate, rate=0.1, seed=seed, curve=curve)
        for candidate in (0, 1)
        for seed in (0, 1, 2)
    )
    ends = {"target_loss": 1.0, "limit_seconds": 9.0, "finals": 2}
    return race_of(candidates, (0.1,), minibatches=10, every=5, runs=runs, **ends)


def test_nothing_of_a_run_becomes_part_of_the_page(run: Path) -> None:
    """Nor is anything loaded from elsewhere or run, and the page is small."""
    write_document(run / "race.json", a_race())
    path = write_report(run)
    page = Page(path)
    assert EVIL in page.text
    (policy,) = (given["content"] for _, given in page.tags if given.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    for tag, given in page.tags:
        assert tag not in ("script", "img", "link", "iframe")
        for name in ("src", "href", "xlink:href"):
            assert (given.get(name) or "#").startswith("#")
    assert path.stat().st_size < 1e6


def test_charts_draw_what_was_measured(run: Path) -> None:
    files = RunFiles(run)
    assert files.comparison is not None
    race = race_chart(files.comparison)
    assert race is not None
    (axes,) = race.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["guided · 1-1", "exact · 1", "plain PyTorch · 2 threads"]
    assert list(axes.lines[0].get_xdata()) == pytest.approx([6, 7, 5])


def test_losses_of_a_race_are_over_seconds_and_samples() -> None:
    race = a_race()
    figure = loss_chart(race, replay(race), 32)
    assert figure is not None
    left, right = figure.axes
    # All three orders of samples of both, each with three evaluations, and the loss to be reached.
    assert len(left.lines) == 7
    styles = [line.get_linestyle() for line in left.lines]
    assert styles == ["--"] * 3 + ["-"] * 3 + [":"], "plain PyTorch is dashed"
    assert list(right.lines[0].get_xdata()) == [0, 5 * 32, 10 * 32]
    assert list(left.lines[0].get_xdata()) == [0, 0.5, 1.0]
    assert right.get_xlabel() == "samples, 32 in a minibatch"


def contender(who: str, placement: Placement | None, method: Method, *seconds: float) -> Contender:
    return Contender(
        found_by=who,
        placement=placement,
        method=method,
        measurements=tuple(measurement(s) for s in seconds),
    )


def test_the_table_of_a_race_gives_medians_ranges_and_speed_ups() -> None:
    flushed = Method(schedule="1f1b-flush", policy="sync", microbatches=16)
    comparison = Comparison(
        model="m",
        minibatches=4,
        contenders=(
            contender("guided", TWO, Method(), 0.020, 0.010, 0.011),
            contender("plain PyTorch", None, Method(), 0.022, 0.021, 0.033),
            Contender(found_by="data-parallel", placement=TWO, method=flushed, failure="lost"),
            contender("exact", TWO, Method(microbatches=2), 0.009, 0.009),
        ),
        speeds=(0.6, 0.3),
    )
    table = comparison_table(comparison)
    assert [row[2] for row in table.rows] == ["11.00 ms", "22.00 ms", "failed", "9.00 ms"]
    assert [row[3] for row in table.rows][:2] == ["10.00–20.00 ms", "21.00–33.00 ms"]
    assert [row[5] for row in table.rows] == ["1.91×", "1.00×", "–", "2.39×"]
    assert table.best == 0, "the last one dropped out"
    assert "emulated: 2 accelerators of speeds 0.6, 0.3 (a core is 1)" in table.title


def test_damaged_files_are_refused(run: Path) -> None:
    (run / "race.json").write_text("{")
    with pytest.raises(InvalidFile, match=r"race\.json"):
        write_report(run)


def test_folders_of_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"has no run\.json"):
        write_report(tmp_path)
    write_document(tmp_path / "run.json", RunRecord(command="drlpp train", settings={}))
    with pytest.raises(InvalidFile, match="tensorboard --logdir"):
        write_report(tmp_path)


def test_what_was_exported_is_said(run: Path) -> None:
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
    text = Page(write_report(run)).text
    assert f"exported: 1-1, found by exact; {exported.method}" in text
