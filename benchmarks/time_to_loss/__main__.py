"""``python -m benchmarks.time_to_loss TASK``: a race on emulated accelerators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.time_to_loss.tasks import TASKS
from drlpp.capturing.capture import capture
from drlpp.cli.command_line import build_console, run_program
from drlpp.cli.race_command import run_and_report
from drlpp.errors import InvalidInput
from drlpp.io.run_folder import open_run_folder
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from drlpp.training_race.race_data import RaceData
from drlpp.training_race.race_to_loss import RaceOptions


def race_task(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")],
    workers: Annotated[int, typer.Option(min=1, help="Emulated accelerators.")] = 4,
    speed: Annotated[
        float | None,
        typer.Option(
            help="Of each, as a part of a core; else 0.9 of the two cores is divided among them. "
            "1 in a cluster that is emulated already."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Of plain PyTorch, to the target.")] = 3,
    finals: Annotated[int, typer.Option(min=1, help="Trainings of a finalist.")] = 3,
    halving: Annotated[
        bool, typer.Option(help="End who falls behind; else all train to the target.")
    ] = False,
    optimizer: Annotated[str, typer.Option(help="Its name.")] = "adamw",
    out: Annotated[Path | None, typer.Option(help="Folder; else races/TASK-WORKERS.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the race in --out.")] = False,
) -> None:
    """Race on one task, as ``drlpp race`` does, with workers that emulate slower accelerators."""
    if task not in TASKS:
        raise InvalidInput(f"task {task!r} is unknown; there are {', '.join(TASKS)}")
    of = TASKS[task]
    speed = min(0.9, 1.8 / workers) if speed is None else speed
    spec = OptimizerSpec.parse(optimizer, lr=of.rate)
    captured = capture(ModelReference.named(of.model))
    data = RaceData(captured, of.data)
    folder = out or Path("races") / f"{task}-{workers}"
    settings = {"task": task, "workers": workers, "speed": speed, "optimizer": spec.settings}
    console = build_console()
    with (
        open_run_folder(folder, "time to loss", settings, resume=resume),
        ClusterSession(
            captured,
            workers,
            method=Method(clip_norm=1.0),
            optimizer=spec,
            speeds=[speed] * workers if speed < 1 else None,
            device="cpu",
        ) as session,
    ):
        options = RaceOptions(epochs=epochs, finals=finals, halving=halving)
        run_and_report(console, session, [], data, folder, options)


def main() -> None:
    """Run the study."""
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(race_task)
    run_program(app, "python -m benchmarks.time_to_loss")


if __name__ == "__main__":
    main()
