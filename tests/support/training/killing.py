"""Ending a training at a given moment, as if it had been killed."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from drlpp.runtime import Deployment
from drlpp.runtime.training.trainer import Trainer


class _Stopped(Exception):
    pass


@contextmanager
def killed_after_saving(times: int) -> Iterator[None]:
    """Let the training inside end as if it had been killed right after a checkpoint."""
    with _ended_after_saving(times, lambda _trainer, _saved: None):
        yield


@contextmanager
def killed_after_savings(folders: Mapping[int, Path]) -> Iterator[None]:
    """Let one training inside leave what several would that were killed after so many checkpoints.

    Args:
        folders: by the number of checkpoints, where the training's folder is copied.
    """

    def copy(trainer: Trainer, saved: int) -> None:
        if saved in folders:
            shutil.copytree(trainer.folder, folders[saved])

    with _ended_after_saving(max(folders), copy):
        yield


@contextmanager
def _ended_after_saving(times: int, on_saved: Callable[[Trainer, int], None]) -> Iterator[None]:
    save = Trainer._save
    saved = []

    def save_and_stop(trainer: Trainer, deployment: Deployment, **how: bool) -> None:
        save(trainer, deployment, **how)
        saved.append(True)
        on_saved(trainer, len(saved))
        if len(saved) == times:
            raise _Stopped

    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Stopped):  # noqa: PT012
        patch.setattr(Trainer, "_save", save_and_stop)
        yield
