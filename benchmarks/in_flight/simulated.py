"""What more minibatches in flight give on slow links, and what they cost: simulated.

    python -m benchmarks.in_flight simulated --document benchmarks/in_flight/README.md

Every model stands on four accelerators, one stage on each, cut as evenly as GPipe's planner does,
so that only the links and the depth differ from row to row. The depth that ``drlpp plan --in-flight
auto`` takes is marked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from pandas import DataFrame
from rich.filesize import decimal

from benchmarks import PROFILES
from benchmarks.options import DocumentOption, JsonOption
from benchmarks.report import markdown, terminal, write_between
from drlpp.cli.command_line import build_console
from drlpp.costs.files.profile_files import read_profile
from drlpp.costs.profile import Profile
from drlpp.costs.synthetic_profiles import generate
from drlpp.costs.workload import Workload
from drlpp.io.formatting import seconds_text
from drlpp.planners import PlanningProblem, plan
from drlpp.schedule.method import Method
from drlpp.simulator import Depth, simulate_depths, smallest_depth
from drlpp.specs.cluster import Link, local_cluster

BEGIN = "<!-- in-flight depth: written by benchmarks.in_flight -->"
END = "<!-- end of in-flight depth -->"

BITS_PER_SECOND = (1e8, 3e8, 1e9, 3e9, 1e10)
MOST_PER_LINK = 3

_ACCELERATORS = 4
_LATENCY_SECONDS = 5e-5


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


def main(
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Play two models with every depth on links of 100 Mbit/s to 10 Gbit/s."""
    rows = list(compare())
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        build_console().print(terminal(table_of(rows)))
    if document is not None:
        write_between(document, BEGIN, END, markdown(table_of(rows)))


def compare(most_per_link: int = MOST_PER_LINK) -> Iterator[Row]:
    """Yield all rows, by model and speed."""
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
    """Return VGG-16 as it was profiled, and a made-up chain."""
    return {
        "VGG-16": read_profile(PROFILES / "vgg16.json"),
        "made up": generate("chain", 60, seed=1),
    }


def table_of(rows: Iterable[Row]) -> DataFrame:
    """Return the rows as text."""
    return DataFrame(map(_texts, rows))


def _texts(row: Row) -> dict[str, str]:
    chosen, noam = row.depths[row.chosen], row.depths[0]
    gained = 1 - chosen.seconds_per_minibatch / noam.seconds_per_minibatch
    return {
        "model": row.model,
        "links": speed_text(row.bits_per_second),
        "rule": seconds_text(row.rule_seconds),
        "NOAM": seconds_text(noam.seconds_per_minibatch),
        **{
            f"{number} per link": seconds_text(depth.seconds_per_minibatch)
            for number, depth in enumerate(row.depths[1:], 1)
        },
        "enough": f"{chosen.per_link} ({'-'.join(map(str, chosen.in_flight))})",
        "faster by": f"{gained:.0%}",
        "memory": decimal(round(chosen.memory_bytes)),
        "with NOAM": decimal(round(noam.memory_bytes)),
    }


def speed_text(bits: float) -> str:
    """Write bits per second as text."""
    return f"{bits / 1e9:g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:g} Mbit/s"
