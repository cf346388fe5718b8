"""What a run's folder holds, read for its report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from drlpp.costs.profile import Profile
from drlpp.envs.measuring.search_file import FILE_NAME as SEARCH
from drlpp.envs.measuring.search_file import SearchFile
from drlpp.errors import InvalidFile, InvalidPlacement
from drlpp.io.documents import DocumentType, read_document
from drlpp.io.run_folder import CHANGES_NAME, RunRecord
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Outcome
from drlpp.placement.measurements_file import read_measurements
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.comparison import Comparison
from drlpp.racing.microbatches import FILE_NAME as MICROBATCHES
from drlpp.racing.microbatches import MicrobatchChoice
from drlpp.racing.training_race import TrainingRace
from drlpp.runtime.training.training_reports import WorkersChanged, read_changes
from drlpp.specs.cluster import Cluster

_TRAIN_LOSS, _HELD_OUT_LOSS = "train/loss", "eval/loss"
_SAMPLES, _MINIBATCHES = "time/samples_per_second", "time/minibatches_per_second"


@dataclass(frozen=True)
class Scalar:
    """A number of a training's log.

    Attributes:
        step: minibatch or epoch.
        seconds: since the training's first event.
        value: of the loss.
    """

    step: int
    seconds: float
    value: float


@dataclass(frozen=True)
class RunFiles:
    """The files of a run; None where there is none.

    Attributes:
        folder: of the run.
        record: command and settings.
        measured: every run of every candidate, in the order in which they were made.
        train_losses: of every minibatch of a training.
        held_out_losses: of every epoch.
        batch_size: samples in a minibatch of the training; None if it has not told.
        changes: what became of the workers of an elastic training.
        unread: files that could not be read or do not fit the others, and why.
    """

    folder: Path
    record: RunRecord
    comparison: Comparison | None = None
    race: TrainingRace | None = None
    placement: PlacementFile | None = None
    profile: Profile | None = None
    cluster: Cluster | None = None
    microbatches: MicrobatchChoice | None = None
    search: SearchFile | None = None
    measured: tuple[tuple[Candidate, Outcome], ...] = ()
    train_losses: tuple[Scalar, ...] = ()
    held_out_losses: tuple[Scalar, ...] = ()
    batch_size: int | None = None
    changes: tuple[WorkersChanged, ...] = ()
    unread: dict[str, str] = field(default_factory=dict)


def read_run(folder: Path) -> RunFiles:
    """Read everything that a run has left in its folder.

    Raises:
        InvalidFile: it is no run's folder.
    """
    if not (folder / "run.json").is_file():
        raise InvalidFile(
            f"{folder}: has no run.json; expected the folder of a run of drlpp learn, train or race"
        )
    unread: dict[str, str] = {}

    def read(kind: type[DocumentType], *names: str) -> DocumentType | None:
        for name in names:
            path = folder / name
            if path.is_file():
                try:
                    return read_document(path, kind)
                except InvalidFile as error:
                    unread[name] = str(error)
        return None

    record = read_document(folder / "run.json", RunRecord)
    scalars = _scalars(folder)
    files = RunFiles(
        folder=folder,
        record=record,
        comparison=read(Comparison, "comparison.json"),
        race=read(TrainingRace, "race.json", "race/race.json"),
        placement=read(PlacementFile, "placement.json", "winner/placement.json"),
        profile=read(Profile, "profile.json"),
        cluster=read(Cluster, "cluster.yaml"),
        microbatches=read(MicrobatchChoice, MICROBATCHES),
        search=read(SearchFile, SEARCH),
        measured=tuple(_measured(folder / "measurements.jsonl", unread)),
        train_losses=scalars.get(_TRAIN_LOSS, ()),
        held_out_losses=scalars.get(_HELD_OUT_LOSS, ()),
        batch_size=_batch_size(scalars),
        changes=_changes(folder / CHANGES_NAME, record, unread),
        unread=unread,
    )
    return _fitting(files)


def _fitting(files: RunFiles) -> RunFiles:
    """Return the files without those that do not fit the others, which ``unread`` then names."""
    contenders = () if files.comparison is None else files.comparison.contenders
    placements = {candidate.placement for candidate, _ in files.measured}
    placements |= {c.placement for c in contenders if c.placement is not None}
    accelerators = {number for placement in placements for number in placement.accelerators}
    if files.placement is not None:
        accelerators |= {a for stage in files.placement.stages for a in stage.accelerators}
    used = 1 + max(accelerators, default=0)
    if files.cluster is not None and files.cluster.accelerators < used:
        files.unread["cluster.yaml"] = (
            f"cluster.yaml: lists {files.cluster.accelerators} of the {used} accelerators that "
            "placements of this run use; put the cluster there that the run began with"
        )
        files = replace(files, cluster=None)
    if files.profile is None:
        return files
    try:
        for placement in placements:
            placement.validate_for(files.profile.graph, used)
    except InvalidPlacement as error:
        files.unread["profile.json"] = (
            f"profile.json: a placement of this run does not fit its graph ({error}); put the "
            "profile there that the run began with"
        )
        return replace(files, profile=None)
    try:
        if files.placement is not None:
            files.placement.resolve(files.profile.graph)
    except InvalidPlacement as error:
        files.unread["placement.json"] = (
            f"placement.json: does not fit the graph of profile.json ({error})"
        )
        return replace(files, placement=None)
    return files


def _measured(path: Path, unread: dict[str, str]) -> Iterator[tuple[Candidate, Outcome]]:
    if not path.is_file():
        return
    try:
        header, entries = read_measurements(path)
        for entry in entries:
            yield entry.candidate(header.method), entry.outcome
    except InvalidFile as error:
        unread[path.name] = str(error)


def _changes(path: Path, record: RunRecord, unread: dict[str, str]) -> tuple[WorkersChanged, ...]:
    if record.command != "drlpp train":
        # Of older runs that learned, which told of hosts here.
        return ()
    try:
        return read_changes(path)
    except InvalidFile as error:
        unread[path.name] = str(error)
        return ()


def _batch_size(scalars: Mapping[str, tuple[Scalar, ...]]) -> int | None:
    """Return the samples of a minibatch, which a training tells by its speed in both."""
    if _SAMPLES not in scalars or _MINIBATCHES not in scalars:
        return None
    samples, minibatches = scalars[_SAMPLES][-1].value, scalars[_MINIBATCHES][-1].value
    size = samples / minibatches if minibatches else math.nan
    return round(size) if math.isfinite(size) else None


def _scalars(folder: Path) -> dict[str, tuple[Scalar, ...]]:
    """Return losses and speeds that a training wrote for TensorBoard."""
    if not any(folder.glob("events.out.tfevents.*")):
        return {}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    found = {
        name: events.Scalars(name)
        for name in (_TRAIN_LOSS, _HELD_OUT_LOSS, _SAMPLES, _MINIBATCHES)
        if name in events.Tags()["scalars"]
    }
    begin = min((scalars[0].wall_time for scalars in found.values()), default=0.0)
    return {
        name: tuple(Scalar(one.step, one.wall_time - begin, one.value) for one in scalars)
        for name, scalars in found.items()
    }
