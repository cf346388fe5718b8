"""What each way of training is worth where links are slow, live on emulated accelerators.

torch's own ways are measured by the minibatch; then the default plan, other pipelines, and what a
user has, PowerSGD, local SGD and DiLoCo among it, race to a loss (``drlpp.racing``). Nothing is
compiled.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pandas import DataFrame

from benchmarks.learning.study import spec_of
from benchmarks.learning.tasks import library
from benchmarks.study import Needs, Row, Study, this_machine
from benchmarks.world import MODELS, WORLDS, World
from drlpp.io.documents import Record
from drlpp.placement.measurement import Measurement
from drlpp.planners import Space
from drlpp.racing.contenders import Contender, usual_method
from drlpp.racing.prospects import APPROXIMATE, expected_seconds, usual_candidates, with_a_chance
from drlpp.racing.rivals import Grounds, by_torch, measure, predicted, without_equals
from drlpp.racing.to_loss import RaceData, race_to_loss
from drlpp.racing.training_race import RaceEnd, Training, TrainingRace
from drlpp.runtime.ipc.protocol import ParallelWay
from drlpp.schedule.method import Method
from drlpp.specs.data import Data, Samples

_PARALLEL: tuple[ParallelWay, ...] = ("ddp", "ddp-bf16", "powersgd", "zero-2", "fsdp", "local-sgd")
_MINIBATCHES, _LONGEST_SECONDS = 8, 4.0
"""Of a measurement, at most."""

_HOPELESS = 50
"""What is predicted to take so many times as long as plain PyTorch is not measured."""

_POLICIES = {"adamw": "pipeoptim", "nadam": "stash"}
"""Of each optimizer; NAdam's momentum of 0.99 looks ahead itself."""
_CLIP = 1.0
"""As usual for text, and in the study of samples by which plans expect what lateness costs."""
_LENGTH, _SEQUENCES = 32, 2400
_DATA = {
    "decoder": ("benchmarks.worlds:text", 1),
    "decoder-large": ("benchmarks.worlds:half_of_text", 1),
    "awd_lm": ("benchmarks.worlds:text", 1),
    "alexnet": ("digits", 3),
}
"""And epochs of plain PyTorch, whose loss is to be reached."""
_USUAL = ("decoder", "alexnet")
"""In all worlds; the others in one."""


def text(inputs: object = None, sequences: int = _SEQUENCES) -> Data:
    """Return the source of Python's library, as much as one epoch shall have."""
    train, held_out = library(_LENGTH)
    first = Samples(tuple(one[:sequences] for one in train.inputs), train.targets[:sequences])
    return Data(first, held_out)


def half_of_text(inputs: object = None) -> Data:
    """Return half as much of it."""
    return text(sequences=_SEQUENCES // 2)


class Case(Record):
    """A model in a world, its optimizer, and how often finalists train.

    One accelerator does not hold the model if R_m, the memory ratio, is 1.6: weights, gradients and
    Adam's state alone are more.
    """

    model: str
    world: str
    optimizer: str = "adamw"
    memory_ratio: float = 0.0
    finals: int = 3


class Measured(Record):
    """One of torch's ways of training on all accelerators: seconds of a minibatch.

    They are None where that is hopeless or failed.
    """

    way: str
    predicted: float
    seconds: float | None


class Trained(Record):
    """What came of a candidate.

    Attributes:
        name, configuration: of it.
        expected: seconds to the loss, for each of plain PyTorch's minibatches, before any training.
        rate: its best learning rate.
        milliseconds: of a minibatch while it trained.
        minibatches: to the loss in its first training; None if it did not reach it.
        seconds: to the loss, of finalists in every final.
        ended: why it did not reach it.
    """

    name: str
    configuration: str
    expected: float | None = None
    rate: float | None
    milliseconds: float | None
    minibatches: float | None
    seconds: tuple[float, ...]
    ended: str = ""


class Raced(Row):
    """What came out in a world.

    Attributes:
        weights_ratio: R_w, seconds of sending all weights for each of a minibatch on one
            accelerator.
        plain_seconds: of a minibatch of plain PyTorch, predicted.
        measured: torch's ways.
        loss: that was to be reached.
        trained: candidates, plain PyTorch, or what takes its place, first.
        left_out: what was expected to be too slow to train.
        said: the verdict's lines.
        took_seconds: of the case.
    """

    case: Case
    weights_ratio: float
    plain_seconds: float
    measured: tuple[Measured, ...]
    loss: float
    trained: tuple[Trained, ...]
    left_out: str
    said: str
    took_seconds: float
    machine: str


class WorldsStudy(Study[Case, Raced]):
    """The default plan against what a user has, to the same loss."""

    name = "worlds"
    question = "Which way of training reaches a loss first where links are slow?"
    row = Raced
    needs = Needs(quiet=True, hours=3)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return two models in every world, the others in one."""
        if short:
            return [Case(model="alexnet", world="a100-25gbit", finals=1)]
        finals = seeds or 3
        usual = [Case(model=m, world=w, finals=finals) for w in WORLDS for m in _USUAL]
        others: list[dict[str, Any]] = [{"optimizer": "nadam"}, {"memory_ratio": 1.6}]
        others += [{"model": model} for model in MODELS if model not in _USUAL]
        decoder = Case(model="decoder", world="a100-25gbit", finals=finals)
        return [*usual, *(decoder.model_copy(update=other) for other in others)]

    def run(self, case: Case) -> Raced:
        """Profile, scale the links, plan, and race.

        Raises:
            RunFailure: the profile cannot be taken, or plain PyTorch does not train.
        """
        begin = time.perf_counter()
        os.environ["TORCH_COMPILE_DISABLE"] = "1"
        # What it does not set, plans choose.
        method = Method(policy=_POLICIES[case.optimizer], clip_norm=_CLIP)
        optimizer, (data, epochs) = spec_of(case.optimizer, 0), _DATA[case.model]
        world = World.of(
            case.model,
            case.world,
            optimizer=optimizer,
            method=method,
            memory_ratio=case.memory_ratio,
        )
        plan = Contender.of(world.plan().candidate, "plan")
        with world.session() as session, tempfile.TemporaryDirectory() as folder:
            grounds = Grounds(session, world.profile, world.cluster, Space(method))
            plain = world.predicted.plain.seconds_per_minibatch
            measured = tuple(_measured(grounds, way, _HOPELESS * plain) for way in _PARALLEL)
            others = (by_torch(grounds, way, session.accelerators) for way in APPROXIMATE)
            fitting = (one for one in others if math.isfinite(expected_seconds(grounds, one)))
            named = [plan, *fitting]
            chosen, left_out = with_a_chance(grounds, usual_candidates(grounds), named)
            course, end = race_to_loss(
                session,
                without_equals([*chosen, *named], world.cluster),
                RaceData(session.captured, data),
                Path(folder),
                epochs=epochs,
                finals=case.finals,
                rates=3,
            )
            expected = [expected_seconds(grounds, one) for one in course.race.candidates]
        return Raced(
            case=case,
            weights_ratio=world.predicted.weights_ratio,
            plain_seconds=plain,
            measured=measured,
            loss=end.loss,
            trained=tuple(
                _trained(course.race, end, number, seconds)
                for number, seconds in enumerate(expected)
            ),
            left_out=left_out or "",
            said="; ".join(end.lines()),
            took_seconds=time.perf_counter() - begin,
            machine=this_machine(),
        )

    def table(self, rows: Sequence[Raced]) -> Mapping[str, DataFrame]:
        """Return seconds to the loss, and what of them are milliseconds and what minibatches."""
        lines = [(row, one) for row in rows for one in row.trained]
        return {
            "A minibatch, measured (predicted), ms": DataFrame(map(_ways, rows)),
            "Seconds to the loss": DataFrame(_line(row, one) for row, one in lines),
            "What was advised before any training, and what races said": DataFrame(
                {**_world(row), **_advice(row), "said": row.said} for row in rows
            ),
        }


def _measured(grounds: Grounds, way: ParallelWay, longest: float) -> Measured:
    """Measure one in fewer minibatches the longer they take, and not at all beyond the longest."""
    one = by_torch(grounds, way, grounds.cluster.accelerators)
    expected = predicted(grounds, way, one.processes).seconds_per_minibatch
    seconds = None
    if expected <= longest:
        minibatches = min(_MINIBATCHES, max(int(_LONGEST_SECONDS / expected), 1))
        outcome = measure(grounds.session, one, minibatches)
        if isinstance(outcome, Measurement):
            seconds = outcome.seconds_per_minibatch
    return Measured(way=way, predicted=expected, seconds=seconds)


def _trained(race: TrainingRace, end: RaceEnd, number: int, expected: float) -> Trained:
    one, rate = race.candidates[number], end.rates[number]
    curve = None if rate is None else race.curves[Training(number, rate)]
    done = curve.minibatches if curve else 0
    seconds = [end.costs[number]] if number in end.costs else []
    if number in end.finalists:
        seconds = [final.cost for final in end.finals_of(number)]
    return Trained(
        name=one.found_by,
        configuration=one.beside(usual_method(race.candidates)),
        expected=expected if math.isfinite(expected) else None,
        rate=rate,
        milliseconds=1e3 * curve.seconds / done if curve and done else None,
        minibatches=curve.minibatches_to(end.loss) if curve else None,
        seconds=tuple(seconds),
        ended=end.ended.get(number, ""),
    )


def _ways(row: Raced) -> dict[str, str]:
    plain = f"({1e3 * row.plain_seconds:.0f})"
    line = {**_world(row), "plain PyTorch": plain}
    for one in row.measured:
        took = f"{1e3 * one.seconds:.0f}" if one.seconds else "–"
        line[one.way] = f"{took} ({1e3 * one.predicted:.0f})"
    errors = [abs(one.predicted / one.seconds - 1) for one in row.measured if one.seconds]
    return line | {"error": f"{median(errors):.0%}" if errors else "–"}


def _world(row: Raced) -> dict[str, str]:
    ratio = row.case.memory_ratio
    return {
        "world": row.case.world,
        "model": f"{row.case.model}, {row.case.optimizer}",
        "R_w": f"{row.weights_ratio:.2f}",
        "R_m": f"{ratio:g}" if ratio else "no limit",
    }


def _advice(row: Raced) -> dict[str, str]:
    """Return what was expected to be first, and its seconds over those of what was."""
    first = min(row.trained, key=lambda one: one.expected or math.inf)
    best = min(median(one.seconds) for one in row.trained if one.seconds)
    over = f"{median(first.seconds) / best:.2f}" if first.seconds else "not reached"
    return {"advised": f"{first.name}, {first.configuration}", "over the first": over}


def _line(row: Raced, one: Trained) -> dict[str, str]:
    reference = row.trained[0].minibatches
    return {
        **_world(row),
        "way": one.name,
        "configuration": one.configuration,
        "rate": f"{one.rate:.2g}" if one.rate else "–",
        "ms": f"{one.milliseconds:.0f}" if one.milliseconds else "–",
        "minibatches": f"{one.minibatches:.0f}" if one.minibatches else one.ended,
        "s": f"{median(one.seconds):.1f}" if one.seconds else "–",
        "expected": f"{one.expected * reference:.1f}" if one.expected and reference else "–",
    }


STUDY = WorldsStudy()
