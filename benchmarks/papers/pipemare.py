"""PipeMare's Tables 2 and 3: what each technique needs to a loss, in samples, time and memory.

A pipeline of the paper with P stages and N microbatches has gradients of stage i late by
τ = ⌈(2(P − i) + 1) / N⌉ updates. With N = 2 that is P − i + 1, which is what 1F1B over whole
minibatches has on P stages: T1's τ = s + 1. So whole minibatches are replayed, GPipe's too, whose
microbatches change nothing but rounding; its time is that of N = 2.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import lru_cache

from pandas import DataFrame

from benchmarks.deep_models import even_stages
from benchmarks.learning.study import (
    TITLES,
    Case,
    Late,
    Learned,
    LearningStudy,
    quality_text,
    spec_of,
    target_text,
)
from benchmarks.learning.tasks import TASKS
from benchmarks.papers.claims import NOT_YET, Claim, judged, judged_seconds, section, spread
from benchmarks.papers.figures import PIPEMARE_TABLES_2_AND_3
from benchmarks.study import Needs
from drlpp.capturing.capture import capture
from drlpp.costs.memory import MemoryModel
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.schedule.actions import Action, Backward, Forward, Update
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.timeline import play
from drlpp.schedule.weight_policies import SUGGESTED_CORRECTION_DECAY

STAGES = {"digits": 4, "text": 8}
"""By the task: the CNN learns too little in 400 minibatches with gradients that are later."""
_OPTIMIZERS = {"digits": "sgd", "text": "adamw"}
MICROBATCHES = 2
"""N of the paper's pipeline that is as late as ours."""
_ANNEALING_SHARE = 4
"""T1 anneals over a quarter of the minibatches, as the paper suggests."""
_WARM_UP_SHARE = 6
"""W takes a sixth of the minibatches, as the paper's 10 of 60 epochs."""


def rows(minibatches: int) -> Mapping[str, Late]:
    """Return the methods of both tables; the first is the baseline."""
    annealing, decay = minibatches // _ANNEALING_SHARE, SUGGESTED_CORRECTION_DECAY

    def pipemare(annealing: int, decay: float, warm_up: int = 0) -> Late:
        method = Method(policy="pipemare", annealing_minibatches=annealing, correction_decay=decay)
        return Late(method, warm_up)

    return {
        "GPipe": Late(Method(schedule="gpipe", policy="sync")),
        "PipeDream": Late(Method(policy="stash")),
        "neither": Late(Method(policy="vanilla")),
        "T1": pipemare(annealing, 0.0),
        "T2": pipemare(0, decay),
        "T1+T2": pipemare(annealing, decay),
        "T1+T2+W": pipemare(annealing, decay, minibatches // _WARM_UP_SHARE),
    }


@lru_cache
def minibatch_seconds(method: Method, stages: int, microbatches: int = 1) -> float:
    """Return the time of a minibatch, over what one stage computes for it.

    The schedule is played with messages that take no time and passes of one length, a backward
    twice as long as a forward. Its inverse is the paper's utilisation.
    """
    method = method.model_copy(update={"microbatches": microbatches})
    pipeline, count = Pipeline.straight(*[1] * stages), 6 * stages
    schedule = method.schedule_for(pipeline, count)

    def seconds_of(worker: int, action: Action) -> float:
        if isinstance(action, Forward):
            return 1 / microbatches
        return 2 / microbatches if isinstance(action, Backward) else 0.0

    ends: dict[int, list[float]] = {worker: [] for worker in schedule.actions}
    for timed in play(schedule, seconds_of):
        if isinstance(timed.action, Update):
            ends[timed.worker].append(timed.end)
    complete = [max(together) for together in zip(*ends.values(), strict=True)]
    half = len(complete) // 2
    return (complete[-1] - complete[half]) / (len(complete) - 1 - half) / 3


def time_factor(row: Late, stages: int, done: float) -> float:
    """Return the mean time of ``done`` minibatches, over what one stage computes for each.

    Those of W take GPipe's.
    """
    flushed = minibatch_seconds(Method(schedule="gpipe", policy="sync"), stages, MICROBATCHES)
    if row.method.flushes:
        return flushed
    own = minibatch_seconds(row.method, stages)
    first = min(row.synchronous, done)
    return (first * flushed + (done - first) * own) / done


def weight_memory(task: str, row: Late, stages: int) -> float:
    """Return weights, gradients and the optimizer's state that all stages hold, over GPipe's.

    As the runtime holds them: T2 keeps W_{t+s} besides δ during a backward, where the paper
    writes over it. T1 holds no more than GPipe.
    """
    weights, graph = _weights(task, stages)
    spec = spec_of(_OPTIMIZERS[task], 0)
    plain = MemoryModel.of(Method(schedule="gpipe", policy="sync"), spec).weight_copies
    facts = row.method.policy_facts
    more = facts.copies if row.method.lookahead is not None or facts.stashes else 0
    delays = graph.delays if not row.method.flushes else (0,) * stages
    held = sum(
        of_stage * (plain + more + (delay if facts.stashes else 0))
        for of_stage, delay in zip(weights, delays, strict=True)
    )
    return held / (plain * sum(weights))


@lru_cache(maxsize=4)
def _weights(task: str, stages: int) -> tuple[list[int], ExecutionPlan]:
    """Return the bytes of weights of every stage, and the plan of 1F1B on them."""
    captured = capture(TASKS[task].reference)
    placement = even_stages(captured.graph, stages)
    plan = ExecutionPlan.of(Candidate(placement, Method(policy="stash")), captured.graph, stages)
    of_operator = [operator.parameter_bytes for operator in captured.graph.operators]
    return [sum(of_operator[o] for o in stage.operators) for stage in placement.stages], plan


class PipeMareStudy(LearningStudy):
    """PipeMare's Tables 2 and 3."""

    name = "pipemare"
    question = "What does each of PipeMare's techniques need to a loss, in samples and memory?"
    needs = Needs(hours=6)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return every method on both tasks; for a look, on one in a few minibatches."""
        planned = 8 if short else None
        return [
            case.model_copy(update={"seeds": seeds or case.seeds})
            for task in (("digits",) if short else STAGES)
            for case in cases_of(task, planned)
        ]

    def methods(self, case: Case) -> Mapping[str, Late]:
        """Return those of both tables."""
        return rows(case.planned)

    def table(self, rows: Sequence[Learned]) -> Mapping[str, DataFrame]:
        """Return Tables 2 and 3."""
        ours, claims = [], []
        for task in STAGES:
            found = {case.method: self.of(rows, case) for case in cases_of(task)}
            ours.append((_title(task, found), _table(task, found)))
            claims += _claims(task, found)
        return section([*ours, ("The paper's Tables 2 and 3", PIPEMARE_TABLES_2_AND_3)], claims)


Found = Mapping[str, Learned | None]
"""What is known of each method."""


def cases_of(task: str, planned: int | None = None) -> list[Case]:
    """Return the methods on a task."""
    planned = planned or TASKS[task].minibatches
    return [
        Case(
            task=task,
            optimizer=_OPTIMIZERS[task],
            method=method,
            stages=1 if row.method.flushes else STAGES[task],
            planned=planned,
        )
        for method, row in rows(planned).items()
    ]


def _name(task: str) -> str:
    return f"{TASKS[task].title}, {TITLES[_OPTIMIZERS[task]]}"


def _title(task: str, found: Found) -> str:
    return (
        f"{_name(task)}, {STAGES[task]} stages; every method at its own best rate; after "
        f"{TASKS[task].minibatches} minibatches, and to the loss {target_text(found['GPipe'])}. "
        "Utilisation and time are those of the schedule with passes of one length, GPipe's with "
        f"N = {MICROBATCHES}; a minibatch of a pipeline that never waits takes 1"
    )


def _table(task: str, found: Found) -> DataFrame:
    lines = []
    for method, row in rows(TASKS[task].minibatches).items():
        learned = found[method]
        times = list(_times(task, learned).values())
        done = sum(STUDY.counted(learned).values())
        scores = [] if learned is None else list(learned.scores.values())
        lines.append(
            {
                "method": method,
                "held-out loss": quality_text(learned),
                "accuracy in %": spread(scores, 1) if task == "digits" else "–",
                "minibatches to the loss": STUDY.reached_text(learned),
                "utilisation": f"{done / sum(times):.0%}" if times else NOT_YET,
                "time to the loss": spread(times, 0),
                "weights and optimizer": f"{weight_memory(task, row, STAGES[task]):.2f}×",
            }
        )
    return DataFrame(lines)


def _claims(task: str, found: Found) -> list[Claim]:
    where = _name(task)

    def quality(method: str) -> dict[int, float]:
        learned = found[method]
        losses = {} if learned is None else learned.losses
        return {seed: -loss for seed, loss in losses.items()}

    gpipe = quality("GPipe")
    noise = statistics.stdev(gpipe.values()) if len(gpipe) > 1 else 0.0
    alike = [
        judged(f"{method} ends as good as GPipe", where, quality(method), gpipe, noise)
        for method in ("T1", "T1+T2", "T1+T2+W", "PipeDream")
    ]
    better = [
        judged(f"{first} ends better than {second}", where, quality(first), quality(second))
        for first, second in (
            ("T1", "neither"),
            ("T1", "T2"),
            ("T1+T2", "T1"),
            ("T1+T2+W", "T1+T2"),
            ("T1+T2", "PipeDream"),
        )
    ]
    sooner = []
    for method in ("T1", "T1+T2", "T1+T2+W"):
        learned = found[method]
        sooner.append(
            judged_seconds(
                f"{method} is there sooner than GPipe",
                where,
                _times(task, learned),
                _times(task, found["GPipe"]),
                first_is_least=learned is not None and learned.missed > 0,
            )
        )
    return [*alike, *better, *sooner]


def _times(task: str, learned: Learned | None) -> dict[int, float]:
    """Return the time to the loss of each seed, over that of a stage's minibatch."""
    if learned is None:
        return {}
    row = rows(learned.case.planned)[learned.case.method]
    return {
        seed: done * time_factor(row, STAGES[task], done)
        for seed, done in STUDY.counted(learned).items()
    }


STUDY = PipeMareStudy()
