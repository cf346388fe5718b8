"""Which agent finds fast placements on a fixed set of simulated problems?

python -m benchmarks.leaderboard --document benchmarks/leaderboard/README.md
python -m benchmarks.leaderboard --agents mine.agents:best --seeds 3 --budget 50
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from benchmarks.leaderboard.agents import AGENTS, find_agent
from benchmarks.leaderboard.problems import PROBLEMS
from benchmarks.leaderboard.results import Result, check, run, table_of
from benchmarks.machine import this_machine
from benchmarks.options import DocumentOption
from benchmarks.report import markdown, terminal, write_between
from drlpp.cells import read_results_of
from drlpp.cli.command_line import build_console, run_program

BEGIN = "<!-- leaderboard: written by benchmarks.leaderboard -->"
END = "<!-- end of leaderboard -->"

RESULTS = Path(__file__).parent / "results.jsonl"

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    agents: Annotated[
        str, typer.Option(help="Separated by commas: names, or package.module:function.")
    ] = ",".join(AGENTS),
    problems: Annotated[int, typer.Option(min=1, help="The first of the set.")] = len(PROBLEMS),
    seeds: Annotated[int, typer.Option(min=1, help="Of each agent, from 0.")] = 3,
    budget: Annotated[int, typer.Option(min=1, help="Distinct placements to measure.")] = 50,
    results: Annotated[
        Path, typer.Option(help="A line for each result; those that are there are not run again.")
    ] = RESULTS,
    document: DocumentOption = None,
) -> None:
    """Run agents, replay every result that there is, and show the table."""
    console = build_console()
    names = [name for name in agents.split(",") if name]
    for name in names:
        find_agent(name)
    known = read_results_of(__package__ or "", Result, results)
    done = {result.key for result in known}
    open_ones = [
        (name, problem, seed)
        for name in names
        for problem in PROBLEMS[:problems]
        for seed in range(seeds)
        if (name, problem.name, seed, budget) not in done
    ]
    for name, problem, seed in track(open_ones, "running", transient=True, console=console):
        result = run(name, problem, seed, budget)
        results.parent.mkdir(parents=True, exist_ok=True)
        with results.open("a") as file:
            file.write(result.model_dump_json(exclude_none=True) + "\n")
        known.append(result)
    for result in known:
        check(result)
    table = table_of(known)
    console.print(terminal(table, "seconds per minibatch over those of drlpp plan, told all costs"))
    console.print(f"{len(known)} results, all of which came out again when they were replayed")
    if document is not None:
        write_between(document, BEGIN, END, f"{markdown(table)}\n\n{this_machine()}")


if __name__ == "__main__":
    run_program(app, "benchmarks.leaderboard")
