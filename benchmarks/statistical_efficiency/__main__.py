"""How good is a model after a fixed number of epochs, with each weight policy (pipeoptim §V-B)?

    python -m benchmarks.statistical_efficiency search      # learning rates, on GPipe alone
    python -m benchmarks.statistical_efficiency run         # every method; resumable
    python -m benchmarks.statistical_efficiency report      # into docs/statistical-efficiency.md

Two tasks, three optimizers, pipelines of 4, 8 and 16 stages and five seeds. All training is done by
the reference executor, in which a stage costs no process, so deep pipelines need no machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cells import Where, all_of, run_cells
from benchmarks.options import ClusterOption, ProcessesOption
from benchmarks.report import write_between
from benchmarks.statistical_efficiency.methods import METHODS
from benchmarks.statistical_efficiency.report import BEGIN, END, summary
from benchmarks.statistical_efficiency.report import report as report_text
from benchmarks.statistical_efficiency.runs import (
    SEEDS,
    Job,
    Result,
    best_rate,
    read_results,
    run_job,
    search_jobs,
    study_jobs,
)
from drlpp.cli.command_line import build_console, run_program
from drlpp.errors import InvalidInput

RATES: dict[tuple[str, str], float] = {
    ("digits", "sgd"): 0.01,
    ("digits", "adam"): 0.003,
    ("digits", "adamw"): 0.003,
    ("text", "sgd"): 0.1,
    ("text", "adam"): 0.01,
    ("text", "adamw"): 0.01,
}
"""What ``search`` found to be best for GPipe, with a seed that the study does not use."""

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

Results = Annotated[Path, typer.Option(help="File of results, one in a line.")]
DEFAULT_RESULTS = Path("runs/statistical-efficiency.jsonl")


@app.command()
def search(
    results: Results = DEFAULT_RESULTS,
    processes: ProcessesOption = 2,
    cluster: ClusterOption = None,
) -> None:
    """Train GPipe with every learning rate and tell the best."""
    jobs = search_jobs()
    _run(jobs, results, Where(processes, cluster))
    found = [result for result in read_results(results) if result.job in jobs]
    console = build_console()
    for task, optimizer in RATES:
        rate = best_rate(r for r in found if (r.job.task, r.job.optimizer) == (task, optimizer))
        console.print(f"{task}, {optimizer}: {rate:g}")


@app.command()
def run(
    results: Results = DEFAULT_RESULTS,
    processes: ProcessesOption = 2,
    cluster: ClusterOption = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Only this method; may be repeated.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Only so many seeds.", min=1, max=len(SEEDS))] = len(
        SEEDS
    ),
) -> None:
    """Train with every method, whatever the file of results does not have yet."""
    for name in method or ():
        if name not in METHODS:
            raise InvalidInput(f"method {name!r} is unknown; there are {', '.join(METHODS)}")
    jobs = study_jobs(RATES, method or METHODS, seeds=SEEDS[:seeds])
    _run(jobs, results, Where(processes, cluster))


@app.command()
def report(
    results: Results = DEFAULT_RESULTS,
    document: Annotated[
        Path, typer.Option(help="Markdown file with the marks between which the tables go.")
    ] = Path("docs/statistical-efficiency.md"),
) -> None:
    """Write the tables of all results into the document."""
    wanted = {*search_jobs(), *study_jobs(RATES, METHODS)}
    found = [result for result in read_results(results) if result.job in wanted]
    write_between(document, BEGIN, END, report_text(found))


def _run(jobs: Sequence[Job], results: Path, where: Where) -> None:
    console = build_console()
    started = time.monotonic()

    def tell(result: Result) -> None:
        job = result.job
        console.print(
            f"{job.task}, {job.optimizer} {job.learning_rate:g}, {job.method}, "
            f"{job.depth or 'any number of'} stages, seed {job.seed}: {summary([result])} "
            f"in {result.seconds:.0f} s"
        )

    # Those that share a captured model follow each other.
    ordered = sorted(jobs, key=lambda job: (job.seed, job.task, job.method))
    wanted = all_of(ordered, attrgetter("job"))
    run_cells(run_job, wanted, results, read_results, where, tell)
    console.print(f"{len(jobs)} runs are in {results}, after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    run_program(app, "benchmarks.statistical_efficiency")
