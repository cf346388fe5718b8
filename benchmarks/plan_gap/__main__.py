"""How far are plans from what a long search in the simulator finds?

    python -m benchmarks.plan_gap --document benchmarks/plan_gap/README.md

Of every instance the exact planner's placement is played at NOAM, what ``drlpp plan`` takes, and
what ``drlpp plan --method search`` does; then a search of its own climbs from each of the best
proposals and from random placements.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from pandas import DataFrame
from rich.progress import track

from benchmarks import PROFILES
from benchmarks.options import DocumentOption, JsonOption
from benchmarks.plan_gap.search import climb
from benchmarks.report import markdown, terminal, write_between
from drlpp.cli.command_line import build_console, run_program
from drlpp.costs.files.profile_files import read_profile
from drlpp.costs.profile import Profile
from drlpp.costs.synthetic_profiles import generate
from drlpp.costs.workload import Workload
from drlpp.planners import Limits, PlanningProblem, Space, plan
from drlpp.planners.best_searched import best_searched
from drlpp.planners.search.moves import PlacementState
from drlpp.planners.search.random_placements import random_placement
from drlpp.schedule.method import Method
from drlpp.schedule.per_stage import most
from drlpp.simulator import simulate
from drlpp.specs.cluster import Link, local_cluster

BEGIN = "<!-- plan gap: written by benchmarks.plan_gap -->"
END = "<!-- end of plan gap -->"

MODELS = ("vgg16", "resnet50", "gnmt8", "transformer")
FAMILIES = ("blocks", "encoder-decoder", "towers", "layered")
ACCELERATORS = (4, 8, 16)
BANDWIDTHS = (1.25e8, 1.25e9)

_OPERATORS = 60
_BEST_PROPOSALS = 3
_RANDOM_STARTS = 2

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class Row:
    """Simulated seconds per minibatch of one instance.

    Attributes:
        model: what is placed.
        accelerators: on how many.
        bandwidth: of all links, in bytes per second.
        exact_seconds: of the exact planner's placement at NOAM.
        data_parallel_seconds: of the best data parallelism.
        plan_seconds: of what ``drlpp plan`` takes.
        planned_by: whose placement that is.
        searched_seconds: of what ``drlpp plan --method search`` takes.
        best_seconds: the best that is known, of a search of its own and all of the above.
    """

    model: str
    accelerators: int
    bandwidth: float
    exact_seconds: float
    data_parallel_seconds: float
    plan_seconds: float
    planned_by: str
    searched_seconds: float
    best_seconds: float


@app.command()
def main(
    models: Annotated[str, typer.Option(help="Of the zoo's profiles.")] = ",".join(MODELS),
    families: Annotated[str, typer.Option(help="Of made-up graphs.")] = ",".join(FAMILIES),
    accelerators: Annotated[str, typer.Option(help="How many.")] = ",".join(map(str, ACCELERATORS)),
    evaluations: Annotated[int, typer.Option(min=1, help="Of the search from each start.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Of made-up graphs and the search.")] = 0,
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare plans with a long search."""
    console = build_console()
    numbers = [int(number) for number in accelerators.split(",")]
    found = list(instances(_names(models), _names(families), numbers, seed))
    rows = [
        compare(*instance, evaluations)
        for instance in track(found, "planning", transient=True, console=console)
    ]
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        console.print(terminal(table_of(rows), "Gap to the best known, %", names=3))
        console.print(summary(rows))
    if document is not None:
        text = f"{summary(rows)}\n\n{markdown(table_of(rows))}"
        write_between(document, BEGIN, END, text)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def instances(
    models: list[str], families: list[str], accelerators: list[int], seed: int
) -> Iterator[tuple[str, float, PlanningProblem]]:
    """Yield names, bandwidths and problems."""
    profiles: dict[str, Profile] = {
        name: read_profile(PROFILES / f"{name}.json") for name in models
    }
    profiles |= {f"{name} (made up)": generate(name, _OPERATORS, seed) for name in families}
    for name, profile in profiles.items():
        for count in accelerators:
            for bandwidth in BANDWIDTHS:
                link = Link(bandwidth_bytes_per_second=bandwidth, latency_seconds=5e-5)
                cluster = local_cluster(count, link)
                problem = PlanningProblem(Workload.of(profile, Method()), cluster, seed=seed)
                yield name, bandwidth, problem


def compare(
    name: str,
    bandwidth: float,
    problem: PlanningProblem,
    evaluations: int,
    limits: Limits | None = None,
) -> Row:
    """Plan an instance, and search from the best proposals and from random placements.

    Args:
        name: of the model.
        bandwidth: of all links, in bytes per second.
        problem: what is planned for.
        evaluations: of the search of its own from each start.
        limits: of the product's search; None for its own.
    """
    method = Method()
    exact = plan("exact", problem).placement
    played = simulate(problem.workload, problem.cluster, exact, method)
    found = best_searched(problem, Space(method), limits).choice
    searched, proposals = found.best.seconds_per_minibatch, found.others
    planned = proposals[0]
    starts = [
        (PlacementState.of(proposal.plan.placement, problem), most(proposal.depth.per_link))
        for proposal in proposals[:_BEST_PROPOSALS]
    ]
    draw = random.Random(problem.seed)
    starts += [
        (PlacementState.of(random_placement(problem, draw), problem), 1)
        for _ in range(_RANDOM_STARTS)
    ]
    climbed = climb(problem, method, starts, evaluations)
    return Row(
        model=name,
        accelerators=problem.cluster.accelerators,
        bandwidth=bandwidth,
        exact_seconds=played.seconds_per_minibatch,
        data_parallel_seconds=min(
            proposal.seconds_per_minibatch
            for proposal in proposals
            if len(proposal.plan.placement.stages) == 1
        ),
        plan_seconds=planned.seconds_per_minibatch,
        planned_by=planned.plan.method,
        searched_seconds=searched,
        best_seconds=min(climbed, searched, planned.seconds_per_minibatch),
    )


def gap(seconds: float, row: Row) -> float:
    """Return by how many percent seconds are above the best known of an instance."""
    return 100 * (seconds / row.best_seconds - 1)


def summary(rows: list[Row]) -> str:
    """Return medians and the worst, in a sentence."""
    parts = []
    for title, seconds in (
        ("the exact planner at NOAM", [row.exact_seconds for row in rows]),
        ("`drlpp plan`", [row.plan_seconds for row in rows]),
        ("`drlpp plan --method search`", [row.searched_seconds for row in rows]),
    ):
        gaps = [gap(value, row) for value, row in zip(seconds, rows, strict=True)]
        parts.append(
            f"{title} {statistics.median(gaps):.1f}% in the median, {max(gaps):.0f}% at most"
        )
    slower = sum(row.exact_seconds > row.data_parallel_seconds * (1 + 1e-9) for row in rows)
    plans = [max(row.plan_seconds, row.searched_seconds) for row in rows]
    never = sum(
        seconds > row.data_parallel_seconds * (1 + 1e-9)
        for seconds, row in zip(plans, rows, strict=True)
    )
    return (
        f"Above the best known: {'; '.join(parts)}. Slower than data parallelism: {slower} of "
        f"{len(rows)}, and {never} plans."
    )


def table_of(rows: list[Row]) -> DataFrame:
    """Return the gaps of all instances."""
    return DataFrame(
        [
            {
                "model": row.model,
                "accelerators": str(row.accelerators),
                "links": f"{row.bandwidth / 1e6:g} MB/s",
                "best known": f"{1e3 * row.best_seconds:.2f} ms",
                "exact at NOAM": f"{gap(row.exact_seconds, row):.1f}%",
                "data parallelism": f"{gap(row.data_parallel_seconds, row):.1f}%",
                "plan": f"{gap(row.plan_seconds, row):.1f}%",
                "found by": row.planned_by,
                "search": f"{gap(row.searched_seconds, row):.1f}%",
            }
            for row in rows
        ]
    )


if __name__ == "__main__":
    run_program(app, "benchmarks.plan_gap")
