"""What races leave: a placement file, and the winner's training, to be continued."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import torch

from drlpp.io.documents import read_document, write_document
from drlpp.io.run_folder import RECORD_NAME, RunRecord
from drlpp.placement.measurement import median_measurement
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.contenders import Contender
from drlpp.racing.to_loss import Course
from drlpp.racing.training_race import RaceEnd, Training
from drlpp.runtime.ipc.tensor_file import write_state_dict
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.training.checkpoints import CHECKPOINT_NAME
from drlpp.runtime.training.training_plan import TrainingPlan, training_settings
from drlpp.specs.cluster import Cluster
from drlpp.specs.optimizer_spec import OptimizerSpec


def export(
    session: ClusterSession,
    contender: Contender,
    cluster: Cluster,
    folder: Path,
    optimizer: OptimizerSpec | None = None,
) -> Path:
    """Write a contender's ``placement.json``, with its median measurement; return its path.

    The contender has a placement: plain PyTorch needs no file. Without ``optimizer`` it is the
    session's. The cluster may be a part of the session's, by whose numbers the placement is.
    """
    assert contender.candidate is not None
    measured = contender.measurements
    document = PlacementFile.create(
        session.captured.reference,
        session.graph,
        contender.candidate.placement,
        cluster,
        method=contender.candidate.method,
        optimizer=optimizer or session.optimizer,
        found_by=contender.found_by,
        measurement=median_measurement(measured) if measured else None,
    )
    return write_document(folder / "placement.json", document)


def keep_winner(course: Course, end: RaceEnd, cluster: Cluster) -> tuple[Path, str]:
    """Copy the winner's training into the race's folder; return where, and how to go on.

    A pipeline's is a folder of ``drlpp train``, with the placement, the learning rate and the
    checkpoint. Plain PyTorch's has a state_dict of the model, and one of the optimizer (a list
    where parameters are in groups). What is there already is left as it is.

    Args:
        course, end: the race, which a candidate has won.
        cluster: of its accelerators.
    """
    assert end.winner is not None
    rate = end.rates[end.winner]
    assert rate is not None
    training, candidate = Training(end.winner, rate), course.race.candidates[end.winner]
    session, data, seed = course.session, course.data.first, course.session.seed
    known, optimizer = course.folder_of(training), course.optimizer_of(training)
    folder = course.folder / f"winner-{known.name}"
    # Otherwise it may have been trained on since.
    if not folder.exists():
        # Whole or not there, also after a kill.
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        if candidate.placement is None:
            saved = torch.load(known / "plain.pt", weights_only=True, map_location="cpu")
            torch.save(saved, partial / "checkpoint.pt")
            write_state_dict(partial / "model.pt", saved["model"])
        else:
            shutil.copyfile(known / CHECKPOINT_NAME, partial / CHECKPOINT_NAME)
            path = export(session, candidate, cluster, partial, optimizer)
            document = read_document(path, PlacementFile)
            settings = training_settings(document, optimizer, data, TrainingPlan(epochs=1), seed)
            record = RunRecord(command="drlpp train", settings=settings)
            write_document(partial / RECORD_NAME, record)
        partial.rename(folder)
    if candidate.placement is None:
        return folder, (
            f"its weights so far: {folder / 'model.pt'}; with the optimizer's state: "
            f"{folder / 'checkpoint.pt'} (threads: {candidate.threads or 'any'}, learning rate "
            f"{rate:.3g})"
        )
    epochs = course.race.curves[training].minibatches // data.minibatches + 1
    path = folder / "placement.json"
    parts = shlex.join([str(path), "--data", data.name, "--out", str(folder), "--resume"])
    return folder, (
        f"continue its training: drlpp train {parts}{session.captured.reference.naming_option}"
        f"{optimizer.naming_option} --epochs {epochs} --device {session.device.value}"
        f"{f' --seed {seed}' if seed else ''}"
    )
