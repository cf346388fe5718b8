"""What TensorBoard shows of races.

Everything is in ``tensorboard`` in the folder of a run, a run of TensorBoard for each contender.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from drlpp.io.files import reporting_disk_errors
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import names_of
from drlpp.racing.training_race import TrainingRace


def write_race(folder: Path, comparison: Comparison) -> None:
    """Write every round of a race: ``race/seconds_per_minibatch`` by its number from 1."""
    names = names_of(comparison.contenders)
    rounds = {
        name: [("race/seconds_per_minibatch", step, s) for step, s in enumerate(found.seconds, 1)]
        for name, found in zip(names, comparison.contenders, strict=True)
    }
    _write(folder, rounds)


def write_training_race(folder: Path, race: TrainingRace) -> None:
    """Write the held-out losses of a race to a loss, by minibatch and by millisecond."""
    names = names_of(race.candidates)
    losses = {
        f"{names[run.candidate]}, rate {run.rate:.2g}, order {run.seed}": [
            (f"race/held_out_loss_by_{of}", step, point.loss)
            for point in run.curve.points
            if point.loss is not None
            for of, step in (
                ("minibatch", point.minibatches),
                ("millisecond", round(1e3 * point.seconds)),
            )
        ]
        for run in race.runs
    }
    _write(folder, losses)


def _write(folder: Path, values: Mapping[str, Iterable[tuple[str, int, float]]]) -> None:
    races = folder / "tensorboard" / "race"
    with reporting_disk_errors(folder):
        # A race that continues is written anew.
        shutil.rmtree(races, ignore_errors=True)
        for name, found in values.items():
            with SummaryWriter(str(races / re.sub(r"[^\w.,=+·-]+", "_", name))) as board:
                for tag, step, value in found:
                    board.add_scalar(tag, value, step)
