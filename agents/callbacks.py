"""Callbacks for runs whose steps are paid for in measurements."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Figure as LoggedFigure

from drlpp.envs.measuring.memory import MeasurementMemory
from drlpp.io.documents import write_atomically
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement


class MeasurementBudgetCallback(BaseCallback):
    """Stops learning when enough distinct placements have been measured.

    Args:
        memory: of the environment; what it holds from an earlier run counts.
        budget: how many distinct placements may be measured, failed ones included.
        patience: also stop after this many steps without a new one, since a policy that has
            settled asks for the same placements for ever. Steps that asked for what cannot run do
            not count.
    """

    def __init__(
        self, memory: MeasurementMemory, budget: int, patience: int = 500, verbose: int = 0
    ) -> None:
        super().__init__(verbose)
        self.memory = memory
        self.budget = budget
        self.patience = patience
        self._distinct = memory.distinct
        self._steps_without_new = 0

    @property
    def exhausted(self) -> bool:
        """Whether the budget is spent; ``learn`` asks only after its first step."""
        return self.memory.distinct >= self.budget

    def _on_training_start(self) -> None:
        self._distinct = self.memory.distinct
        self._steps_without_new = 0

    def _on_step(self) -> bool:
        errors = [info.get("error_type") for info in self.locals["infos"]]
        self._steps_without_new += any(error != "invalid placement" for error in errors)
        if self.memory.distinct > self._distinct:
            self._distinct = self.memory.distinct
            self._steps_without_new = 0
        return not self.exhausted and self._steps_without_new < self.patience


class BestPlacementCallback(BaseCallback):
    """Logs the best placement when it changes: its seconds, and a picture for TensorBoard.

    Args:
        memory: of the environment.
        draw: makes the picture, such as the placement's timeline; None if it cannot.
    """

    def __init__(
        self,
        memory: MeasurementMemory,
        draw: Callable[[Candidate, Measurement], Figure | None] | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self.memory = memory
        self.draw = draw
        self._shown: Candidate | None = None

    def _on_step(self) -> bool:
        best = self.memory.best()
        if best is not None and best[0] != self._shown:
            self._show(*best)
        return True

    def _show(self, candidate: Candidate, measurement: Measurement) -> None:
        self._shown = candidate
        figure = self.draw(candidate, measurement) if self.draw else None
        if figure is not None:
            self.logger.record(
                "placement/best",
                LoggedFigure(figure, close=True),
                exclude=("stdout", "log", "json", "csv"),
            )
        if self.verbose:
            seconds = measurement.seconds_per_minibatch
            print(f"best so far: {candidate.configuration}, {seconds:.6g} s per minibatch")


class AtomicCheckpointCallback(BaseCallback):
    """Saves the model after every update, and at the end, over the same file.

    The file is replaced in one step, so that a run that is killed at any moment leaves a whole
    model behind, at most one update old.

    Args:
        path: the file, like ``model.zip``; load it with ``DRLPP.load(path, env)``.
    """

    def __init__(self, path: str | Path, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.path = Path(path)

    def _on_rollout_start(self) -> None:
        self._save()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._save()

    def _save(self) -> None:
        content = io.BytesIO()
        self.model.save(content)
        write_atomically(self.path, content.getvalue())
