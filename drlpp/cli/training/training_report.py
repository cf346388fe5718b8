"""``drlpp train``: training with a progress bar, or lines, and a table of epochs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from drlpp.cli.command_line import build_console, resume_hint_on_interrupt
from drlpp.cli.common_options import keep_options
from drlpp.cli.show_command import end_with_report
from drlpp.io.progress_lines import ProgressLines, TimeLeft
from drlpp.placement.placement_file import PlacementFile
from drlpp.runtime import EpochReport, PipelineTrainer, ProgressReport, TrainerCallbacks
from drlpp.runtime.training.training_reports import OTHER_PLACEMENT
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

_SECONDS_BETWEEN_LINES = 30.0
"""The time between lines within an epoch, without a terminal; each epoch ends with a line."""


def train_and_report(
    placement: Path | PlacementFile,
    document: PlacementFile,
    *,
    method: Method,
    optimizer: OptimizerSpec,
    data: str,
    epochs: int,
    minibatches: int | None,
    **options: Any,
) -> dict[str, Any]:
    """Train with a placement, and print how it goes.

    Args:
        placement: its path, which errors name, or one that was made here.
        document: what it contains.
        method, optimizer, options: as in :class:`drlpp.runtime.PipelineTrainer`.
        data, epochs, minibatches: as in :meth:`drlpp.runtime.PipelineTrainer.fit`.

    Returns:
        what came of it, as plain data.
    """
    console = build_console()
    banner = (
        f"training {document.model} on {document.cluster.accelerators} workers, "
        f"{document.configuration} ({method}), {optimizer}"
    )

    def on_begin() -> None:
        keep_options(options["out"])
        # The first of the lines: the next is some time away.
        lines(banner)
        if method.recomputation_text:
            console.print(method.recomputation_text, soft_wrap=True)
        if not options["resume"]:
            time_left.text(0, epochs)
        if console.is_terminal:
            bar_shown.enter_context(progress)

    progress = Progress(
        TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("minibatches"),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )

    def on_other_placement() -> None:
        console.print(OTHER_PLACEMENT)

    def on_line(line: str) -> None:
        console.print(line, soft_wrap=True)

    def on_progress(report: ProgressReport) -> None:
        state = f"loss {report.loss:.4f}  {report.minibatches_per_second:.1f} minibatches/s"
        if not console.is_terminal:
            left = time_left.text(report.epoch - 1 + report.done / report.minibatches, epochs)
            lines(
                f"epoch {report.epoch:>3}  {report.done} of {report.minibatches} minibatches  "
                f"{state}  left {left}"
            )
        progress.update(
            bar,
            epoch=report.epoch,
            completed=report.done,
            total=report.minibatches,
            state=state,
        )

    def on_epoch(report: EpochReport) -> None:
        held_out = [
            f"  held-out {name} {value:.4f}"
            for name, value in (("loss", report.held_out_loss), ("score", report.score))
            if value is not None
        ]
        console.print(
            f"epoch {report.epoch:>3}  loss {report.loss:.4f}{''.join(held_out)}  "
            f"{report.minibatches_per_second:.1f} minibatches/s"
            + ("" if console.is_terminal else f"  left {time_left.text(report.epoch, epochs)}"),
            soft_wrap=True,
        )

    lines = ProgressLines(console.print, _SECONDS_BETWEEN_LINES)
    time_left = TimeLeft()
    bar = progress.add_task("", epoch=1, epochs=epochs, total=None, state="")
    # The bar begins when training does, so that nothing precedes an error in what was given.
    how = "the same command with --resume continues training where it was last saved"
    with resume_hint_on_interrupt(how), ExitStack() as bar_shown:
        trainer = PipelineTrainer(
            placement,
            method=method,
            optimizer=optimizer,
            observer=TrainerCallbacks(
                on_begin, on_progress, on_epoch, on_other_placement, on_line, on_line
            ),
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
