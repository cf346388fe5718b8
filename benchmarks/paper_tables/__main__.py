"""The papers' tables of time to accuracy, throughput and memory, done again at this size.

    python -m benchmarks.paper_tables pipedream     # Table 1 and figure 11 of PipeDream
    python -m benchmarks.paper_tables pipeoptim     # Tables II, V, VI and figure 6 of PipeOptim
    python -m benchmarks.paper_tables pipemare      # Tables 2 and 3 of PipeMare
    python -m benchmarks.paper_tables drl-pp        # Table 1 of DRL-PP, simulated
    python -m benchmarks.paper_tables report        # the tables, into docs/papers.md

All make what their files of results do not have yet. ``--part times`` needs a quiet machine,
``--part learning`` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.cells import read_results_of
from benchmarks.options import WorkersClusterOption
from benchmarks.paper_tables import drl_pp as drl_pp_table
from benchmarks.paper_tables import pipedream as pipedream_table
from benchmarks.paper_tables import pipemare as pipemare_table
from benchmarks.paper_tables import pipeoptim as pipeoptim_table
from benchmarks.paper_tables import report as tables
from benchmarks.paper_tables.learning import Learned, learn
from benchmarks.paper_tables.learning_study import Progress, Study
from benchmarks.paper_tables.report import BEGIN, END
from benchmarks.paper_tables.result_files import RESULTS, STUDY, Results
from benchmarks.report import write_between
from drlpp.cli.command_line import build_console, run_program
from drlpp.io.documents import Record
from drlpp.io.json_lines import append


class Part(StrEnum):
    """What a command makes."""

    TIMES = "times"
    LEARNING = "learning"
    ALL = "all"


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

ShortOption = Annotated[bool, typer.Option("--short", help="A minute, to see it work.")]
FolderOption = Annotated[Path, typer.Option("--results", help="Folder of the files of results.")]
PartOption = Annotated[
    Part, typer.Option(help="times, which need a quiet machine; learning, which does not; all.")
]
TaskOption = Annotated[str | None, typer.Option("--task", help="Only this.")]
MethodOption = Annotated[
    list[str] | None, typer.Option("--method", help="Only this, and the baseline; repeat it.")
]


@app.command()
def pipedream(
    part: PartOption = Part.ALL,
    links: Annotated[str, typer.Option(help="Their name in the table.")] = "one host",
    workers: Annotated[int, typer.Option(min=2, help="Emulated accelerators.")] = 4,
    speed: Annotated[
        float,
        typer.Option(help="Of each, in cores; 1 where control groups slow them down already."),
    ] = 0.4,
    cluster: WorkersClusterOption = None,
    short: ShortOption = False,
    folder: FolderOption = RESULTS,
) -> None:
    """Compare PipeDream's configurations with data parallelism, on live workers."""
    results = Results(folder)
    if part is not Part.LEARNING:
        pipedream_table.time_models(
            links,
            [timing.model for timing in results.timings if timing.links == links],
            _keeping(results.timings_path),
            workers=workers,
            speed=speed,
            cluster=cluster,
            short=short,
        )
    if part is not Part.TIMES:
        pipedream_table.learn_models(
            results.timings,
            results.trainings,
            _keeping(results.trainings_path),
            workers=workers,
            short=short,
        )


@app.command()
def pipeoptim(
    part: PartOption = Part.ALL, short: ShortOption = False, folder: FolderOption = RESULTS
) -> None:
    """Measure throughput and memory of six methods on one split, and replay them to a loss."""
    results = Results(folder)
    if part is not Part.LEARNING:
        known = {(s.case, s.method, s.repetition) for s in results.throughput}
        pipeoptim_table.measure_throughput(known, _keeping(results.throughput_path), short=short)
    if part is not Part.TIMES:
        if not results.memory:
            # All or none: what is there is not measured again.
            for memory in list(pipeoptim_table.measure_memory(short=short)):
                _keeping(results.memory_path)(memory)
        learn_all(pipeoptim_table.studies(short), results.pipeoptim_path)


@app.command()
def pipemare(
    short: ShortOption = False,
    folder: FolderOption = RESULTS,
    task: TaskOption = None,
    method: MethodOption = None,
) -> None:
    """Replay PipeMare's methods to a loss; no part of it is timed."""
    learn_all(pipemare_table.studies(short), Results(folder).pipemare_path, task, method or ())


@app.command()
def drl_pp(folder: FolderOption = RESULTS) -> None:
    """Simulate DRL-PP's Table 1 with published profiles, on links from slow to fast."""
    results = Results(folder)
    known = {(case.model, case.gigabytes) for case in results.drl_pp}
    drl_pp_table.simulate_cases(known, _keeping(results.drl_pp_path))


@app.command()
def report(
    folder: FolderOption = RESULTS,
    document: Annotated[
        Path, typer.Option(help="Markdown file with the marks between which the tables go.")
    ] = Path("docs/papers.md"),
) -> None:
    """Write all tables into the page."""
    write_between(document, BEGIN, END, tables.report(Results(folder)))


def learn_all(
    studies: Sequence[Study], path: Path, task: str | None = None, methods: Sequence[str] = ()
) -> None:
    """Make all runs of the studies that the file does not have yet."""
    torch.set_num_threads(1)
    keep = _keeping(path)
    found = read_results_of(STUDY, Learned, path)
    for study in studies:
        if task not in (None, study.task):
            continue
        while (job := Progress(study, found).next_job(methods)) is not None:
            found.append(learn(job, study.row(job.method)))
            keep(found[-1])


def _keeping(path: Path) -> Callable[[Record], None]:
    """Return what appends a result to a file, and tells of it."""
    console = build_console()

    def keep(result: Record) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        append(path, result)
        shown = result.model_dump(exclude={"points", "placement", "machine"}, exclude_none=True)
        console.print(str(shown), highlight=False, soft_wrap=True)

    return keep


if __name__ == "__main__":
    run_program(app, "benchmarks.paper_tables")
