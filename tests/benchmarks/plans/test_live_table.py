"""The live table: what stands in it, and that it is measured, kept and taken up again."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.drl_pp_table import AGENT, PAPER
from benchmarks.live_table.__main__ import Settings, measure_row
from benchmarks.live_table.report import (
    BEGIN,
    END,
    METHODS,
    live_row,
    live_tables,
    tables,
    write_live_tables,
)
from drlpp.comparison.comparison_file import Comparison
from drlpp.comparison.contenders import PLAIN, PLAN, RIVALS, Contender
from drlpp.errors import InvalidInput
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method

WHOLE = Placement.from_assignment([0] * 4, [0] * 4)
EVEN = Placement.from_assignment([0, 1, 2, 3], [0, 1, 2, 3])
THREE_ONE = Placement.from_assignment([0, 0, 0, 1], [0, 0, 0, 1])
TWO_TWO = Placement.from_assignment([0, 0, 1, 1], [0, 0, 1, 1])


def contender(found_by: str, placement: Placement | None, *seconds: float) -> Contender:
    measurements = tuple(
        Measurement(
            seconds_per_minibatch=value,
            median_seconds=value,
            standard_deviation_seconds=0.0,
            minibatches=5,
        )
        for value in seconds
    )
    return Contender(
        found_by=found_by,
        placement=placement,
        method=Method(schedule=found_by, policy="sync")
        if found_by in {"gpipe", "1f1b-flush"}
        else Method(),
        threads=1 if placement is None else None,
        measurements=measurements,
        failure=None if seconds else "worker 1 was killed",
    )


COMPARISON = Comparison(
    model="vgg16",
    minibatches=5,
    contenders=(
        contender("guided", TWO_TWO, 0.08, 0.09, 0.085),
        contender("guided", THREE_ONE, 0.1, 0.1, 0.1, 0.1),
        contender(PLAIN, None, 0.18, 0.18, 0.18, 0.18),
        contender("data-parallel", WHOLE, 0.2, 0.2, 0.2),
        contender("gpipe", EVEN),
        contender("1f1b-flush", EVEN, 0.3, 0.3, 0.3),
        contender("pipedream", THREE_ONE, 0.1, 0.1, 0.1, 0.1),
        contender("exact", EVEN, 0.15, 0.15, 0.15, 0.15),
        contender(PLAN, TWO_TWO, 0.12, 0.12, 0.12, 0.12),
    ),
)


def test_a_row_has_every_method_and_the_agents_placement_that_came_furthest() -> None:
    row = live_row("vgg16", COMPARISON, "guided")
    assert {method: cell.seconds for method, cell in row.cells.items()} == {
        PLAIN: 0.18,
        "data-parallel": 0.2,
        "gpipe": None,
        "1f1b-flush": 0.3,
        "pipedream": 0.1,
        "exact": 0.15,
        PLAN: 0.12,
        AGENT: 0.1,
    }
    assert row.cells[AGENT].configuration == "3-1"
    assert row.verdict == "agent and PipeDream", "it found the same placement"
    assert row.over_best == 1.0
    assert row.over("data-parallel") == 2.0
    assert row.over("gpipe") is None


def test_the_tables_stand_beside_the_papers() -> None:
    rows = [live_row(model, COMPARISON, "guided") for model in ("vgg16", "alexnet", "unknown")]
    seconds, ratios, configurations, papers = tables(rows).values()
    assert list(seconds.columns) == ["model", *METHODS.values()]
    assert seconds["DP"][0] == "200.00 ms"
    assert seconds["GPipe"][0] == "failed"
    assert list(ratios.loc[0]) == [
        "vgg16",
        "1.00×",
        "2.00×",
        "1.00×",
        "1.50×",
        "agent and PipeDream",
    ]
    assert list(configurations.loc[0]) == [
        "vgg16",
        "1 thread",
        "4",
        "1-1-1-1, M = 1",
        "1-1-1-1, M = 1",
        "3-1",
        "1-1-1-1",
        "2-2",
        "3-1",
        "3-1",
    ]
    assert configurations["paper's"][2] == "–"
    assert dict(papers.loc[0]) == {
        "model": "VGG-16",
        "DP": "0.165",
        "GPipe": "0.193",
        "PipeDream": "0.107",
        "DRL-PP": "0.082",
        "over DP": "2.01×",
        "over PipeDream": "1.30×",
    }
    assert list(papers["model"]) == ["VGG-16", "AlexNet"]
    assert len(tables(rows[2:])) == 3, "the paper has none of these models"
    console = Console(width=110, file=io.StringIO(), force_terminal=False)
    console.print(live_tables(rows, "Four workers."))
    assert "…" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_paper_is_quoted_rightly() -> None:
    """drl-pp Table 1 gives its speed-ups over data parallelism and PipeDream too."""
    quoted = {
        "resnet50": (1.0, 1.0),
        "vgg16": (2.01, 1.3),
        "alexnet": (5.7, 1.2),
        "resnext50": (1.08, 1.08),
        "gnmt4": (1.57, 1.22),
    }
    assert PAPER.keys() == quoted.keys()
    for model, speed_ups in quoted.items():
        seconds = PAPER[model].seconds
        found = [seconds[method] / seconds[AGENT] for method in ("data-parallel", "pipedream")]
        # ResNeXt's 1.08 over PipeDream is from seconds of three digits.
        assert found == pytest.approx(list(speed_ups), abs=0.011)


def test_tables_are_written_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_live_tables(page, [live_row("vgg16", COMPARISON, "guided")], "Four workers.")
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "Four workers." in text
    assert "| vgg16 | 180.00 ms | 200.00 ms | failed |" in text
    with pytest.raises(InvalidInput, match="expected a Markdown file"):
        write_live_tables(tmp_path / "none.md", [], "")


@pytest.mark.slow
def test_a_row_is_measured_kept_and_taken_up_again(tmp_path: Path) -> None:
    settings = Settings(
        agent="drl-pp",
        speeds=(0.8, 0.4),
        budget=2,
        repetitions=1,
        finalists=1,
        rounds=1,
        minibatches=4,
        seed=0,
        hide_speeds=True,
    )
    folder = tmp_path / "perceptron"
    quiet = Console(quiet=True)
    row = measure_row("tests.support.models.small:perceptron", settings, folder, quiet)
    assert row.cells.keys() == METHODS.keys() == {*RIVALS, AGENT}
    assert all(cell.seconds and cell.seconds > 0 for cell in row.cells.values())
    assert row.cells[PLAIN].configuration == "1 thread", "an emulated accelerator is one"
    assert row.cells["data-parallel"].configuration in {"1", "2"}
    assert re.fullmatch("1-1, M = [1248]", row.cells["gpipe"].configuration)
    assert row.over_best is not None
    assert len((folder / "measurements.jsonl").read_text().splitlines()) == 1 + 2
    kept = (folder / "comparison.json").read_text()
    assert measure_row("tests.support.models.small:perceptron", settings, folder, quiet) == row
    assert (folder / "comparison.json").read_text() == kept
