"""What a run's folder holds, read for its report."""

from __future__ import annotations

from pathlib import Path

from drlpp.costs.profile import Profile
from drlpp.errors import InvalidFile
from drlpp.io.documents import DocumentType, read_document
from drlpp.io.run_folder import RECORD_NAME, RunRecord
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Outcome
from drlpp.placement.measurements_file import read_measurements
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.comparison import Comparison
from drlpp.racing.training_race import TrainingRace
from drlpp.specs.cluster import Cluster


class RunFiles:
    """The files of a run; None where there is none.

    Attributes:
        folder: of the run.
        record: command and settings.
        measured: every run of every candidate, in the order in which they were made.
        found_by: who came by each candidate, where the agent said it.

    Raises:
        InvalidFile: it is not the folder of a run that learned or raced, or a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / RECORD_NAME).is_file():
            raise InvalidFile(
                f"{folder}: has no run.json; expected the folder of a run of drlpp learn or race"
            )
        self.folder, self.record = folder, read_document(folder / RECORD_NAME, RunRecord)
        if self.record.command == "drlpp train":
            raise InvalidFile(f"{folder}: is a training; tensorboard --logdir {folder} shows it")
        self.comparison = self._read(Comparison, "comparison.json")
        self.race = self._read(TrainingRace, "race.json", "race/race.json")
        self.placement = self._read(PlacementFile, "placement.json")
        self.profile = self._read(Profile, "profile.json")
        self.cluster = self._read(Cluster, "cluster.yaml")
        self.measured: list[tuple[Candidate, Outcome]] = []
        self.found_by: dict[Candidate, str] = {}
        if (path := folder / "measurements.jsonl").is_file():
            header, entries = read_measurements(path)
            for one in entries:
                self.measured.append((one.candidate(header.method), one.outcome))
                if one.found_by is not None:
                    self.found_by[one.candidate(header.method)] = one.found_by

    def _read(self, kind: type[DocumentType], *names: str) -> DocumentType | None:
        paths = (self.folder / name for name in names)
        return next((read_document(path, kind) for path in paths if path.is_file()), None)
