"""What the study trains: decoders on the source of Python's library, and a CNN on digits."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmarks.deep_models import digits_cnn, encode, sequences, spread
from benchmarks.learning.race_tasks import TASKS as RACE_TASKS
from benchmarks.learning.race_tasks import RaceTask, race_name
from drlpp.models.model_reference import ModelReference
from drlpp.specs.data import Data, digits, load_data

_HELD_OUT_FILES = 10
"""Every tenth file is held out."""
_HELD_OUT_SAMPLES = 320
_NO_PROSE = {"site-packages", "test", "tests", "encodings", "idlelib", "pydoc_data"}


@lru_cache(maxsize=1)
def library_text() -> tuple[str, str]:
    """Return the source of Python's own library, without its tests, and the files held out of it.

    They are some 9 million characters of prose and code, and depend on the version of Python.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not _NO_PROSE & {*path.relative_to(root).parts}
    ]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    held_out = texts[::_HELD_OUT_FILES]
    del texts[::_HELD_OUT_FILES]
    return "".join(texts), "".join(held_out)


def library_data(length: int) -> Data:
    """Return sequences of ``length`` characters with those that follow on each.

    Inputs and targets have the shape ``(sequences, length)``, int64. Of what is held out, some
    hundred sequences are taken at equal distances.
    """
    train, held_out = (sequences(encode(text), length) for text in library_text())
    return Data(train=train, test=spread(held_out, _HELD_OUT_SAMPLES))


@dataclass(frozen=True)
class StudyTask:
    """A task of the study.

    Attributes:
        title: what it is, for the report.
        model: of minibatches of ``batch_size`` samples.
        load: samples to train on and held-out ones.
        batch_size: of a minibatch.
        minibatches: after which plain training's loss is the one to reach.
    """

    title: str
    model: ModelReference
    load: Callable[[], Data]
    batch_size: int
    minibatches: int


def _decoder_task(title: str, width: int, length: int, minibatches: int) -> StudyTask:
    return StudyTask(
        title=title,
        model=ModelReference.named("benchmarks.deep_models:decoder", width=width, length=length),
        load=lambda: library_data(length),
        batch_size=16,
        minibatches=minibatches,
    )


def _of_race(task: RaceTask) -> StudyTask:
    """Return that task, with the loss of plain training after three epochs to reach."""
    model = ModelReference.named(task.model)

    def load() -> Data:
        built = model.build()
        assert built.targets is not None
        data = load_data(task.data, built.inputs, built.targets)
        assert isinstance(data, Data)
        return data

    return StudyTask(f"{task.title}, three epochs", model, load, task.batch_size, 3 * task.epoch)


TASKS: dict[str, StudyTask] = {
    "text": _decoder_task("Decoder of 2.8 million weights, text", 192, 64, 1000),
    "text-small": _decoder_task("Decoder of 0.3 million weights, text", 64, 32, 400),
    "digits": StudyTask(
        title="CNN of 25 thousand weights, digits",
        model=ModelReference.named("benchmarks.deep_models:digits_cnn", batch_size=32),
        load=lambda: digits(digits_cnn().inputs),
        batch_size=32,
        minibatches=400,
    ),
    **{race_name(name): _of_race(task) for name, task in RACE_TASKS.items()},
}
