"""How many samples does each method need to the loss of plain training, at its own best rate?

    python -m benchmarks.samples_to_loss run        # resumable; interrupt it at will
    python -m benchmarks.samples_to_loss report     # the tables, into the README beside this file

Every method trains at depths 2, 4, 8 and 16 with a constant and with a decaying learning rate. One
process replays what the weights of every stage would be, so deep pipelines need no machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cells import Where, run_cells
from benchmarks.options import ClusterOption, ProcessesOption
from benchmarks.report import write_between
from benchmarks.samples_to_loss.methods import METHODS
from benchmarks.samples_to_loss.report import BEGIN, END, samples_needed, section, studies
from benchmarks.samples_to_loss.runs import Job, Result, read_results, run_job
from benchmarks.samples_to_loss.search import Progress
from benchmarks.samples_to_loss.tasks import TASKS
from drlpp.cli.command_line import build_console, run_program
from drlpp.errors import InvalidInput
from drlpp.io.documents import write_atomically

DEPTHS = (2, 4, 8, 16)
RATES = ("constant", "decaying")

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

Results = Annotated[Path, typer.Option(help="File of results, one in a line.")]
Tasks = Annotated[list[str] | None, typer.Option("--task", help="Only this; may be repeated.")]
Rates = Annotated[
    list[str] | None,
    typer.Option("--rate", help="Only rates that are constant, or decaying; may be repeated."),
]
Depths = Annotated[list[int] | None, typer.Option("--depth", help="Only this; may be repeated.")]
Methods = Annotated[list[str] | None, typer.Option("--method", help="Only this, and the baseline.")]
Count = Annotated[
    int | None, typer.Option("--minibatches", help="Of plain training; the task's own.", min=1)
]
DEFAULT_RESULTS = Path(__file__).with_name("results.jsonl")
README = Path(__file__).with_name("README.md")


@app.command()
def run(
    results: Results = DEFAULT_RESULTS,
    task: Tasks = None,
    rate: Rates = None,
    depth: Depths = None,
    method: Methods = None,
    minibatches: Count = None,
    processes: ProcessesOption = 2,
    cluster: ClusterOption = None,
) -> None:
    """Make all runs that the file of results does not have yet."""
    console = build_console()
    started = time.monotonic()

    def tell(result: Result) -> None:
        job = result.job
        console.print(
            f"{job.task}, {job.method}, depth {job.depth or 'any'}, rate {job.learning_rate:g}"
            f"{', decaying' * job.decays}, seed {job.seed}: {result.final_loss:.3f} after "
            f"{result.minibatches[-1]} minibatches, in {result.seconds:.0f} s",
            highlight=False,
        )

    chosen = studies(*_chosen(task, rate, depth, method), minibatches)

    def next_jobs(found: Sequence[Result]) -> list[Job]:
        return [job for study in chosen for job in Progress(study, found).next_jobs()]

    run_cells(run_job, next_jobs, results, read_results, Where(processes, cluster), tell)
    console.print(f"all is in {results}, after {time.monotonic() - started:.0f} s")


@app.command()
def report(
    results: Results = DEFAULT_RESULTS,
    task: Tasks = None,
    rate: Rates = None,
    depth: Depths = None,
    method: Methods = None,
    minibatches: Count = None,
    document: Annotated[
        Path, typer.Option(help="Markdown file with the marks between which the tables go.")
    ] = README,
) -> None:
    """Write the tables of all results into the document."""
    found = read_results(results)
    chosen = studies(*_chosen(task, rate, depth, method), minibatches)
    known = [progress for study in chosen if (progress := Progress(study, found)).target()]
    write_between(document, BEGIN, END, "\n".join(section(progress) for progress in known))


@app.command()
def needed(
    results: Results = DEFAULT_RESULTS,
    task: Tasks = None,
    depth: Depths = None,
    method: Methods = None,
    out: Annotated[
        Path, typer.Option(help="File for how many minibatches each method needs.")
    ] = Path("benchmarks/time_to_loss/samples-needed.jsonl"),
) -> None:
    """Write for programs what the tables say of constant rates; what is not known is left out."""
    found = read_results(results)
    lines = []
    for study in studies(*_chosen(task, ["constant"], depth, method), None):
        progress = Progress(study, found)
        lines += [one.model_dump_json() + "\n" for one in samples_needed(progress)]
    write_atomically(out, "".join(lines).encode())
    build_console().print(f"{len(lines)} methods and depths: {out}", soft_wrap=True)


def _chosen(
    tasks: list[str] | None,
    rates: list[str] | None,
    depths: list[int] | None,
    methods: list[str] | None,
) -> tuple[list[str], list[str], list[int], list[str]]:
    """Return what is asked for, or all there is.

    Raises:
        InvalidInput: if there is no such thing.
    """
    for what, asked, known in (
        ("task", tasks, [*TASKS]),
        ("rate", rates, [*RATES]),
        ("depth", depths, [*DEPTHS]),
        ("method", methods, [*METHODS]),
    ):
        for one in asked or ():
            if one not in known:
                names = ", ".join(map(str, known))
                raise InvalidInput(f"{what} {one!r} is unknown; there are {names}")
    return tasks or [*TASKS], rates or [*RATES], depths or [*DEPTHS], methods or [*METHODS]


if __name__ == "__main__":
    run_program(app, "benchmarks.samples_to_loss")
