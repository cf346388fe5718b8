"""Live races as a table: when who was at the loss, and what the race says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pandas import DataFrame

from benchmarks.time_to_loss.seconds import DATA_PARALLEL, DIVIDED, WHOLE, kind_of
from drlpp.comparison.contenders import PLAIN, Contender
from drlpp.errors import InvalidInput
from drlpp.io.documents import read_document
from drlpp.training_race.judging import RaceEnd, is_worth_having, replay
from drlpp.training_race.training_race_file import TrainingRace

FLUSHED = "the soonest that flushes"
_TITLES = {
    PLAIN: PLAIN,
    DATA_PARALLEL: DATA_PARALLEL,
    FLUSHED: FLUSHED,
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

    Finalists' are medians, and bold; the others' are of one training. Who ended before, or was not
    there when the first was, is a dash.
    """
    rows = []
    for name, race, end in races:
        task, accelerators, links = name.split("-")
        row = {"task": task, "on": accelerators, "links": links}
        row |= {title: _soonest(race, end, kind) for kind, title in _TITLES.items()}
        rows.append({**row, "verdict": _verdict(race, end)})
    return DataFrame(rows)


def _group(contender: Contender) -> str:
    """Return the kind of a contender's column."""
    kind = kind_of(contender)
    return kind if kind in _TITLES else FLUSHED


def _soonest(race: TrainingRace, end: RaceEnd, kind: str) -> str:
    found = []
    for number, contender in enumerate(race.candidates):
        if _group(contender) != kind or number not in end.result.costs:
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
    return min(found)[2] if found else "–"


def _verdict(race: TrainingRace, end: RaceEnd) -> str:
    winner = end.winner
    if winner is None:
        return "nobody got there"
    lead = end.lead_over(0)
    if winner == 0 or lead is None or not is_worth_having(lead):
        return "train it plainly"
    first = _TITLES[_group(race.candidates[winner])]
    return f"{first}, {lead.ratio:.2f} times as soon ({lead.low:.2f}–{lead.high:.2f})"
