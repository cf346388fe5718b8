"""Does a policy that imitates the offline search help it in return?

python -m benchmarks.expert_iteration train --folder runs/expert
python -m benchmarks.expert_iteration compare --weights runs/expert/policy-1.safetensors
python -m benchmarks.expert_iteration report
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from benchmarks.cells import Where, all_of, read_results_of, run_cells
from benchmarks.expert_iteration.comparison import Arm, Cell, Run, run
from benchmarks.expert_iteration.iteration import Iteration, iterate
from benchmarks.expert_iteration.problems import HELD_OUT
from benchmarks.expert_iteration.report import best_known, table
from benchmarks.options import ClusterOption, ProcessesOption
from benchmarks.report import markdown, terminal, write_between
from drlpp.cli.command_line import build_console, run_program

BEGIN = "<!-- expert iteration: written by benchmarks.expert_iteration -->"
END = "<!-- end of expert iteration -->"
HERE = Path(__file__).parent

ResultsOption = Annotated[Path, typer.Option(help="File of runs, one in a line.")]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
read_runs = partial(read_results_of, "benchmarks.expert_iteration", Run)


@app.command()
def train(
    folder: Annotated[Path, typer.Option(help="Of pairs and weights; it is continued.")],
    pairs: Annotated[int, typer.Option(min=1, help="Made in a generation.")] = 1000,
    generations: Annotated[int, typer.Option(min=1, help="How many.")] = 2,
    minutes: Annotated[float, typer.Option(min=0, help="Of imitation in a generation.")] = 20,
    processes: ProcessesOption = 2,
    cluster: ClusterOption = None,
) -> None:
    """Search, imitate, search again with what was learned."""
    console = build_console()
    options = Iteration(pairs, generations, minutes, folder)
    console.print(iterate(options, Where(processes, cluster), console.print))


@app.command()
def compare(
    weights: Annotated[Path, typer.Option(help="The new policy's.")],
    results: ResultsOption = HERE / "results.jsonl",
    problems: Annotated[int, typer.Option(min=1, help="Held-out ones.")] = HELD_OUT,
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 5,
    processes: ProcessesOption = 2,
    cluster: ClusterOption = None,
) -> None:
    """Search on held-out problems with all kinds of proposals, at equal processor time."""
    console = build_console()
    cells = [
        Cell(problem=number, arm=arm, seed=seed)
        # A process that has the planners' answers for a problem keeps them for what comes next.
        for number in range(problems)
        for seed in range(seeds)
        for arm in Arm
    ]
    wanted = all_of(cells, attrgetter("cell"))
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("searching", total=len(wanted(read_runs(results))))
        run_cells(
            partial(run, expert=weights),
            wanted,
            results,
            read_runs,
            Where(processes, cluster),
            lambda _: progress.advance(bar),
        )
    report(results)


@app.command()
def report(
    results: ResultsOption = HERE / "results.jsonl",
    document: Annotated[Path, typer.Option(help="Page for the table.")] = HERE / "README.md",
) -> None:
    """Write the table of all results into the document."""
    runs = read_runs(results)
    found = table(runs)
    title = (
        f"Gap to the best known in %, mean over seeds, on the {len(best_known(runs))} problems "
        "with headroom; in brackets the median difference from the search alone, and a paired test."
    )
    build_console().print(terminal(found, title))
    write_between(document, BEGIN, END, f"{title}\n\n{markdown(found)}\n")


if __name__ == "__main__":
    run_program(app, "benchmarks.expert_iteration")
