"""How good is what sixteen measurements find, and does it know how good it is?

    python -m benchmarks.sixteen run --results sixteen.jsonl --document benchmarks/sixteen/README.md
    python -m benchmarks.sixteen seeds --graph layered-110 --speeds unequal

Every line of the results is a run, written as soon as it is done; the same command continues.
``seeds`` has the search before all measurements alone, ``against`` compares two files of runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise, zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import numpy
import typer
from pandas import DataFrame
from rich.progress import Progress

from benchmarks.options import ClusterOption, DocumentOption, JsonOption, ProcessesOption
from benchmarks.report import markdown, terminal, write_between
from benchmarks.sixteen.design import cells_of
from benchmarks.sixteen.paired import against
from benchmarks.sixteen.runs import GRAPHS, Run, read_runs, run
from benchmarks.sixteen.seeds import seeds
from drlpp.cells import Where, all_of, run_cells
from drlpp.cli.command_line import build_console, run_program
from drlpp.errors import InvalidInput

BEGIN = "<!-- sixteen: written by benchmarks.sixteen -->"
END = "<!-- end of sixteen -->"

MEASUREMENTS = (0, 4, 8, 16, 48)
BANDWIDTHS = (1.25e8, 1.25e9, 1.2e10)

_SMALL = 0.005
"""What is expected to be saved where a run may end."""

_WITHOUT_GAIN = (0, 2, 3, 8)
"""Measurements in a row that made nothing faster: the least of every row of a table."""

_SURE = (0.0, 0.5, 0.8, 0.95, 1.0)
"""Borders of what is said, for the table of how often it holds."""

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


app.command("seeds")(seeds)
app.command("against")(against)


@app.command("run")
def main(
    results: Annotated[Path, typer.Option(help="The file of runs.")],
    graphs: Annotated[str, typer.Option(help="Which.")] = ",".join(GRAPHS),
    accelerators: Annotated[str, typer.Option(help="How many.")] = "4,8,16",
    bandwidths: Annotated[str, typer.Option(help="Of all links, in bytes per second.")] = ",".join(
        f"{bandwidth:g}" for bandwidth in BANDWIDTHS
    ),
    declared: Annotated[
        str, typer.Option(help="Whether what is declared is right or wrong.")
    ] = "right,wrong",
    speeds: Annotated[str, typer.Option(help="Of the accelerators.")] = "equal,unequal",
    noise: Annotated[float, typer.Option(min=0, help="Of what is measured.")] = 0.01,
    rounds: Annotated[
        int, typer.Option(min=1, help="Of all combinations of conditions; 100 are five seeds.")
    ] = 1,
    budget: Annotated[int, typer.Option(min=1, help="Of measurements.")] = 16,
    starts: Annotated[int, typer.Option(min=0, help="Of the search for the best known.")] = 20,
    evaluations: Annotated[int, typer.Option(min=1, help="Of it from each.")] = 1000,
    policy: Annotated[
        Path | None, typer.Option(help="Weights of a policy that proposes as well.")
    ] = None,
    processes: ProcessesOption = 1,
    cluster: ClusterOption = None,
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure one after the other in the simulator, and compare with the best known.

    Raises:
        InvalidInput: the file has runs with another policy.
    """
    console = build_console()
    name = "" if policy is None else policy.name
    known = read_runs(results)
    if others := {one.policy for one in known} - {name}:
        raise InvalidInput(
            f"{results} has runs with {min(others) or 'no policy'}, and these are with "
            f"{name or 'none'}; give them a file of their own"
        )
    cells = cells_of(
        graphs.split(","),
        [int(count) for count in accelerators.split(",")],
        [float(bandwidth) for bandwidth in bandwidths.split(",")],
        [what == "wrong" for what in declared.split(",")],
        [speed == "unequal" for speed in speeds.split(",")],
        noise,
        rounds,
    )
    wanted = all_of(cells, attrgetter("cell"))
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("measuring", total=len(wanted(known)))
        done = run_cells(
            partial(run, budget=budget, starts=starts, evaluations=evaluations, policy=policy),
            wanted,
            results,
            read_runs,
            Where(processes, cluster),
            lambda _: progress.advance(bar),
        )
    if as_json:
        print(json.dumps([one.model_dump() for one in done], indent=1))
        return
    tables = {
        "Gap to the best known, %": gaps(done),
        "What is said, and how often it holds": calibration(done),
        "What is expected to be saved, and what is left to save": expectations(done),
    }
    for title, table in tables.items():
        console.print(terminal(table, title, names=2))
    console.print(summary(done))
    if document is not None:
        text = "\n\n".join([summary(done), *map(markdown, tables.values())])
        write_between(document, BEGIN, END, text)


def gaps(runs: list[Run]) -> DataFrame:
    """Return gaps after some measurements, by what was declared and the accelerators."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for one in runs:
        cell = one.cell
        key = "wrong" if cell.wrong else "right", "unequal" if cell.unequal else "equal"
        groups.setdefault(key, []).append(one)
    return DataFrame(
        [
            {
                "declared": declared,
                "speeds": speeds,
                "runs": str(len(found)),
                **dict(_gap_columns(found)),
                "measured (median)": f"{numpy.median([len(one.steps) for one in found]):g}",
            }
            for (declared, speeds), found in sorted(groups.items())
        ]
    )


def _gap_columns(runs: list[Run]) -> Iterator[tuple[str, str]]:
    for count in MEASUREMENTS:
        # A run that ended by itself would have gone no further; of others nothing more is known,
        # and those that ended are the easy ones.
        if not all(one.settled or len(one.steps) >= count for one in runs):
            continue
        found = 100 * numpy.array([one.gap(count) for one in runs])
        within = (found <= 1).mean()
        yield (
            f"{count}: median / worst (within 1%)",
            f"{numpy.median(found):.1f} / {found.max():.1f} ({within:.0%})",
        )


def calibration(runs: list[Run]) -> DataFrame:
    """Return how often the fastest is within 1%, by how sure it was said to be."""
    pairs = [
        (step.sureness, step.seconds <= 1.01 * one.best_known) for one in runs for step in one.steps
    ]
    last = [
        (one.sureness, one.steps[-1].seconds <= 1.01 * one.best_known) for one in runs if one.steps
    ]
    rows = []
    for low, high in pairwise(_SURE):
        row = {"sure": f"{low:.0%} to {high:.0%}"}
        for title, found in (("after every measurement", pairs), ("at the end", last)):
            held = [holds for sure, holds in found if low <= sure < high or sure == high == 1]
            row[title] = f"{numpy.mean(held):.0%} of {len(held)}" if held else "–"
        rows.append(row)
    return DataFrame(rows)


def expectations(runs: list[Run]) -> DataFrame:
    """Return what is expected to be saved beside what the best known saves.

    By the measurements since the fastest became faster; without expectations that end a run.
    """
    found: dict[int, list[tuple[float, float]]] = {low: [] for low in _WITHOUT_GAIN}
    for one in runs:
        fastest, without = math.inf, -1
        for step in one.steps:
            without = 0 if step.seconds < 0.999 * fastest else without + 1
            fastest = min(fastest, step.seconds)
            if step.gain >= _SMALL:
                low = max(low for low in found if low <= without)
                found[low].append((step.gain, max(0.0, 1 - one.best_known / fastest)))
    rows = []
    for low, following in zip_longest(_WITHOUT_GAIN, _WITHOUT_GAIN[1:]):
        means = numpy.mean(found[low], axis=0) if found[low] else (math.nan, math.nan)
        if following is None:
            name = f"{low} or more"
        else:
            name = f"{low}" if following == low + 1 else f"{low} to {following - 1}"
        rows.append(
            {
                "measurements without a gain": name,
                "times": str(len(found[low])),
                "expected, %": f"{100 * means[0]:.1f}",
                "left, %": f"{100 * means[1]:.1f}",
            }
        )
    return DataFrame(rows)


def summary(runs: list[Run]) -> str:
    """Return the goals and what came out, in a sentence each."""
    sixteen = [one.gap(16) for one in runs]
    right = [one.gap(0) for one in runs if not one.cell.wrong]
    slower = sum(one.best_known * (1 + one.gap(16)) > one.best_plan * (1 + 1e-9) for one in runs)
    parts = [
        f"After 16 measurements {numpy.mean(numpy.array(sixteen) <= 0.01):.0%} of {len(runs)} runs "
        "are within 1% of the best known."
    ]
    if right:
        parts.append(
            f"Without any, where costs are right, the median is {numpy.median(right):.1%} above it."
        )
    seconds = [one.cluster_seconds for one in runs]
    by_bandwidth = ", ".join(
        f"{_saved([one for one in runs if one.cell.bandwidth == bandwidth])} at "
        f"{bandwidth / 1e6:g} MB/s"
        for bandwidth in sorted({one.cell.bandwidth for one in runs})
    )
    parts.append(
        f"Slower than a planner's placement or data parallelism: {slower}. On the cluster a run "
        f"takes {numpy.median(seconds):.0f} s in the median. Not to run again what is far slower "
        f"than the fastest saves {_saved(runs)} of all that: {by_bandwidth}."
    )
    return " ".join(parts)


def _saved(runs: list[Run]) -> str:
    saved = sum(one.saved_seconds for one in runs)
    return f"{saved / sum(one.cluster_seconds for one in runs):.0%}"


if __name__ == "__main__":
    run_program(app, "benchmarks.sixteen")
