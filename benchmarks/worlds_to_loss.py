"""The same worlds, by training: which way reaches a loss first where links are slow?

A race to a loss (``drlpp.racing``) of the default plan, other pipelines, and what a user has,
local SGD and DiLoCo among it; nothing is compiled.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from pandas import DataFrame

from benchmarks.learning.study import spec_of
from benchmarks.learning.tasks import library
from benchmarks.study import Needs, Row, Study, this_machine
from benchmarks.worlds import MODELS, PLAN_TO_LOSS, WORLDS, World
from drlpp.io.documents import Record
from drlpp.planners import Space
from drlpp.racing.contenders import Contender, usual_method
from drlpp.racing.prospects import LOCAL, usual_candidates, with_a_chance
from drlpp.racing.rivals import Grounds, by_torch, without_equals
from drlpp.racing.to_loss import RaceData, race_to_loss
from drlpp.racing.training_race import RaceEnd, Training, TrainingRace
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.data import Data, Samples

_POLICIES = {"adamw": "pipeoptim", "nadam": "stash"}
"""Of each optimizer; NAdam's momentum of 0.99 looks ahead itself."""
_CLIP = 1.0
"""As usual for text, and in the study of samples by which plans expect what lateness costs."""
_LENGTH, _SEQUENCES = 32, 2400
_DATA = {"decoder": ("benchmarks.worlds_to_loss:text", 1), "alexnet": ("digits", 3)}
"""And epochs of plain PyTorch, whose loss is to be reached."""


def text(inputs: object = None) -> Data:
    """Return the source of Python's library, as much as one epoch shall have."""
    train, held_out = library(_LENGTH)
    first = Samples(tuple(one[:_SEQUENCES] for one in train.inputs), train.targets[:_SEQUENCES])
    return Data(first, held_out)


class Case(Record):
    """A model in a world, its optimizer, and how often finalists train."""

    model: str
    world: str
    optimizer: str = "adamw"
    finals: int = 3


class Trained(Record):
    """What came of a candidate.

    Attributes:
        name, configuration: of it.
        rate: its best learning rate.
        milliseconds: of a minibatch while it trained.
        minibatches: to the loss in its first training; None if it did not reach it.
        seconds: to the loss, of finalists in every final.
        ended: why it did not reach it.
    """

    name: str
    configuration: str
    rate: float | None
    milliseconds: float | None
    minibatches: float | None
    seconds: tuple[float, ...]
    ended: str = ""


class RacedToLoss(Row):
    """What came out in a world.

    Attributes:
        weights_ratio: R_w, as in the study ``worlds``.
        loss: that was to be reached.
        trained: candidates, plain PyTorch first.
        left_out: what was expected to be too slow to train.
        said: the verdict's lines.
        took_seconds: of the case.
    """

    case: Case
    weights_ratio: float
    loss: float
    trained: tuple[Trained, ...]
    left_out: str
    said: str
    took_seconds: float
    machine: str


class WorldsToLossStudy(Study[Case, RacedToLoss]):
    """The default plan against what a user has, to the same loss."""

    name = "worlds-to-loss"
    question = "Which way of training reaches a loss first where links are slow?"
    row = RacedToLoss
    needs = Needs(quiet=True, hours=2.5)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return every model in every world."""
        if short:
            return [Case(model="alexnet", world="a100-25gbit", finals=1)]
        finals = seeds or 3
        usual = [Case(model=m, world=w, finals=finals) for w in WORLDS for m in MODELS]
        nadam = Case(model="decoder", world="a100-25gbit", optimizer="nadam", finals=finals)
        return [*usual, nadam]

    def run(self, case: Case) -> RacedToLoss:
        """Profile, scale the links, plan, and race.

        Raises:
            RunFailure: the profile cannot be taken, or plain PyTorch does not train.
        """
        begin = time.perf_counter()
        os.environ["TORCH_COMPILE_DISABLE"] = "1"
        method = choose_method(_POLICIES[case.optimizer], {"clip_norm": _CLIP})
        optimizer, (data, epochs) = spec_of(case.optimizer, 0), _DATA[case.model]
        world = World.of(case.model, case.world, optimizer=optimizer, method=method)
        plan = Contender.of(world.plans[PLAN_TO_LOSS].candidate, "plan")
        with world.session() as session, tempfile.TemporaryDirectory() as folder:
            grounds = Grounds(session, world.profile, world.cluster, Space(method))
            named = [plan, *(by_torch(grounds, way, session.accelerators) for way in LOCAL)]
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
        return RacedToLoss(
            case=case,
            weights_ratio=world.predicted.weights_ratio,
            loss=end.loss,
            trained=tuple(
                _trained(course.race, end, number) for number in range(len(course.race.candidates))
            ),
            left_out=left_out or "",
            said="; ".join(end.lines()),
            took_seconds=time.perf_counter() - begin,
            machine=this_machine(),
        )

    def table(self, rows: Sequence[RacedToLoss]) -> Mapping[str, DataFrame]:
        """Return seconds to the loss, and what of them are milliseconds and what minibatches."""
        lines = [(row, one) for row in rows for one in row.trained]
        return {
            "Seconds to the loss": DataFrame(_line(row, one) for row, one in lines),
            "What races said": DataFrame(
                {"world": row.case.world, "model": row.case.model, "said": row.said} for row in rows
            ),
        }


def _trained(race: TrainingRace, end: RaceEnd, number: int) -> Trained:
    one, rate = race.candidates[number], end.rates[number]
    curve = None if rate is None else race.curves[Training(number, rate)]
    done = curve.minibatches if curve else 0
    seconds = [end.costs[number]] if number in end.costs else []
    if number in end.finalists:
        seconds = [final.cost for final in end.finals_of(number)]
    return Trained(
        name=one.found_by,
        configuration=one.beside(usual_method(race.candidates)),
        rate=rate,
        milliseconds=1e3 * curve.seconds / done if curve and done else None,
        minibatches=curve.minibatches_to(end.loss) if curve else None,
        seconds=tuple(seconds),
        ended=end.ended.get(number, ""),
    )


def _line(row: RacedToLoss, one: Trained) -> dict[str, str]:
    return {
        "world": row.case.world,
        "model": f"{row.case.model}, {row.case.optimizer}",
        "R_w": f"{row.weights_ratio:.2f}",
        "way": one.name,
        "configuration": one.configuration,
        "rate": f"{one.rate:.2g}" if one.rate else "–",
        "ms": f"{one.milliseconds:.0f}" if one.milliseconds else "–",
        "minibatches": f"{one.minibatches:.0f}" if one.minibatches else one.ended,
        "s": f"{median(one.seconds):.1f}" if one.seconds else "–",
    }


STUDY = WorldsToLossStudy()
