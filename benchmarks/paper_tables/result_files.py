"""The files of results of all tables."""

from __future__ import annotations

from pathlib import Path

from benchmarks.cells import read_results_of
from benchmarks.paper_tables.drl_pp import Case
from benchmarks.paper_tables.learning import Learned
from benchmarks.paper_tables.pipedream import Timing, Training
from benchmarks.paper_tables.pipeoptim import StageMemory, Throughput

STUDY = "benchmarks.paper_tables"
RESULTS = Path(__file__).with_name("results")


class Results:
    """What a folder holds; every property reads its file.

    Args:
        folder: of the files, each of which is made when there is something to write.
    """

    def __init__(self, folder: Path) -> None:
        self.timings_path = folder / "pipedream-times.jsonl"
        self.trainings_path = folder / "pipedream-learning.jsonl"
        self.throughput_path = folder / "pipeoptim-times.jsonl"
        self.memory_path = folder / "pipeoptim-memory.jsonl"
        self.pipeoptim_path = folder / "pipeoptim-learning.jsonl"
        self.pipemare_path = folder / "pipemare.jsonl"
        self.drl_pp_path = folder / "drl-pp.jsonl"

    @property
    def timings(self) -> list[Timing]:
        """Seconds of PipeDream's table."""
        return read_results_of(STUDY, Timing, self.timings_path)

    @property
    def trainings(self) -> list[Training]:
        """Curves of PipeDream's table."""
        return read_results_of(STUDY, Training, self.trainings_path)

    @property
    def throughput(self) -> list[Throughput]:
        """Samples of PipeOptim's figure 6."""
        return read_results_of(STUDY, Throughput, self.throughput_path)

    @property
    def memory(self) -> list[StageMemory]:
        """What stages hold under PipeOptim's methods."""
        return read_results_of(STUDY, StageMemory, self.memory_path)

    @property
    def pipeoptim(self) -> list[Learned]:
        """Runs of PipeOptim's Table VI."""
        return read_results_of(STUDY, Learned, self.pipeoptim_path)

    @property
    def pipemare(self) -> list[Learned]:
        """Runs of PipeMare's tables."""
        return read_results_of(STUDY, Learned, self.pipemare_path)

    @property
    def drl_pp(self) -> list[Case]:
        """Simulated cases of DRL-PP's Table 1."""
        return read_results_of(STUDY, Case, self.drl_pp_path)
