"""Live races as a table: when who was at the loss, and what the race says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pandas import DataFrame

from benchmarks.time_to_loss.report import DEFAULT
from benchmarks.time_to_loss.seconds import (
    DATA_PARALLEL,
    DIVIDED,
    FLUSHED,
    WHOLE,
    ZB_H1,
    ZB_V,
    kind_of,
)
from drlpp.errors import InvalidInput
from drlpp.io.documents import read_document
from drlpp.racing.contenders import Contender
from drlpp.racing.race import lead_over
from drlpp.racing.rivals import PLAIN
from drlpp.racing.training_race import RaceEnd, TrainingRace, is_plain_as_good, replay
from drlpp.schedule.analysis.samples_needed import samples_needed
from drlpp.schedule.analysis.staleness import mean_staleness
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.weight_policies import PIPEOPTIM

_TITLES = {
    PLAIN: PLAIN,
    DATA_PARALLEL: DATA_PARALLEL,
    FLUSHED: FLUSHED,
    ZB_H1: "zero-bubble",
    ZB_V: "zero-bubble",
    WHOLE: "PipeOptim, whole minibatches",
    DIVIDED: "PipeOptim, M ≥ D",
}
"""Of the columns, by the kind of contenders."""


class LiveRace(NamedTuple):
    """A race that has ended.

    Attributes:
        name: of its folder, TASK-ACCELERATORS-LINKS.
        race: its file.
        end: how it ended.
    """

    name: str
    race: TrainingRace
    end: RaceEnd


def read_race(folder: Path) -> LiveRace:
    """Read a race.

    Raises:
        InvalidInput: the folder's name does not say what was raced, or the race has not ended.
    """
    if folder.name.count("-") != 2:
        raise InvalidInput(
            f"{folder}: its name does not say what was raced; expected TASK-ACCELERATORS-LINKS, "
            "such as decoder-4-fast"
        )
    race = read_document(folder / "race.json", TrainingRace)
    end = replay(race)
    if end is None:
        raise InvalidInput(f"{folder}: the race has not ended; continue it with race --resume")
    return LiveRace(folder.name, race, end)


def table(races: Iterable[LiveRace]) -> DataFrame:
    """Return a row for each race: seconds of the soonest of each kind, and the verdict.

    Finalists' are medians, and bold; the others' are of one training. Of who ended before, or was
    not there when the first was, it is the least held-out loss, and when that was. *Zero-bubble* is
    ZB-H1 and ZB-V; the default is one of the columns before it, whatever it took. A dash did not
    take part.
    """
    rows = []
    for name, race, end in races:
        task, accelerators, links = name.split("-")
        row = {"task": task, "on": accelerators, "links": links}
        for title in dict.fromkeys(_TITLES.values()):
            of_title = [n for n, one in enumerate(race.candidates) if _title(one) == title]
            row[title] = _soonest(race, end, of_title)
        row[DEFAULT] = _default_cell(race, end, int(accelerators))
        rows.append({**row, "verdict": _verdict(race, end)})
    return DataFrame(rows)


def _title(contender: Contender) -> str:
    """Return a contender's column."""
    return _TITLES[kind_of(contender)]


def _soonest(race: TrainingRace, end: RaceEnd, candidates: Iterable[int]) -> str:
    found, least = [], []
    for number in candidates:
        if number not in end.result.costs:
            least += [
                min((point.comparable_loss, point.seconds) for point in curve.points)
                for training, curve in race.curves.items()
                if training.candidate == number
            ]
            continue
        finals = end.result.finals.get(number)
        if not finals:
            cost = end.result.costs[number]
            found.append((True, cost, f"{cost:.3g}"))
            continue
        middle = median(final.cost for final in finals)
        arrived = sum(final.arrived for final in finals)
        missed = "" if arrived == len(finals) else f" ({arrived} of {len(finals)} there)"
        found.append((False, middle, f"**{middle:.3g}**{missed}"))
    if found:
        return min(found)[2]
    return "{:.3g} at {:.3g} s".format(*min(least)) if least else "–"


def default_of(race: TrainingRace, workers: int) -> int | None:
    """Return who of a race is what ``drlpp learn`` would take, None if it did not take part.

    That is PipeOptim evenly split over all workers, with the microbatches that have the least
    product of seconds per minibatch, here those of the race, and of the samples that gradients as
    late as this need (:func:`~drlpp.schedule.analysis.staleness.samples_needed`).
    """
    pipeline = Pipeline.straight(*[1] * workers)
    costs: dict[int, list[float]] = {}
    for training, curve in race.curves.items():
        one = race.candidates[training.candidate]
        if _could_be_the_default(one, workers) and curve.minibatches:
            samples = samples_needed(mean_staleness(pipeline, one.method))
            seconds = curve.seconds / curve.minibatches
            costs.setdefault(training.candidate, []).append(seconds * samples)
    return min(costs, key=lambda number: median(costs[number]), default=None)


def _could_be_the_default(one: Contender, workers: int) -> bool:
    return (
        one.placement is not None
        and one.found_by == "even split"
        and one.method.policy == PIPEOPTIM.name
        and len(one.placement.stages) == workers
    )


def _default_cell(race: TrainingRace, end: RaceEnd, workers: int) -> str:
    number = default_of(race, workers)
    if number is None:
        return "–"
    return f"{_soonest(race, end, [number])}, M = {race.candidates[number].method.microbatches}"


def _verdict(race: TrainingRace, end: RaceEnd) -> str:
    winner = end.winner
    if winner is None:
        return "no candidate reached it"
    if is_plain_as_good(race, end) or 0 not in end.result.finalists:
        return "use plain PyTorch"
    own, plain = ([final.cost for final in end.finals_of(number)] for number in (winner, 0))
    lead = lead_over(own, plain)
    first = _title(race.candidates[winner])
    return f"{first}, {lead.ratio:.2f}× faster ({lead.low:.2f}–{lead.high:.2f})"
