"""PipeMare's Tables 2 and 3: what each technique needs to a loss, in samples, time and memory.

A pipeline of the paper with P stages and N microbatches has gradients of stage i late by
τ = ⌈(2(P − i) + 1) / N⌉ updates. With N = 2 that is P − i + 1, which is what 1F1B over whole
minibatches has on P stages: T1's τ = s + 1. So whole minibatches are replayed, GPipe's too, whose
microbatches change nothing but rounding; its time is that of N = 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from benchmarks.deep_models import even_stages
from benchmarks.paper_tables.learning import TASKS, Row
from benchmarks.paper_tables.learning_study import Study
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


def rows(minibatches: int) -> Mapping[str, Row]:
    """Return the methods of both tables; the first is the baseline."""
    annealing, decay = minibatches // _ANNEALING_SHARE, SUGGESTED_CORRECTION_DECAY

    def pipemare(annealing: int, decay: float, warm_up: int = 0) -> Row:
        method = Method(policy="pipemare", annealing_minibatches=annealing, correction_decay=decay)
        return Row(method, warm_up)

    return {
        "GPipe": Row(Method(schedule="gpipe", policy="sync")),
        "PipeDream": Row(Method(policy="stash")),
        "neither": Row(Method(policy="vanilla")),
        "T1": pipemare(annealing, 0.0),
        "T2": pipemare(0, decay),
        "T1+T2": pipemare(annealing, decay),
        "T1+T2+W": pipemare(annealing, decay, minibatches // _WARM_UP_SHARE),
    }


def studies(short: bool) -> list[Study]:
    """Return what is replayed: both tasks; for a look, one in a few minibatches."""
    if short:
        return [Study("digits", 4, rows, minibatches=8, seeds=(0, 1))]
    return [Study(task, stages, rows) for task, stages in STAGES.items()]


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


def time_factor(row: Row, stages: int, done: float) -> float:
    """Return the mean time of ``done`` minibatches, over what one stage computes for each.

    Those of W take GPipe's.
    """
    flushed = minibatch_seconds(Method(schedule="gpipe", policy="sync"), stages, MICROBATCHES)
    if row.method.flushes:
        return flushed
    own = minibatch_seconds(row.method, stages)
    first = min(row.synchronous, done)
    return (first * flushed + (done - first) * own) / done


def weight_memory(task: str, row: Row, stages: int) -> float:
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
