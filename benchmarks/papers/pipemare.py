"""PipeMare's Tables 2 and 3: what each technique needs to a loss, in samples, time and memory.

A pipeline of the paper with P stages and N microbatches has gradients of stage i late by
τ = ⌈(2(P − i) + 1) / N⌉ updates. With N = 2 that is P − i + 1, which is what 1F1B over whole
minibatches has on P stages: T1's τ = s + 1. So whole minibatches are replayed, GPipe's too, whose
microbatches change nothing but rounding; its time is that of N = 2.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import lru_cache

from pandas import DataFrame

from benchmarks.deep_models import even_stages
from benchmarks.papers.claims import NOT_YET, Claim, judged, judged_seconds, section, spread
from benchmarks.papers.figures import PIPEMARE_TABLES_2_AND_3
from benchmarks.papers.learning import TASKS, Late, Learned
from benchmarks.papers.progress import (
    LearningStudy,
    LearningTable,
    Progress,
    counted,
    missed,
    quality_text,
    reached_text,
    scores,
    target_text,
)
from benchmarks.study import Needs
from drlpp.capturing.capture import capture
from drlpp.costs.memory import MemoryModel
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.schedule.actions import Action, Backward, Forward, Update
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.weight_policies import SUGGESTED_CORRECTION_DECAY
from drlpp.timeline.timeline import play

STAGES = {"digits": 4, "text": 8}
"""By the task: the CNN learns too little in 400 minibatches with gradients that are later."""
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
    spec = TASKS[task].spec(0)
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
    of = TASKS[task]
    captured = capture(ModelReference.named(of.model, batch_size=of.batch_size))
    placement = even_stages(captured.graph, stages)
    plan = ExecutionPlan.of(Candidate(placement, Method(policy="stash")), captured.graph, stages)
    of_operator = [operator.parameter_bytes for operator in captured.graph.operators]
    return [sum(of_operator[o] for o in stage.operators) for stage in placement.stages], plan


class PipeMareStudy(LearningStudy):
    """PipeMare's Tables 2 and 3."""

    name = "pipemare"
    question = "What does each of PipeMare's techniques need to a loss, in samples and memory?"
    needs = Needs(hours=6)

    def tables(self, *, short: bool) -> list[LearningTable]:
        """Return both tasks; for a look, one in a few minibatches."""
        if short:
            return [LearningTable("digits", 4, rows, minibatches=8, seeds=(0, 1))]
        return [LearningTable(task, stages, rows) for task, stages in STAGES.items()]

    def table(self, rows: Sequence[Learned]) -> Mapping[str, DataFrame]:
        """Return Tables 2 and 3."""
        ours, claims = [], []
        for table in self.tables(short=False):
            progress = Progress(table, rows)
            ours.append((_title(progress), _table(progress)))
            claims += _claims(progress)
        return section([*ours, ("The paper's Tables 2 and 3", PIPEMARE_TABLES_2_AND_3)], claims)


def _title(progress: Progress) -> str:
    study = progress.study
    return (
        f"{TASKS[study.task].title}, {study.stages} stages; every method at its own best rate; "
        f"after {study.planned} minibatches, and to the loss {target_text(progress)}. "
        "Utilisation and time are those of the schedule with passes of one length, GPipe's with "
        f"N = {MICROBATCHES}; a minibatch of a pipeline that never waits takes 1"
    )


def _table(progress: Progress) -> DataFrame:
    study, rows = progress.study, []
    for method in study.methods:
        row, times = study.row(method), list(_times(progress, method).values())
        done = sum(counted(progress, method).values())
        memory = weight_memory(study.task, row, study.stages)
        scored = study.task == "digits"
        rows.append(
            {
                "method": method,
                "held-out loss": quality_text(progress, method),
                "accuracy in %": spread(scores(progress, method), 1) if scored else "–",
                "minibatches to the loss": reached_text(progress, method),
                "utilisation": f"{done / sum(times):.0%}" if times else NOT_YET,
                "time to the loss": spread(times, 0),
                "weights and optimizer": f"{memory:.2f}×",
            }
        )
    return DataFrame(rows)


def _claims(progress: Progress) -> list[Claim]:
    where = TASKS[progress.study.task].title

    def quality(method: str) -> dict[int, float]:
        return {f.case.seed: -f.loss for f in progress.finals(method) if math.isfinite(f.loss)}

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
    sooner = [
        judged_seconds(
            f"{method} is there sooner than GPipe",
            where,
            _times(progress, method),
            _times(progress, "GPipe"),
            first_is_least=missed(progress, method) > 0,
        )
        for method in ("T1", "T1+T2", "T1+T2+W")
    ]
    return [*alike, *better, *sooner]


def _times(progress: Progress, method: str) -> dict[int, float]:
    """Return the time to the loss of each seed, over that of a stage's minibatch."""
    study, row = progress.study, progress.study.row(method)
    return {
        seed: done * time_factor(row, study.stages, done)
        for seed, done in counted(progress, method).items()
    }


STUDY = PipeMareStudy()
