"""How far from the optimum an agent is after given numbers of measurements, on any profile.

    python -m benchmarks.agent_study gap --profile benchmarks/profiles/vgg16.json \\
        --accelerators 4 --bandwidth 1.25e9 --agent recalibrate --measurements 50,100,200 --seeds 3

Placements are measured by the simulator with the profile; agents do not know ``--speeds``, and
with ``--declared-profile`` agents and planners get another one. The optimum is what the exact
planner finds when it knows all costs, as the simulator measures it. It minimises a formula, so a
search that measures can be better: its gap is negative then. The gap to the best known is to what
four evolutions of 2,000 measurements each find on the costs as they are.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from pandas import DataFrame
from rich.table import Table

from benchmarks.agent_study.instance import Instance
from benchmarks.agent_study.methods import METHODS, history_of
from benchmarks.options import JsonOption
from benchmarks.report import terminal
from drlpp.cli.command_line import build_console
from drlpp.cli.planning.planning_input import read_speeds
from drlpp.costs.files.profile_files import read_profile
from drlpp.errors import InvalidInput
from drlpp.io.formatting import seconds_text
from drlpp.specs.cluster import Link


@dataclass(frozen=True)
class Run:
    """One seed: the fastest after each number of distinct placements, and its gap to the optimum.

    ``distinct`` is how many the agent measured; fewer than allowed if it settled before.
    """

    seed: int
    distinct: int
    wall_seconds: float
    best_seconds: dict[int, float]
    gap: dict[int, float]
    gap_to_best_known: dict[int, float]


@dataclass(frozen=True)
class Gaps:
    """All seeds of an agent on an instance."""

    agent: str
    instance: str
    accelerators: int
    optimum_seconds: float
    best_known_seconds: float
    planner_seconds: float
    runs: tuple[Run, ...]

    def median_gap(self, measurements: int) -> float:
        """Return the median gap over the seeds."""
        return statistics.median(run.gap[measurements] for run in self.runs)

    def worst_gap(self, measurements: int) -> float:
        """Return the worst gap over the seeds."""
        return max(run.gap[measurements] for run in self.runs)


def main(
    profile: Annotated[
        Path, typer.Option(help="Costs as they are: of drlpp profile, or PipeDream.")
    ],
    accelerators: Annotated[int, typer.Option(min=1)],
    bandwidth: Annotated[float, typer.Option(help="Bytes per second.")],
    agent: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "recalibrate",
    measurements: Annotated[
        str, typer.Option(help="Distinct placements after which to look.")
    ] = "50,100,200",
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    latency: Annotated[float, typer.Option(min=0.0, help="Seconds.")] = 5e-5,
    speeds: Annotated[
        str | None, typer.Option(help="Of the accelerators, such as 1,1,0.5,0.5; not declared.")
    ] = None,
    declared_profile: Annotated[
        Path | None, typer.Option(help="What agents and planners are told instead.")
    ] = None,
    declared_bandwidth: Annotated[
        float | None, typer.Option(help="What agents and planners are told instead.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Let an agent look for the fastest placement on simulated accelerators."""
    if agent not in METHODS:
        raise InvalidInput(f"agent {agent!r} is unknown; there are {', '.join(METHODS)}")
    for name, value in (("bandwidth", bandwidth), ("declared bandwidth", declared_bandwidth)):
        if value is not None and not 0 < value < float("inf"):
            raise InvalidInput(f"the {name} is {value:g}; it must be a number above 0")
    declared_link = None
    if declared_bandwidth is not None:
        declared_link = Link(bandwidth_bytes_per_second=declared_bandwidth, latency_seconds=latency)
    instance = Instance.of(
        profile.stem,
        read_profile(profile),
        accelerators,
        Link(bandwidth_bytes_per_second=bandwidth, latency_seconds=latency),
        speeds=None if speeds is None else read_speeds(speeds),
        declared_profile=None if declared_profile is None else read_profile(declared_profile),
        declared_link=declared_link,
    )
    budgets = _budgets(measurements)
    console = build_console()
    runs = []
    with console.status("") as status:
        for seed in range(seeds):
            status.update(f"{agent}, seed {seed}")
            runs.append(run_agent(agent, instance, budgets, seed))
    gaps = Gaps(
        agent,
        instance.name,
        accelerators,
        instance.optimum,
        instance.best_known,
        instance.best_planner,
        tuple(runs),
    )
    if as_json:
        print(json.dumps(_summary(gaps, budgets)))
    else:
        console.print(_table(gaps, budgets))


def _budgets(text: str) -> list[int]:
    try:
        budgets = sorted({int(part) for part in text.split(",")})
    except ValueError:
        budgets = [0]
    if budgets[0] < 1:
        raise InvalidInput(f"measurements {text!r}: expected numbers above 0, such as 50,100,200")
    return budgets


def run_agent(agent: str, instance: Instance, budgets: Sequence[int], seed: int) -> Run:
    """Let an agent spend the largest of the budgets."""
    begin = time.perf_counter()
    history = history_of(METHODS[agent], instance, max(budgets), seed)
    best = {budget: history[:budget][-1] for budget in budgets}
    return Run(
        seed=seed,
        distinct=len(history),
        wall_seconds=time.perf_counter() - begin,
        best_seconds=best,
        gap={budget: seconds / instance.optimum - 1 for budget, seconds in best.items()},
        gap_to_best_known={
            budget: seconds / instance.best_known - 1 for budget, seconds in best.items()
        },
    )


def _summary(gaps: Gaps, budgets: Sequence[int]) -> dict[str, object]:
    return {
        **asdict(gaps),
        "median_gap": {budget: gaps.median_gap(budget) for budget in budgets},
        "worst_gap": {budget: gaps.worst_gap(budget) for budget in budgets},
        "median_gap_to_best_known": {
            budget: statistics.median(run.gap_to_best_known[budget] for run in gaps.runs)
            for budget in budgets
        },
    }


def _table(gaps: Gaps, budgets: Sequence[int]) -> Table:
    def line(name: str, gap_of: Callable[[int], float], *rest: str) -> list[str]:
        return [name, *(f"{gap_of(budget):+.1%}" for budget in budgets), *rest]

    frame = DataFrame(
        [
            *(
                line(
                    str(run.seed), run.gap.__getitem__, str(run.distinct), f"{run.wall_seconds:.0f}"
                )
                for run in gaps.runs
            ),
            line("median", gaps.median_gap, "", ""),
            line("worst", gaps.worst_gap, "", ""),
        ],
        columns=["seed", *(f"after {budget}" for budget in budgets), "measured", "seconds taken"],
    )
    return terminal(
        frame,
        f"{gaps.agent} on {gaps.instance}, {gaps.accelerators} accelerators: "
        f"optimum {seconds_text(gaps.optimum_seconds)}, "
        f"best known {seconds_text(gaps.best_known_seconds)}, "
        f"best planner {seconds_text(gaps.planner_seconds)}",
    )
