"""Algorithms of stable-baselines3 in the main job: within a budget, saved, and taken up again."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from drlpp.envs import MeasurementMemory
from drlpp.errors import InvalidFile
from drlpp.io.documents import write_atomically


def take_up(agent: BaseAlgorithm, path: Path) -> None:
    """Let a new agent go on where the one of a file stopped.

    It gets its weights and counts. stable-baselines3 keeps what is no JSON as pickles, which may
    name any function to call: none of them is read here. (Its own ``DRLPP.load(path)`` reads them,
    as its users know.)

    Raises:
        InvalidFile: it is not an agent for this model.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            saved = json.loads(archive.read("data"))
        agent.set_parameters(str(path), device=agent.device)
        for name in ("num_timesteps", "_n_updates"):
            setattr(agent, name, int(saved.get(name, 0)))
        if (baseline := saved.get("baseline")) is not None:
            agent.baseline = float(baseline)  # type: ignore[attr-defined]
    # Whatever a damaged or hostile file makes the libraries say.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InvalidFile(
            f"{path}: not a saved agent for this model ({reason}); delete it to let a new agent "
            "begin with what has been measured"
        ) from None


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

    def _on_training_start(self) -> None:
        self._distinct = self.memory.distinct
        self._steps_without_new = 0

    def _on_step(self) -> bool:
        errors = [info.get("error_type") for info in self.locals["infos"]]
        self._steps_without_new += any(error != "invalid placement" for error in errors)
        if self.memory.distinct > self._distinct:
            self._distinct = self.memory.distinct
            self._steps_without_new = 0
        spent = self.memory.distinct >= self.budget
        return not spent and self._steps_without_new < self.patience


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
