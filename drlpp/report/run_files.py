"""What a run's folder holds, read for its report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from drlpp.costs.profile import Profile
from drlpp.envs.measuring.search_file import FILE_NAME as SEARCH
from drlpp.envs.measuring.search_file import SearchFile
from drlpp.errors import InvalidFile
from drlpp.io.documents import DocumentType, read_document
from drlpp.io.run_folder import RunRecord
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Outcome
from drlpp.placement.measurements_file import read_measurements
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.comparison import Comparison
from drlpp.racing.microbatches import FILE_NAME as MICROBATCHES
from drlpp.racing.microbatches import MicrobatchChoice
from drlpp.racing.training_race import TrainingRace
from drlpp.specs.cluster import Cluster


@dataclass(frozen=True)
class RunFiles:
    """The files of a run; None where there is none.

    Attributes:
        folder: of the run.
        record: command and settings.
        measured: every run of every candidate, in the order in which they were made.
        unread: files that could not be read, and why.
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
    unread: dict[str, str] = field(default_factory=dict)


def read_run(folder: Path) -> RunFiles:
    """Read everything that a run has left in its folder.

    Raises:
        InvalidFile: it is not the folder of a run that learned or raced.
    """
    if not (folder / "run.json").is_file():
        raise InvalidFile(
            f"{folder}: has no run.json; expected the folder of a run of drlpp learn or race"
        )
    record = read_document(folder / "run.json", RunRecord)
    if record.command == "drlpp train":
        raise InvalidFile(f"{folder}: is a training; tensorboard --logdir {folder} shows it")
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

    return RunFiles(
        folder=folder,
        record=record,
        comparison=read(Comparison, "comparison.json"),
        race=read(TrainingRace, "race.json", "race/race.json"),
        placement=read(PlacementFile, "placement.json"),
        profile=read(Profile, "profile.json"),
        cluster=read(Cluster, "cluster.yaml"),
        microbatches=read(MicrobatchChoice, MICROBATCHES),
        search=read(SearchFile, SEARCH),
        measured=tuple(_measured(folder / "measurements.jsonl", unread)),
        unread=unread,
    )


def _measured(path: Path, unread: dict[str, str]) -> Iterator[tuple[Candidate, Outcome]]:
    if not path.is_file():
        return
    try:
        header, entries = read_measurements(path)
        for entry in entries:
            yield entry.candidate(header.method), entry.outcome
    except InvalidFile as error:
        unread[path.name] = str(error)
