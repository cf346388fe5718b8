"""What more minibatches in flight give on slow links, and what they cost: simulated.

    python -m benchmarks.in_flight_depth --document docs/planning.md

Every model stands on four accelerators, one stage on each, cut as evenly as GPipe's planner does,
so that only the links and the depth differ from row to row. The depth that ``drlpp plan --in-flight
auto`` takes is marked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.filesize import decimal
from rich.table import Table

from benchmarks.markdown_document import table, write_between
from drlpp.cli.command_line import build_console, run_program
from drlpp.cli.planning.planning_input import read_profile
from drlpp.cli.tables import seconds_text
from drlpp.costs.profile import Profile
from drlpp.costs.synthetic_profiles import generate
from drlpp.costs.workload import Workload
from drlpp.planners import PlanningProblem, plan
from drlpp.schedule.method import Method
from drlpp.simulator import Depth, simulate_depths, smallest_depth
from drlpp.specs.cluster import Link, local_cluster

BEGIN = "<!-- in-flight depth: written by benchmarks/in_flight_depth.py -->"
END = "<!-- end of in-flight depth -->"

BITS_PER_SECOND = (1e8, 3e8, 1e9, 3e9, 1e10)
MOST_PER_LINK = 3

_ACCELERATORS = 4
_LATENCY_SECONDS = 5e-5
_PROFILE = Path(__file__).parent / "profiles" / "vgg16.json"

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class Row:
    """A model on links of one speed.

    Attributes:
        model: its name.
        bits_per_second: of every link.
        rule_seconds: per minibatch, which no depth can beat.
        depths: from NOAM on.
        chosen: index of the depth that is enough.
    """

    model: str
    bits_per_second: float
    rule_seconds: float
    depths: tuple[Depth, ...]
    chosen: int


@app.command()
def main(
    document: Annotated[
        Path | None, typer.Option(help="Write the table into this page, between its marks.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play two models with every depth on links of 100 Mbit/s to 10 Gbit/s."""
    rows = list(compare())
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        rich = Table(box=box.SIMPLE)
        for heading in HEADINGS:
            rich.add_column(heading, justify="left" if heading == "model" else "right")
        for row in rows:
            rich.add_row(*cells_of(row))
        build_console().print(rich)
    if document is not None:
        write_between(document, BEGIN, END, "\n".join(table(HEADINGS, map(cells_of, rows))))


def compare(most_per_link: int = MOST_PER_LINK) -> Iterator[Row]:
    """All rows, by model and speed."""
    for name, profile in models().items():
        workload = Workload.of(profile, Method())
        for bits in BITS_PER_SECOND:
            link = Link(bandwidth_bytes_per_second=bits / 8, latency_seconds=_LATENCY_SECONDS)
            problem = PlanningProblem(workload, local_cluster(_ACCELERATORS, link))
            found = plan("gpipe", problem)
            depths = simulate_depths(
                workload,
                problem.cluster,
                found.placement,
                Method(),
                most_per_link=most_per_link,
            )
            chosen = depths.index(smallest_depth(depths))
            seconds = found.prediction.seconds_per_minibatch
            yield Row(name, bits, seconds, depths, chosen)


def models() -> dict[str, Profile]:
    """VGG-16 as it was profiled, and a made-up chain."""
    return {"VGG-16": read_profile(_PROFILE), "made up": generate("chain", 60, seed=1)}


HEADINGS = (
    "model",
    "links",
    "rule",
    "NOAM",
    *(f"{number} per link" for number in range(1, MOST_PER_LINK + 1)),
    "enough",
    "faster by",
    "memory",
    "with NOAM",
)


def cells_of(row: Row) -> list[str]:
    """The row as text."""
    chosen = row.depths[row.chosen]
    noam = row.depths[0]
    gained = 1 - chosen.seconds_per_minibatch / noam.seconds_per_minibatch
    return [
        row.model,
        speed_text(row.bits_per_second),
        seconds_text(row.rule_seconds),
        *(seconds_text(depth.seconds_per_minibatch) for depth in row.depths),
        f"{chosen.per_link} ({'-'.join(map(str, chosen.in_flight))})",
        f"{gained:.0%}",
        decimal(round(chosen.memory_bytes)),
        decimal(round(noam.memory_bytes)),
    ]


def speed_text(bits: float) -> str:
    """Bits per second."""
    return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"


if __name__ == "__main__":
    run_program(app, "in_flight_depth.py")
