"""The papers' tables of time to accuracy, throughput and memory, done again at this size.

python -m benchmarks.paper_tables pipemare
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.paper_tables import pipemare as pipemare_table
from benchmarks.paper_tables.learning import Learned, learn
from benchmarks.paper_tables.learning_study import Progress, Study
from benchmarks.results_file import read_results_of
from drlpp.cli.command_line import build_console, run_program
from drlpp.io.json_lines import append

RESULTS = Path(__file__).with_name("results")

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

ShortOption = Annotated[bool, typer.Option("--short", help="A minute, to see it work.")]
ResultsOption = Annotated[Path, typer.Option("--results", help="Folder of files of results.")]
TaskOption = Annotated[str | None, typer.Option("--task", help="Only this.")]


@app.callback()
def main() -> None:
    """Do the papers' tables again at this size."""


@app.command()
def pipemare(
    short: ShortOption = False, results: ResultsOption = RESULTS, task: TaskOption = None
) -> None:
    """Replay PipeMare's methods to a loss; resumable, and a busy machine does not matter."""
    learn_all(pipemare_table.studies(short), results / "pipemare.jsonl", task)


def learn_all(studies: Sequence[Study], path: Path, task: str | None = None) -> None:
    """Make all runs of the studies that the file does not have yet."""
    torch.set_num_threads(1)
    console = build_console()
    path.parent.mkdir(parents=True, exist_ok=True)
    found = read_results_of("benchmarks.paper_tables", Learned, path)
    for study in studies:
        if task not in (None, study.task):
            continue
        while (job := Progress(study, found).next_job()) is not None:
            found.append(learn(job, study.row(job.method)))
            append(path, found[-1])
            last = found[-1].points[-1]
            console.print(
                f"{job.task}, {job.method}, 2^{job.power} thousandths, seed {job.seed}: loss "
                f"{found[-1].loss:.3f}, ends after {last.minibatches} minibatches, in "
                f"{found[-1].seconds:.0f} s",
                highlight=False,
            )


if __name__ == "__main__":
    run_program(app, "benchmarks.paper_tables")
