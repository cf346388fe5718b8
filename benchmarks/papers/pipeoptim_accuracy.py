"""PipeOptim's Table IV and figure 7: how good a model is after as many minibatches as GPipe's.

All methods train with the learning rate that suits GPipe, as in the paper, so a method that needs a
lower one shows it here as a worse model. 2BW's gradients are of the weights one update before at
every stage, whatever the depth: as with vertical sync on two stages, which is what is replayed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pandas import DataFrame

from benchmarks.learning.study import TITLES, Case, Late, Learned, LearningStudy
from benchmarks.learning.tasks import TASKS
from benchmarks.papers.claims import NOT_YET, Claim, judged, section, spread
from benchmarks.papers.figures import PIPEOPTIM_TABLE_IV
from benchmarks.study import Needs
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SUGGESTED_CORRECTION_DECAY

DEPTHS = (4, 8, 16)
_ANY_DEPTH = {"GPipe": 1, "2BW": 2}
"""The stages that stand for all depths, of methods whose weights do not depend on them."""
_TASKS = ("digits", "lstm")


class Ordering(NamedTuple):
    """A statement of §V-B: one method is better than another, or about as good."""

    text: str
    optimizer: str
    first: str
    second: str
    alike: bool = False


ORDERINGS = (
    Ordering("PipeOptim ≥ PipeDream", "sgd", "PipeOptim", "PipeDream"),
    Ordering("PipeOptim ≥ 2BW", "sgd", "PipeOptim", "2BW"),
    Ordering("SpecTrain ≈ PipeOptim", "sgd", "SpecTrain", "PipeOptim", alike=True),
    # Its accuracy "fluctuates" from model to model, which is to fall behind on some of them.
    Ordering("XPipe falls behind PipeOptim", "sgd", "PipeOptim", "XPipe"),
    Ordering("PipeOptim ≥ GPipe", "adamw", "PipeOptim", "GPipe"),
    Ordering("XPipe ≈ PipeOptim", "adam", "XPipe", "PipeOptim", alike=True),
    Ordering("PipeOptim > vanilla", "sgd", "PipeOptim", "vanilla"),
    Ordering("PipeOptim > vanilla", "adam", "PipeOptim", "vanilla"),
    Ordering("PipeOptim > vanilla", "adamw", "PipeOptim", "vanilla"),
)


class Accuracy(LearningStudy):
    """Two tasks, three optimizers, pipelines of 4, 8 and 16 stages, five seeds."""

    name = "pipeoptim-accuracy"
    question = "How good is a model with each weight policy, at GPipe's rate (Table IV)?"
    needs = Needs(hours=3)
    longest = 1

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return every method; for a look, two in a few minibatches."""
        return [
            _case(task, optimizer, method, depth, seeds or 5, 16 if short else None)
            for task in (("digits",) if short else _TASKS)
            for optimizer in (("sgd",) if short else TITLES)
            for method in _methods(1)
            for depth in _depths(method)
            if not short or (depth <= DEPTHS[0] and method in ("GPipe", "PipeOptim"))
        ]

    def methods(self, case: Case) -> Mapping[str, Late]:
        """Return those of the table; the first is the baseline."""
        return _methods(case.planned)

    def table(self, rows: Sequence[Learned]) -> Mapping[str, DataFrame]:
        """Return what is left of Table IV, and what the paper says of it."""
        lines, claims = [], []
        for task in _TASKS:
            planned = next((row.case.planned for row in rows if row.case.task == task), None)
            for optimizer in TITLES:
                for depth in DEPTHS:
                    found = {
                        method: self.of(
                            rows, _case(task, optimizer, method, depth, planned=planned)
                        )
                        for method in _methods(1)
                    }
                    if not any(found.values()):
                        continue
                    lines.append(
                        {
                            "task": TASKS[task].title,
                            "optimizer": TITLES[optimizer],
                            "stages": str(depth),
                            **{method: _cell(row) for method, row in found.items()},
                        }
                    )
                    where = f"{TASKS[task].title}, {TITLES[optimizer]}, {depth} stages"
                    claims += [
                        _judged(ordering, where, found)
                        for ordering in ORDERINGS
                        if ordering.optimizer == optimizer
                    ]
        ours = "Accuracy in % of the digits, loss in nats of the text, after as many minibatches"
        paper = "The paper's Table IV, in % (GNMT: BLEU)"
        return section([(ours, DataFrame(lines)), (paper, PIPEOPTIM_TABLE_IV)], claims)


def _methods(minibatches: int) -> dict[str, Late]:
    methods = {
        # T = 1 as in the paper, which makes GPipe the naive pipeline, without any staleness.
        "GPipe": Method(schedule="gpipe", policy="sync"),
        "vanilla": Method(policy="vanilla"),
        "PipeDream": Method(policy="stash"),
        "2BW": Method(policy="stash-vertical"),
        "SpecTrain": Method(policy="spectrain"),
        "XPipe": Method(policy="xpipe"),
        "PipeMare": Method(
            policy="pipemare",
            annealing_minibatches=minibatches // 4,
            correction_decay=SUGGESTED_CORRECTION_DECAY,
        ),
        "PipeOptim": Method(policy="pipeoptim"),
    }
    return {name: Late(method) for name, method in methods.items()}


def _depths(method: str) -> tuple[int, ...]:
    return (_ANY_DEPTH[method],) if method in _ANY_DEPTH else DEPTHS


def _case(
    task: str,
    optimizer: str,
    method: str,
    depth: int,
    seeds: int = 5,
    planned: int | None = None,
) -> Case:
    return Case(
        task=task,
        optimizer=optimizer,
        method=method,
        stages=_ANY_DEPTH.get(method, depth),
        planned=planned or TASKS[task].minibatches,
        seeds=seeds,
        own_rate=method == "GPipe",
    )


def _quality(row: Learned | None) -> dict[int, float]:
    """Return the figures that methods are compared by, of each seed; more is better."""
    if row is None:
        return {}
    return row.scores or {seed: -loss for seed, loss in row.losses.items()}


def _cell(row: Learned | None) -> str:
    if row is None:
        return NOT_YET
    values = [abs(value) for value in _quality(row).values()]
    diverged = len(row.runs) - len(row.losses)
    text = spread(values, 2 if row.scores else 3) if values else "diverged"
    return f"{text} ({diverged} of {len(row.runs)} diverged)" if diverged else text


def _judged(ordering: Ordering, where: str, found: Mapping[str, Learned | None]) -> Claim:
    """Judge an ordering; alike is what differs by less than GPipe does over seeds."""
    gpipe = list(_quality(found["GPipe"]).values())
    noise = statistics.stdev(gpipe) if ordering.alike and len(gpipe) > 1 else None
    first, second = (_quality(found[method]) for method in (ordering.first, ordering.second))
    return judged(ordering.text, where, first, second, noise)


STUDY = Accuracy()
