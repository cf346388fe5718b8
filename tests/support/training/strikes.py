"""What happens to the workers of a training while it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from drlpp.io.files import read_lines
from drlpp.io.run_folder import CHANGES_NAME
from drlpp.runtime import TrainerCallbacks
from drlpp.runtime.training.trainer import Trainer
from drlpp.runtime.training.training_plan import WorkersChanged


def changes_in(folder: Path) -> tuple[WorkersChanged, ...]:
    """What became of the workers of a training; a half last line is left out."""
    lines, _ = read_lines(folder / CHANGES_NAME)
    return tuple(map(WorkersChanged.model_validate_json, lines))


class Strikes:
    """Strikes shortly after a training has kept its third state, and the third after every change.

    Args:
        folder: of the training.
        strikes: one after the other.
        seconds: after the state was kept; 0 for before anything else is computed.

    Attributes:
        notes: what the training has told.
    """

    def __init__(self, folder: Path, *strikes: Callable[[], None], seconds: float = 0.02) -> None:
        self._folder = folder
        self._left = list(strikes)
        self._seconds = seconds
        self._struck = 0
        self._saved = 0
        self.notes: list[str] = []

    @property
    def observer(self) -> TrainerCallbacks:
        """To give to the training."""
        return TrainerCallbacks(on_note=self.notes.append)

    @contextmanager
    def following_checkpoints(self) -> Iterator[None]:
        """Let a training in the block be struck."""
        save = Trainer._save
        timers: list[Timer] = []

        def save_and_strike(trainer: Trainer) -> None:
            save(trainer)
            known = len(changes_in(self._folder))
            self._saved = self._saved + 1 if known >= self._struck else 0
            if self._saved == 3 and self._left:
                self._saved, self._struck = 0, known + 1
                strike = self._left.pop(0)
                if not self._seconds:
                    strike()
                    return
                # While what follows on the checkpoint is computed.
                timers.append(Timer(self._seconds, strike))
                timers[-1].start()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "_save", save_and_strike)
            yield
        for timer in timers:
            timer.join()
