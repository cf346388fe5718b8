"""Ending a training at a given moment, as if it had been killed."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from drlpp.runtime.training.trainer import Trainer


class _Stopped(Exception):
    pass


@contextmanager
def killed_after_saving(times: int) -> Iterator[None]:
    """Let the training inside end as if it had been killed right after a checkpoint."""
    save = Trainer._save
    saved = []

    def save_and_stop(trainer: Trainer) -> None:
        save(trainer)
        saved.append(True)
        if len(saved) == times:
            raise _Stopped

    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Stopped):  # noqa: PT012
        patch.setattr(Trainer, "_save", save_and_stop)
        yield
