"""The ranks that execute bundles: they start once, and take order after order."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import IO, Any, Self

from benchmarks.elsewhere.without_drlpp import environment_in
from drlpp.errors import RunFailure
from drlpp.exporting.torch_bundle import PACKAGE, TorchExport

_TIMEOUT_SECONDS = 900.0
_GRACE_SECONDS = 20.0


class Ranks:
    """Processes in a group of Gloo's, each with a stage of every bundle; use as a context manager.

    An idle one waits for the next order and takes no core.

    Args:
        folder: for them alone; it is made.
        ranks: how many.
        without_drlpp: whether importing drlpp fails in them.
    """

    def __init__(self, folder: Path, ranks: int, *, without_drlpp: bool) -> None:
        self.folder, self.ranks = folder, ranks
        self._without_drlpp = without_drlpp
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        shared = environment_in(self.folder, without_drlpp=self._without_drlpp)
        shared["WORLD_SIZE"] = str(self.ranks)
        shutil.copy(Path(__file__).parent / "driver.py", self.folder)
        for rank in range(self.ranks):
            with self._errors(rank).open("w") as errors:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "driver.py"],
                        cwd=self.folder,
                        env={**shared, "RANK": str(rank)},
                        # Rank 0 hears of orders, and tells the others.
                        stdin=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                        stderr=errors,
                        text=True,
                    )
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Rank 0 reads the end, and all of them end.
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            try:
                process.wait(0 if error else _GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def add(self, export: TorchExport, name: str, speeds: Sequence[float] = ()) -> None:
        """Write a bundle and let all ranks load it.

        Args:
            export: has as many stages as there are ranks.
            name: by which it is known; a name in Python.
            speeds: of all accelerators, which passes and updates emulate; as fast as they are
                without.
        """
        place = self.folder / f"{name}-folder"
        export.write(place)
        # Of its own name, so that bundles stand side by side.
        (place / PACKAGE).rename(self.folder / name)
        stages = export.nearest.candidate.placement.stages
        own = [speeds[stage.accelerators[0]] for stage in stages] if speeds else [1.0] * len(stages)
        self._ask("load", name, own)

    def train(self, name: str, minibatches: int, file: Path) -> None:
        """Train on minibatches of a bundle's example, and write the weights."""
        self._ask("weights", name, minibatches, str(file))

    def seconds(self, name: str, minibatches: int) -> float:
        """Return what a minibatch takes, the filling of the pipeline in every step included."""
        return float(self._ask("time", name, minibatches))

    def _ask(self, *order: object) -> Any:
        """Give all ranks an order, and return what rank 0 answers.

        Raises:
            RunFailure: a rank ended, or they take too long; none is to be used after that.
        """
        first = self._processes[0]
        requests, answers = self._pipes
        timer = Timer(_TIMEOUT_SECONDS, first.kill)
        timer.start()
        try:
            requests.write(json.dumps(order) + "\n")
            requests.flush()
            # Libraries print lines of their own.
            for line in answers:
                if line.startswith("answer "):
                    return json.loads(line.removeprefix("answer "))
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        raise RunFailure(f"{order[0]} {order[1]}: a rank failed: {self._last_error()}")

    @property
    def _pipes(self) -> tuple[IO[str], IO[str]]:
        first = self._processes[0]
        assert first.stdin is not None
        assert first.stdout is not None
        return first.stdin, first.stdout

    def _errors(self, rank: int) -> Path:
        return self.folder / f"errors-{rank}.txt"

    def _last_error(self) -> str:
        lines = [
            line
            for rank in range(self.ranks)
            for line in self._errors(rank).read_text().splitlines()
            if "Error" in line
        ]
        return lines[-1] if lines else "it said nothing"
