"""``drlpp train``: training, with a line for each epoch and some in between."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drlpp.cli.command_line import (
    build_console,
    end_with_report,
    resume_hint_on_interrupt,
    said_if_long,
)
from drlpp.cli.commands import keep_options, training_folder
from drlpp.cli.settings import (
    Data,
    MethodSettings,
    Minibatches,
    ModelOptions,
    OptimizerSettings,
    Resume,
    RunFolder,
    SameModel,
    Seed,
    WorkerSettings,
    read_words,
    same_model,
)
from drlpp.errors import InvalidInput
from drlpp.io.progress_lines import ProgressLines, TimeLeft

if TYPE_CHECKING:
    from drlpp.capturing.capture import CapturedModel
    from drlpp.models.model_reference import ModelReference
    from drlpp.placement.placement_file import PlacementFile
    from drlpp.runtime import EpochReport, ProgressReport

_SECONDS_ON_TERMINAL, _SECONDS_BETWEEN_LINES = 5.0, 30.0
"""The time between lines within an epoch, on a terminal and elsewhere."""


def train(
    placement: Annotated[Path, typer.Argument(help="A placement.json.", metavar="PLACEMENT")],
    model: SameModel = None,
    model_option: ModelOptions = [],  # noqa: B006 - typer copies it
    *,
    data: Data = "digits",
    epochs: Annotated[int, typer.Option(metavar="N", help="Number of epochs.")] = 5,
    minibatches: Minibatches = None,
    method: MethodSettings,
    optimizer: OptimizerSettings,
    lr_schedule: Annotated[
        str | None,
        typer.Option(
            metavar="'NAME KEY=VALUE …'",
            help="Scheduler of torch, 'cosineannealing T_max=10', or package.module:Class; "
            "interval=minibatch counts minibatches instead of epochs, warm_up=100 increases the "
            "rate over as many.",
        ),
    ] = None,
    synchronous_epochs: Annotated[
        int, typer.Option(metavar="N", help="First epochs that flush before every update.")
    ] = 0,
    early_stopping: Annotated[
        str | None,
        typer.Option(
            metavar="'N KEY=VALUE …'",
            help="End after N epochs in a row without a better held-out score (or loss); "
            "min_delta=0.001, monitor=loss or score.",
        ),
    ] = None,
    checkpoint_every: Annotated[
        int,
        typer.Option(metavar="N", help="Minibatches between checkpoints in an epoch; 0: none."),
    ] = 0,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|URL",
            help="Folder that all hosts share, for checkpoints in parts. Default: a file in --out.",
            show_default=False,
        ),
    ] = None,
    workers: WorkerSettings,
    elastic: Annotated[
        str | None,
        typer.Option(
            metavar="MIN:MAX",
            help="Continue with fewer workers when some are lost, with more when they return.",
        ),
    ] = None,
    out: RunFolder = None,
    resume: Resume = False,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Train the model of a placement with it, and evaluate it on held-out data.

    Results go to 'training' next to PLACEMENT. With another number of --workers a placement for
    these is planned first. --resume takes the run's own options where they are not given.
    """
    from drlpp.placement.placement_file import read_placement
    from drlpp.planners.replanning import Elastic
    from drlpp.runtime import EarlyStopping
    from drlpp.specs.learning_rate import LearningRateSchedule

    folder = training_folder(placement, out)
    named = same_model(model, model_option)
    document = read_placement(placement, model=named)
    rates = stopping = None
    if lr_schedule is not None:
        name, given = read_words(lr_schedule, "schedule", "cosineannealing T_max=10")
        rates = LearningRateSchedule.parse(name, **given)
    if early_stopping is not None:
        patience, given = read_words(early_stopping, "early stopping", "3 min_delta=0.001")
        if not patience.lstrip("-").isdecimal():
            raise InvalidInput(f"--early-stopping {early_stopping}: expected a number of epochs")
        stopping = EarlyStopping(int(patience), **given)
    count = workers.workers
    if elastic is not None and count is not None:
        raise InvalidInput("--elastic MIN:MAX says how many workers there are; leave out --workers")
    changed = {
        "method": method.method(document.method),
        "optimizer": optimizer.spec(document.optimizer),
    }
    document = document.model_copy(update=changed)
    given_placement: Path | PlacementFile = placement
    to_train: CapturedModel | ModelReference | str | None = named
    emulated = workers.emulated
    if count not in (None, document.cluster.accelerators):
        given_placement, to_train = placement_for(count, placement, document, seed)
        document, count = given_placement, None
    return train_and_report(
        given_placement,
        document,
        data=data or "digits",
        epochs=epochs,
        minibatches=minibatches,
        model=to_train,
        method=document.method,
        optimizer=document.optimizer,
        learning_rate=rates,
        synchronous_epochs=synchronous_epochs,
        checkpoint_every=checkpoint_every,
        checkpoints=checkpoints,
        early_stopping=stopping,
        workers=count,
        elastic=None if elastic is None else Elastic.parse(elastic),
        speeds=emulated,
        device=workers.device,
        cluster=workers.address,
        timeout_seconds=workers.timeout,
        out=folder,
        resume=resume,
        seed=seed,
    )


def placement_for(
    workers: int, path: Path, document: PlacementFile, seed: int
) -> tuple[PlacementFile, CapturedModel]:
    """Plan for another number of workers than a placement is for, and say what was found.

    Args:
        workers: that number.
        path: of the placement; next to it ``profile.json`` has the costs, and
            ``measurements.jsonl`` what ran.
        document: what it contains, with the method and the optimizer to train with.
        seed: of the model's weights.

    Returns:
        A placement for these, and the captured model.

    Raises:
        InvalidInput: no placement for so many can be run.
    """
    from drlpp.capturing.capture import capture
    from drlpp.planners.replanning import measured_beside, profile_beside, replanned

    with said_if_long(f"planning anew for --workers {workers}"):
        captured = capture(document.model, seed=seed)
        costs = profile_beside(path, captured.graph)
        measured = measured_beside(path, document)
        found = replanned(document, captured.graph, workers, costs, measured)
    build_console().print(
        f"{path} is for {document.cluster.accelerators} workers; for {workers} it is "
        f"{found.configuration} ({found.found_by})",
        soft_wrap=True,
    )
    return found, captured


def train_and_report(
    placement: Path | PlacementFile,
    document: PlacementFile,
    *,
    data: str,
    epochs: int,
    minibatches: int | None,
    **options: Any,
) -> dict[str, Any]:
    """Train with a placement, and print how it goes.

    Args:
        placement: its path, which errors name, or one that was made here.
        document: what it contains, with the method and the optimizer to train with.
        options: as in :class:`drlpp.runtime.PipelineTrainer`.
        data, epochs, minibatches: as in :meth:`drlpp.runtime.PipelineTrainer.fit`.

    Returns:
        what came of it, as plain data.
    """
    from drlpp.runtime import PipelineTrainer, TrainerCallbacks

    console = build_console()

    def on_begin() -> None:
        keep_options(options["out"])
        # The first of the lines: the next is some time away.
        lines(
            f"training {document.model} on {document.cluster.accelerators} workers, "
            f"{document.configuration} ({document.method}), {document.optimizer}"
        )
        if document.method.recomputation_text:
            console.print(document.method.recomputation_text, soft_wrap=True)
        if not options["resume"]:
            time_left.text(0, epochs)

    def on_line(line: str) -> None:
        console.print(line, soft_wrap=True)

    def on_progress(report: ProgressReport) -> None:
        done = report.epoch - 1 + report.done / report.minibatches
        lines(
            f"epoch {report.epoch:>3}  {report.done} of {report.minibatches} minibatches  "
            f"loss {report.loss:.4f}  {report.minibatches_per_second:.1f} minibatches/s  "
            f"left {time_left.text(done, epochs)}"
        )

    def on_epoch(report: EpochReport) -> None:
        held_out = [
            f"  held-out {name} {value:.4f}"
            for name, value in (("loss", report.held_out_loss), ("score", report.score))
            if value is not None
        ]
        on_line(
            f"epoch {report.epoch:>3}  loss {report.loss:.4f}{''.join(held_out)}  "
            f"{report.minibatches_per_second:.1f} minibatches/s  "
            f"left {time_left.text(report.epoch, epochs)}"
        )

    lines = ProgressLines(
        console.print, _SECONDS_ON_TERMINAL if console.is_terminal else _SECONDS_BETWEEN_LINES
    )
    time_left = TimeLeft()
    how = "the same command with --resume continues training where it was last saved"
    with resume_hint_on_interrupt(how):
        trainer = PipelineTrainer(
            placement,
            observer=TrainerCallbacks(on_begin, on_progress, on_epoch, on_line, on_line),
            **options,
        )
        result = trainer.fit(data, epochs=epochs, minibatches=minibatches)
    if result.module_score is not None:
        console.print(
            f"the weights loaded into {document.model.name}'s own module: "
            f"held-out score {result.module_score:.4f}"
        )
    console.print(f"state_dict: {result.folder / 'model.pt'}")
    end_with_report(console, result.folder)
    return {
        "folder": str(result.folder),
        "state_dict": str(result.folder / "model.pt"),
        "epochs": [asdict(epoch) for epoch in result.epochs],
        "module_score": result.module_score,
    }
