"""``drlpp train``: training, with a line for each epoch and some in between."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.cli.arguments import Train
from drlpp.cli.command_line import console, resumable
from drlpp.cli.commands import keep_options
from drlpp.cli.settings import read_options, same_model
from drlpp.errors import InvalidInput
from drlpp.io.progress_lines import ProgressLines, TimeLeft, shown
from drlpp.placement.placement_file import PlacementFile, read_placement
from drlpp.planners.replanning import Elastic, Replanner, profile_beside
from drlpp.runtime import (
    EarlyStopping,
    EpochReport,
    PipelineTrainer,
    ProgressReport,
    TrainerCallbacks,
)
from drlpp.specs.learning_rate import LearningRateSchedule

_SECONDS_ON_TERMINAL, _SECONDS_BETWEEN_LINES = 5.0, 30.0
"""The time between lines within an epoch, on a terminal and elsewhere."""


def train(given: Train) -> dict[str, Any]:
    """Run ``drlpp train``."""
    placement, workers, run, epochs = given.placement, given.workers, given.run, given.epochs
    folder = run.out or placement.parent / "training"
    named = same_model(given.model, given.model_option)
    document = read_placement(placement, model=named)
    rates, patience = _schedule(given.lr_schedule), given.early_stopping
    if given.elastic is not None and workers.workers is not None:
        raise InvalidInput("--elastic MIN:MAX says how many workers there are; leave out --workers")
    changed = {
        "method": given.method.method(document.method),
        "optimizer": given.optimizer.spec(document.optimizer),
    }
    document = document.model_copy(update=changed)
    emulated = workers.emulated
    trained: dict[str, Any] = {"placement": placement, "model": named}
    if workers.workers not in (None, document.cluster.accelerators):
        document, captured = placement_for(workers.workers or 0, placement, document, run.seed)
        trained = {"placement": document, "model": captured}
    with resumable("training", measures=False):
        trainer = PipelineTrainer(
            **trained,
            method=document.method,
            optimizer=document.optimizer,
            learning_rate=rates,
            synchronous_epochs=given.synchronous_epochs,
            checkpoint_every=given.checkpoint_every,
            checkpoints=given.checkpoints,
            early_stopping=None if patience is None else EarlyStopping(patience),
            elastic=None if given.elastic is None else Elastic.parse(given.elastic),
            speeds=emulated,
            links=workers.links,
            device=workers.device,
            cluster=workers.address,
            timeout_seconds=workers.timeout,
            out=folder,
            resume=run.resume,
            seed=run.seed,
            observer=printed(document, epochs, lambda: keep_options(folder), resumed=run.resume),
        )
        result = trainer.fit(given.data or "digits", epochs=epochs, minibatches=given.minibatches)
    console.print(f"state_dict: {result.folder / 'model.pt'}")
    return {"folder": str(result.folder), "epochs": [asdict(epoch) for epoch in result.epochs]}


def _schedule(text: str | None) -> LearningRateSchedule | None:
    if text is None:
        return None
    name, *options = shlex.split(text) or [""]
    if not name or "=" in name:
        raise InvalidInput(
            f"schedule {text!r}: expected NAME KEY=VALUE …, like cosineannealing T_max=10"
        )
    return LearningRateSchedule.parse(name, **read_options(options, "schedule", "T_max=10"))


def placement_for(
    workers: int, path: Path, document: PlacementFile, seed: int
) -> tuple[PlacementFile, CapturedModel]:
    """Plan for another number of workers than a placement is for, and say what was found.

    Args:
        workers: that number.
        path: of the placement; next to it ``profile.json`` has the costs.
        document: what it contains, with the method and the optimizer to train with.
        seed: of the model's weights.

    Returns:
        A placement for these, and the captured model.
    """
    with shown(console, f"planning anew for --workers {workers}"):
        captured = capture(document.model, seed=seed)
        costs = profile_beside(path, captured.graph.fingerprint)
        found = Replanner(document, captured.graph, costs).file(workers)
    console.print(
        f"{path} is for {document.cluster.accelerators} workers; for {workers} it is "
        f"{found.configuration} ({found.found_by})"
    )
    return found, captured


def printed(
    document: PlacementFile, epochs: int, begin: Callable[[], None], *, resumed: bool
) -> TrainerCallbacks:
    """Return an observer that prints how a training goes.

    Args:
        document: what is trained.
        epochs: in all.
        begin: is called when training begins.
        resumed: whether some are done already, which nobody has timed.
    """

    def on_begin() -> None:
        begin()
        # The first of the lines: the next is some time away.
        lines(
            f"training {document.model} on {document.cluster.accelerators} workers, "
            f"{document.configuration} ({document.method}), {document.optimizer}"
        )
        if document.method.recomputation_text:
            console.print(document.method.recomputation_text)
        if not resumed:
            time_left.text(0, epochs)

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
        console.print(
            f"epoch {report.epoch:>3}  loss {report.loss:.4f}{''.join(held_out)}  "
            f"{report.minibatches_per_second:.1f} minibatches/s  "
            f"left {time_left.text(report.epoch, epochs)}"
        )

    between = _SECONDS_ON_TERMINAL if console.is_terminal else _SECONDS_BETWEEN_LINES
    lines, time_left = ProgressLines(console.print, between), TimeLeft()
    return TrainerCallbacks(
        on_begin=on_begin,
        on_progress=on_progress,
        on_epoch=on_epoch,
        on_note=console.print,
        on_staleness=console.print,
    )
