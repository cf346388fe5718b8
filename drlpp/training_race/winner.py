"""What a race leaves: the winner's training, to be continued."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import torch

from drlpp.errors import InvalidInput
from drlpp.io.documents import write_document
from drlpp.io.run_folder import RECORD_NAME, RunRecord
from drlpp.placement.placement_file import PlacementFile
from drlpp.runtime.ipc.tensor_file import write_state_dict
from drlpp.runtime.training.training_plan import TrainingPlan, training_settings
from drlpp.specs.cluster import Cluster
from drlpp.training_race.course import Course
from drlpp.training_race.halving import Training
from drlpp.training_race.judging import RaceEnd


def keep_winner(course: Course, end: RaceEnd, cluster: Cluster) -> tuple[Path, str]:
    """Copy the winner's training into the race's folder; return where, and how to go on.

    A pipeline's is a folder of ``drlpp train``, with the placement, the learning rate and the
    checkpoint. Plain PyTorch's has a state_dict of the model, and one of the optimizer (a list
    where parameters are in groups). What is
    there already is left as it is.

    Args:
        course, end: the race.
        cluster: of its accelerators.

    Raises:
        InvalidInput: no candidate has won.
    """
    if end.winner is None:
        raise InvalidInput("no candidate has won, so there is nothing to continue")
    rate = end.result.rates[end.winner]
    assert rate is not None
    training = Training(end.winner, rate)
    known = course.folder_of(training)
    folder = course.folder / f"winner-{known.name}"
    # Whole or not there, also after a kill.
    partial = folder.with_name(f"{folder.name}.partial")
    if not folder.exists():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    candidate = course.race.candidates[end.winner]
    if candidate.candidate is None:
        if not folder.exists():
            saved = torch.load(known / "plain.pt", weights_only=True, map_location="cpu")
            torch.save(saved, partial / "checkpoint.pt")
            write_state_dict(partial / "model.pt", saved["model"])
            partial.rename(folder)
        return folder, (
            f"its weights so far: {folder / 'model.pt'}; with the optimizer's state: "
            f"{folder / 'checkpoint.pt'} (threads: {candidate.threads or 'any'}, learning rate "
            f"{rate:.3g})"
        )
    path = folder / "placement.json"
    data, seed = course.data.first, course.session.seed
    epochs = course.race.curves[training].minibatches // data.minibatches + 1
    session = course.session
    optimizer = course.optimizer_of(training)
    reference = session.captured.reference
    parts = shlex.join([str(path), "--data", data.name, "--out", str(folder), "--resume"])
    command = (
        f"continue its training: drlpp train {parts}{reference.naming_option}"
        f"{optimizer.naming_option} --epochs {epochs} --device {session.device.value}"
        f"{f' --seed {seed}' if seed else ''}"
    )
    if folder.exists():
        # It may have been trained on since.
        return folder, command
    shutil.copyfile(known / "checkpoint.safetensors", partial / "checkpoint.safetensors")
    evaluation = known / "evaluation.json"
    if evaluation.exists():
        shutil.copyfile(evaluation, partial / evaluation.name)
    document = PlacementFile.of(
        session.plan(candidate.candidate),
        reference,
        session.graph,
        cluster,
        optimizer=optimizer,
        found_by=candidate.found_by,
    )
    write_document(partial / path.name, document)
    settings = training_settings(document, optimizer, data, TrainingPlan(epochs=1), seed)
    write_document(partial / RECORD_NAME, RunRecord(command="drlpp train", settings=settings))
    partial.rename(folder)
    return folder, command
