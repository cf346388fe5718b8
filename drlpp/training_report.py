"""``drlpp train``: training with a progress bar and a table of epochs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from drlpp.command_line import build_console
from drlpp.optimizer_spec import OptimizerSpec
from drlpp.placement_file import read_placement
from drlpp.runtime import EpochReport, Observer, train


def train_and_report(
    path: Path,
    *,
    data: str,
    epochs: int,
    optimizer_name: str | None,
    optimizer_options: Mapping[str, object],
    workers: int | None,
    out: Path,
    resume: bool,
    seed: int,
) -> None:
    """Train and print how it goes.

    Without a name of another optimizer, the options are for the one of the placement.
    """
    console = build_console()
    document = read_placement(path)
    optimizer = document.optimizer
    if optimizer_name is not None:
        optimizer = OptimizerSpec.parse(optimizer_name, **optimizer_options)
    elif optimizer_options:
        options = {**optimizer.options, **optimizer_options}
        optimizer = OptimizerSpec.parse(optimizer.name, **options)
    banner = (
        f"training {document.model} on {document.cluster.accelerators} workers, "
        f"{document.configuration} ({document.method}), {optimizer}"
    )

    def on_begin() -> None:
        console.print(banner, markup=False)
        bar_shown.enter_context(progress)

    progress = Progress(
        TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("minibatches"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )

    def on_progress(epoch: int, done: int, total: int) -> None:
        progress.update(bar, epoch=epoch, completed=done, total=total)

    def on_epoch(report: EpochReport) -> None:
        score = "" if report.score is None else f"  held-out score {report.score:.4f}"
        console.print(
            f"epoch {report.epoch:>3}  loss {report.loss:.4f}{score}  "
            f"{report.minibatches_per_second:.1f} minibatches/s"
        )

    bar = progress.add_task("", epoch=1, epochs=epochs, total=None)
    # The bar begins when training does, so that nothing precedes an error in what was given.
    with ExitStack() as bar_shown:
        result = train(
            path,
            data=data,
            epochs=epochs,
            optimizer=optimizer,
            workers=workers,
            out=out,
            resume=resume,
            seed=seed,
            observer=Observer(on_begin, on_progress, on_epoch),
        )
    if result.module_score is not None:
        console.print(
            f"the weights loaded into {document.model.name}'s own module: "
            f"held-out score {result.module_score:.4f}"
        )
    console.print(f"state_dict: {result.folder / 'model.pt'}")
