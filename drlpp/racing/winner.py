"""What races leave: a placement file, and the winner's training, to be continued."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import torch

from drlpp.errors import InvalidInput
from drlpp.io.documents import write_document
from drlpp.io.run_folder import RECORD_NAME, RunRecord
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.contenders import Contender
from drlpp.racing.to_loss import Course
from drlpp.racing.training_race import RaceEnd, Training
from drlpp.runtime.ipc.tensor_file import write_state_dict
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.training.checkpoints.checkpoint_store import CHECKPOINT_NAME
from drlpp.runtime.training.training_plan import TrainingPlan, training_settings
from drlpp.specs.cluster import Cluster
from drlpp.specs.optimizer_spec import OptimizerSpec


def placement_file(
    session: ClusterSession,
    contender: Contender,
    cluster: Cluster,
    optimizer: OptimizerSpec | None = None,
) -> PlacementFile:
    """Return the file of a contender's placement, with its median measurement.

    The contender has a placement: plain PyTorch needs no file. Without ``optimizer`` it is the
    session's. The cluster may be a part of the session's, by whose numbers the placement is.
    """
    assert contender.candidate is not None
    return PlacementFile.create(
        session.captured.reference,
        session.graph,
        contender.candidate.placement,
        cluster,
        method=contender.candidate.method,
        optimizer=optimizer or session.optimizer,
        found_by=contender.found_by,
        measurement=contender.median_measurement,
    )


def export(
    session: ClusterSession,
    contender: Contender,
    cluster: Cluster,
    folder: Path,
    optimizer: OptimizerSpec | None = None,
) -> Path:
    """Write ``placement.json``, a :func:`placement_file`; returns its path."""
    document = placement_file(session, contender, cluster, optimizer)
    return write_document(folder / "placement.json", document)


def keep_winner(course: Course, end: RaceEnd, cluster: Cluster) -> tuple[Path, str]:
    """Copy the winner's training into the race's folder; return where, and how to go on.

    A pipeline's is a folder of ``drlpp train``, with the placement, the learning rate and the
    checkpoint. Plain PyTorch's has a state_dict of the model, and one of the optimizer (a list
    where parameters are in groups). What is there already is left as it is.

    Args:
        course, end: the race.
        cluster: of its accelerators.

    Raises:
        InvalidInput: no candidate has won.
    """
    if end.winner is None:
        raise InvalidInput("no candidate has won, so there is nothing to continue")
    rate = end.rates[end.winner]
    assert rate is not None
    training = Training(end.winner, rate)
    known = course.folder_of(training)
    folder = course.folder / f"winner-{known.name}"
    # Whole or not there, also after a kill.
    partial = folder.with_name(f"{folder.name}.partial")
    begins = not folder.exists()
    if begins:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    candidate = course.race.candidates[end.winner]
    if candidate.placement is None:
        if begins:
            saved = torch.load(known / "plain.pt", weights_only=True, map_location="cpu")
            torch.save(saved, partial / "checkpoint.pt")
            write_state_dict(partial / "model.pt", saved["model"])
            partial.rename(folder)
        return folder, (
            f"its weights so far: {folder / 'model.pt'}; with the optimizer's state: "
            f"{folder / 'checkpoint.pt'} (threads: {candidate.threads or 'any'}, learning rate "
            f"{rate:.3g})"
        )
    session, data, seed = course.session, course.data.first, course.session.seed
    epochs = course.race.curves[training].minibatches // data.minibatches + 1
    optimizer = course.optimizer_of(training)
    path = folder / "placement.json"
    parts = shlex.join([str(path), "--data", data.name, "--out", str(folder), "--resume"])
    command = (
        f"continue its training: drlpp train {parts}{session.captured.reference.naming_option}"
        f"{optimizer.naming_option} --epochs {epochs} --device {session.device.value}"
        f"{f' --seed {seed}' if seed else ''}"
    )
    if begins:
        # Otherwise it may have been trained on since.
        shutil.copyfile(known / CHECKPOINT_NAME, partial / CHECKPOINT_NAME)
        document = placement_file(session, candidate, cluster, optimizer)
        write_document(partial / path.name, document)
        settings = training_settings(document, optimizer, data, TrainingPlan(epochs=1), seed)
        write_document(partial / RECORD_NAME, RunRecord(command="drlpp train", settings=settings))
        partial.rename(folder)
    return folder, command
