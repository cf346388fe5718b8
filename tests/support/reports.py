"""A run's folder for its report, and the page that comes of it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from drlpp.io.documents import write_document
from drlpp.io.files import append
from drlpp.io.run_folder import RunRecord
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.measurements_file import Entry, Header
from drlpp.placement.placement import Placement
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender
from drlpp.schedule.method import Method
from tests.support.measured import measurement
from tests.support.strategies.graphs import chain_of, cluster_of

EVIL = "a model</script><script>alert(1)</script>"
GRAPH, PROFILE = chain_of(
    seconds=[0.003, 0.002, 0.004, 0.001], parameter_bytes=[4] * 4, output_bytes=[8] * 4
)
TWO = Placement.from_assignment([0, 0, 1, 1], [0, 1])
ONE = Placement.from_assignment([0] * 4, [0])


def learned_run(folder: Path) -> Path:
    """Fill the folder of a run that learned and raced."""
    settings = {"model": {"name": EVIL}, "seed": 0}
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
    append(path, header)
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
