"""What a race leaves: the winner's training, to be continued."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from drlpp.errors import InvalidInput
from drlpp.io.documents import write_document
from drlpp.io.run_folder import RECORD_NAME, RunRecord
from drlpp.io.trust_memory import remember_trust
from drlpp.placement.placement_file import PlacementFile
from drlpp.runtime.ipc.tensor_file import write_state_dict
from drlpp.runtime.training.training import training_settings
from drlpp.runtime.training.training_plan import TrainingPlan
from drlpp.specs.cluster import Cluster
from drlpp.training_race.course import Course
from drlpp.training_race.halving import Training
from drlpp.training_race.judging import RaceEnd

FOLDER_NAME = "winner"


def keep_winner(course: Course, end: RaceEnd, cluster: Cluster) -> tuple[Path, str]:
    """Copy the winner's training to ``winner`` in the race's folder; return it, and how to go on.

    A pipeline's is a folder of ``drlpp train``, with the placement, the learning rate and the
    checkpoint. Plain PyTorch's is a state_dict.

    Raises:
        InvalidInput: nobody has won.
    """
    if end.winner is None:
        raise InvalidInput("nobody has won, so there is nothing to continue")
    rate = end.result.rates[end.winner]
    assert rate is not None
    training = Training(end.winner, rate)
    known, folder = course.folder_of(training), course.folder / FOLDER_NAME
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    candidate = course.race.candidates[end.winner]
    if candidate.candidate is None:
        saved = torch.load(known / "plain.pt", weights_only=True, map_location="cpu")
        write_state_dict(folder / "model.pt", saved["model"])
        return folder, (
            f"its weights so far: {folder / 'model.pt'} (threads: {candidate.threads or 'any'}, "
            f"learning rate {rate:.3g})"
        )
    shutil.copyfile(known / "checkpoint.safetensors", folder / "checkpoint.safetensors")
    evaluation = known / "evaluation.json"
    if evaluation.exists():
        shutil.copyfile(evaluation, folder / evaluation.name)
    session = course.session
    optimizer = course.optimizer_of(training)
    document = PlacementFile.of(
        session.plan(candidate.candidate),
        session.captured.reference,
        session.graph,
        cluster,
        optimizer=optimizer,
        found_by=candidate.found_by,
    )
    path = write_document(folder / "placement.json", document)
    data = course.source(0)
    settings = training_settings(document, optimizer, data, TrainingPlan(epochs=1), session.seed)
    write_document(folder / RECORD_NAME, RunRecord(command="drlpp train", settings=settings))
    # Whoever ran the race has named what is imported.
    remember_trust(folder, [document.model, optimizer])
    return folder, (
        f"continue its training: drlpp train {path} --data {data.name} --out {folder} --resume "
        f"--epochs {course.race.curves[training].last.minibatches // data.minibatches + 1}"
    )
