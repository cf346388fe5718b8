"""``python -m benchmarks.time_to_loss``: races, or their parts, on emulated accelerators.

python -m benchmarks.time_to_loss race decoder          # live, to the loss
python -m benchmarks.time_to_loss races races/*         # their results as a table
python -m benchmarks.time_to_loss seconds decoder       # seconds per minibatch alone
python -m benchmarks.time_to_loss report                # times minibatches of the replays
python -m benchmarks.time_to_loss losses decoder        # live, after every epoch; nothing is timed
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cells import read_results_of
from benchmarks.learning.race_tasks import TASKS, RaceTask, race_name
from benchmarks.learning.samples_needed import SamplesNeeded
from benchmarks.options import DocumentOption, WorkersClusterOption
from benchmarks.report import markdown, terminal, write_between
from benchmarks.time_to_loss import live_races
from benchmarks.time_to_loss import losses as live
from benchmarks.time_to_loss.report import BEGIN, END, table
from benchmarks.time_to_loss.seconds import Speed, has_replay, measure
from drlpp.capturing.capture import capture
from drlpp.cli.command_line import build_console, run_program
from drlpp.cli.learning.race_command import run_and_report
from drlpp.errors import InvalidInput
from drlpp.io.json_lines import append
from drlpp.io.run_folder import open_run_folder
from drlpp.models.model_reference import ModelReference
from drlpp.planners import Space
from drlpp.racing.candidates import usual_candidates
from drlpp.racing.rivals import Grounds
from drlpp.racing.to_loss import RaceData, RaceOptions
from drlpp.runtime import ClusterSession, load_or_measure_profile
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

TaskArgument = Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")]
Workers = Annotated[int, typer.Option(min=1, help="Emulated accelerators.")]
SpeedOption = Annotated[
    float | None,
    typer.Option(
        "--speed",
        help="Of each, as a part of a core; else 0.9 of the two cores is divided among them. "
        "1 where control groups slow them down already.",
    ),
]
Speeds = Annotated[Path, typer.Option(help="File of seconds, one contender in a line.")]
DEFAULT_SPEEDS = Path(__file__).with_name("seconds.jsonl")
DEFAULT_NEEDED = Path(__file__).with_name("samples-needed.jsonl")
README = Path(__file__).with_name("README.md")
LOSSES_BEGIN = "<!-- losses: written by benchmarks.time_to_loss losses -->"
LOSSES_END = "<!-- end of losses -->"
RACES_BEGIN = "<!-- races: written by benchmarks.time_to_loss races -->"
RACES_END = "<!-- end of races -->"


@app.command()
def race(
    task: TaskArgument,
    workers: Workers = 4,
    speed: SpeedOption = None,
    epochs: Annotated[int, typer.Option(min=1, help="Of plain PyTorch, to the target.")] = 3,
    finals: Annotated[int, typer.Option(min=1, help="Trainings of a finalist.")] = 3,
    halving: Annotated[
        bool, typer.Option(help="End who falls behind; else all train to the target.")
    ] = False,
    optimizer: Annotated[str, typer.Option(help="Its name.")] = "adamw",
    cluster: WorkersClusterOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder; else races/TASK-WORKERS.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the race in --out.")] = False,
) -> None:
    """Race on one task, as ``drlpp race`` does, with workers that emulate slower accelerators."""
    of = _task(task)
    folder = out or Path("races") / f"{task}-{workers}"
    spec = OptimizerSpec.parse(optimizer, lr=of.rate)
    settings = {"task": task, "workers": workers, "speed": speed, "optimizer": spec.settings}
    with (
        open_run_folder(folder, "time to loss", settings, resume=resume),
        _session(of, workers, speed, spec, cluster) as session,
    ):
        data = RaceData(session.captured, of.data)
        options = RaceOptions(epochs=epochs, finals=finals, halving=halving)
        console = build_console()
        known = load_or_measure_profile(session, folder)
        run_and_report(console, session, *known, [], data, folder, options)


@app.command()
def races(
    folders: Annotated[
        list[Path], typer.Argument(help="Of races that have ended, TASK-ACCELERATORS-LINKS.")
    ],
    document: DocumentOption = None,
) -> None:
    """Print when who was at the loss in races that have ended."""
    found = live_races.table(map(live_races.read_race, folders))
    build_console().print(terminal(found, names=3))
    if document is not None:
        write_between(document, RACES_BEGIN, RACES_END, markdown(found))


@app.command()
def seconds(
    task: TaskArgument,
    workers: Workers = 4,
    speed: SpeedOption = None,
    links: Annotated[str, typer.Option(help="What lies between the workers, in words.")] = "fast",
    rounds: Annotated[int, typer.Option(min=1, help="In which all take turns.")] = 3,
    minibatches: Annotated[int, typer.Option(min=4, help="Of a measurement.")] = 30,
    cluster: WorkersClusterOption = None,
    results: Speeds = DEFAULT_SPEEDS,
) -> None:
    """Measure seconds per minibatch of everybody who would take part in the race."""
    of, console = _task(task), build_console()
    spec = OptimizerSpec.parse("adamw", lr=of.rate)
    with _session(of, workers, speed, spec, cluster) as session:
        profile, measured = session.profile()
        usual = usual_candidates(Grounds(session, profile, measured, Space(session.method)))
        contenders = list(filter(has_replay, usual))
        found = measure(session, contenders, rounds, minibatches, console.print)
    where = {"task": task, "workers": workers, "links": links}
    for contender, taken in zip(contenders, found, strict=True):
        if taken:
            one = Speed.of(contender, taken, **where)
            append(results, one)
            console.print(
                f"{one.kind} on {one.accelerators}, M = {one.microbatches}: "
                f"{1e3 * one.median:.1f} ms",
                highlight=False,
            )


@app.command()
def report(
    results: Speeds = DEFAULT_SPEEDS,
    needed: Annotated[
        Path, typer.Option(help="What benchmarks.samples_to_loss needed writes.")
    ] = DEFAULT_NEEDED,
    document: Annotated[
        Path, typer.Option(help="Markdown file with the marks between which the tables go.")
    ] = README,
) -> None:
    """Write the time to plain PyTorch's loss of everybody into the document."""
    speeds = read_results_of("benchmarks.time_to_loss", Speed, results)
    replayed = read_results_of("benchmarks.samples_to_loss", SamplesNeeded, needed)
    parts = []
    for name, task in TASKS.items():
        own = [speed for speed in speeds if speed.task == name]
        found = [one for one in replayed if one.task == race_name(name)]
        if own and found:
            parts.append(
                f"### {task.title}\n\nSeconds to the held-out loss {found[0].target:.3f}, which "
                f"plain PyTorch has after {found[0].minibatches} minibatches\n\n"
                f"{table(own, found)}\n"
            )
    write_between(document, BEGIN, END, "\n".join(parts))


@app.command()
def losses(
    task: TaskArgument,
    depth: Annotated[list[int] | None, typer.Option(min=2, help="Stages; repeatable.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Of each training.")] = 3,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each.")] = 3,
    optimizer: Annotated[str, typer.Option(help="Its name.")] = "adamw",
    document: DocumentOption = None,
) -> None:
    """Train live at the task's own rate, and print the held-out loss after every epoch."""
    console, found = build_console(), []
    for one in live.train(_task(task), depth or [2, 4, 8], epochs, seeds, optimizer):
        found.append(one)
        text = ", ".join(f"{loss:.3f}" for loss in one.losses)
        console.print(f"{one.kind}, {one.stages} stages, seed {one.seed}: {text}", highlight=False)
    console.print(terminal(live.table(found)))
    if document is not None:
        write_between(document, LOSSES_BEGIN, LOSSES_END, markdown(live.table(found)))


def _task(name: str) -> RaceTask:
    if name not in TASKS:
        raise InvalidInput(f"task {name!r} is unknown; there are {', '.join(TASKS)}")
    return TASKS[name]


@contextmanager
def _session(
    task: RaceTask,
    workers: int,
    speed: float | None,
    optimizer: OptimizerSpec,
    cluster: str | None,
) -> Iterator[ClusterSession]:
    speed = min(0.9, 1.8 / workers) if speed is None else speed
    with ClusterSession(
        capture(ModelReference.named(task.model)),
        workers,
        method=Method(clip_norm=1.0),
        optimizer=optimizer,
        speeds=[speed] * workers if speed < 1 else None,
        device="cpu",
        cluster=cluster,
    ) as session:
        yield session


if __name__ == "__main__":
    run_program(app, "benchmarks.time_to_loss")
