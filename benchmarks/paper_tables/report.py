"""The tables of docs/papers.md: ours, the paper's, and which of its claims hold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from pandas import DataFrame

from benchmarks.paper_tables import pipedream, pipemare, pipeoptim
from benchmarks.paper_tables.claims import (
    NOT_YET,
    Claim,
    claims_table,
    decided,
    judged,
    judged_seconds,
    spread,
)
from benchmarks.paper_tables.learning import TASKS, Learned
from benchmarks.paper_tables.learning_study import LONGEST, Progress
from benchmarks.paper_tables.papers import (
    PIPEDREAM_TABLE_1,
    PIPEMARE_TABLES_2_AND_3,
    PIPEOPTIM_TABLE_V,
    PIPEOPTIM_TABLE_VI,
)
from benchmarks.paper_tables.pipedream import DATA_PARALLEL, PIPEDREAM, Timing, Training
from benchmarks.paper_tables.pipeoptim import StageMemory, Throughput
from benchmarks.paper_tables.result_files import Results
from benchmarks.report import markdown

BEGIN = "<!-- results: written by benchmarks.paper_tables -->"
END = "<!-- end of results -->"


def report(results: Results) -> str:
    """Return all sections."""
    machines = sorted(
        {timing.machine for timing in results.timings}
        | {sample.machine for sample in results.throughput}
    )
    return "\n".join(
        [
            "Timed on: " + ("; ".join(machines) or NOT_YET) + ".\n",
            pipedream_section(results.timings, results.trainings),
            pipeoptim_section(results.throughput, results.memory, results.pipeoptim),
            pipemare_section(results.pipemare),
        ]
    )


def _section(title: str, ours: Sequence[tuple[str, DataFrame]], claims: Sequence[Claim]) -> str:
    parts = [f"### {title}\n"]
    for text, frame in ours:
        parts += [f"{text}\n", markdown(frame) if len(frame) else NOT_YET, ""]
    return "\n".join(
        [*parts, "What the paper says, and what shows here:\n"]
        + [markdown(claims_table(claims)) if claims else NOT_YET, ""]
    )


# PipeDream


def pipedream_section(timings: Sequence[Timing], trainings: Sequence[Training]) -> str:
    """Return Table 1 and figure 11."""
    rows, claims = [], []
    for timing in timings:
        ratio = _speed_up(timing)
        epochs = _epochs_to_target(timing, trainings)
        plain, theirs = (epochs[way] for way in (DATA_PARALLEL, PIPEDREAM))
        both = bool(plain and theirs)
        to_loss = ratio * statistics.mean(plain) / statistics.mean(theirs) if both else None
        learns = pipedream.MODELS[timing.model].learns
        rows.append(
            {
                "model, data": timing.model,
                "links": f"{timing.links} ({timing.bandwidth / 1e6:.0f} MB/s)",
                "configuration": timing.placement.configuration,
                "epoch time": f"{ratio:.2f}×",
                "time to loss": f"{to_loss:.2f}×" if to_loss else NOT_YET if learns else "–",
                "epochs, data parallelism": spread(plain, 1) if learns else "–",
                "epochs, PipeDream": spread(theirs, 1) if learns else "–",
            }
        )
        where = f"{timing.model}, {timing.links}"
        claims.append(
            judged_seconds(
                "an epoch takes less time than with data parallelism",
                where,
                dict(enumerate(timing.seconds[PIPEDREAM])),
                dict(enumerate(timing.seconds[DATA_PARALLEL])),
            )
        )
        if learns:
            claims.append(
                judged_seconds(
                    "about as many epochs (±10%) to the loss (figure 11)",
                    where,
                    dict(enumerate(theirs)),
                    dict(enumerate(plain)),
                    alike_within=0.1,
                )
            )
    return _section(
        "PipeDream: Table 1 and figure 11",
        [
            (
                "Speed-up of PipeDream's planner's configuration over data parallelism on four "
                "emulated accelerators; epochs to the loss that data parallelism has after three "
                "quarters of its own (not reached counts as the last):",
                DataFrame(rows),
            ),
            ("The paper's Table 1:", PIPEDREAM_TABLE_1),
        ],
        claims,
    )


def _speed_up(timing: Timing) -> float:
    medians = {way: statistics.median(found) for way, found in timing.seconds.items()}
    return medians[DATA_PARALLEL] / medians[PIPEDREAM]


def _epochs_to_target(timing: Timing, trainings: Sequence[Training]) -> dict[str, list[float]]:
    """Return the epochs of each seed, by the way of training; none before all are trained."""
    model = pipedream.MODELS[timing.model]
    operators = sum(len(stage.operators) for stage in timing.placement.stages)
    workers = 1 + max(timing.placement.accelerators)
    plain = pipedream.everywhere(operators, workers).placement
    found: dict[str, list[float]] = {}
    target = pipedream.target_of(trainings, timing.model, plain, model.epochs)
    for way, placement in ((DATA_PARALLEL, plain), (PIPEDREAM, timing.placement)):
        chosen = (
            pipedream.training_of(trainings, timing.model, placement, model.epochs, seed)
            for seed in pipedream.SEEDS
        )
        found[way] = [
            (training.minibatches_to(target) or training.points[-1].minibatches)
            / timing.minibatches
            for training in chosen
            if training is not None and target is not None
        ]
    return found


# PipeOptim


def pipeoptim_section(
    throughput: Sequence[Throughput], memory: Sequence[StageMemory], learned: Sequence[Learned]
) -> str:
    """Return figure 6 and Tables II, V and VI."""
    seconds = _seconds_of(throughput)
    progress = Progress(pipeoptim.studies(short=False)[0], learned)
    return _section(
        "PipeOptim: figure 6, Tables II, V and VI",
        [
            (
                "Figure 6, minibatches a second (medians) and relative to GPipe, on four even "
                "stages:",
                _throughput_table(seconds),
            ),
            (
                "Table II: versions of the weights of stages 0 to 3, as the runtime held them / as "
                "the paper says; and resident memory beyond the naive schedule's, in MB, measured "
                "/ by the formula of the planners, activations included:",
                _memory_table(memory),
            ),
            ("The paper's Table V, the largest minibatch of a GPU:", PIPEOPTIM_TABLE_V),
            (
                "Table VI: the digits CNN on four stages, SGDM at GPipe's best rate; the loss to "
                f"reach is {_target_text(progress)}:",
                _overall_table(progress, seconds),
            ),
            ("The paper's Table VI:", PIPEOPTIM_TABLE_VI),
        ],
        [
            *_throughput_claims(seconds),
            _memory_claim(memory),
            *_overall_claims(progress, seconds),
        ],
    )


Seconds = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Of a minibatch, by case, method and repetition."""


def _seconds_of(samples: Sequence[Throughput]) -> Seconds:
    found: dict[str, dict[str, dict[int, float]]] = {}
    for sample in samples:
        of = found.setdefault(sample.case, {}).setdefault(sample.method, {})
        of[sample.repetition] = sample.seconds
    return found


def _throughput_table(seconds: Seconds) -> DataFrame:
    cases = pipeoptim.cases(short=False)

    def cell(case: str, method: str) -> str:
        if method not in cases[case].methods():
            return "–"
        mine, gpipe = (seconds.get(case, {}).get(m) for m in (method, "GPipe"))
        if not (mine and gpipe):
            return NOT_YET
        median = statistics.median(mine.values())
        return f"{1 / median:.1f} ({statistics.median(gpipe.values()) / median:.2f}×)"

    return DataFrame(
        {
            "method": method,
            **{f"{case}, {cases[case].optimizer.name}": cell(case, method) for case in cases},
        }
        for method in pipeoptim.METHODS
    )


def _throughput_claims(seconds: Seconds) -> list[Claim]:
    claims = []
    for case in pipeoptim.cases(short=False):
        found = seconds.get(case, {})
        rivals = {m: of for m, of in found.items() if m != "GPipe"}
        slowest = max(rivals, key=lambda m: statistics.median(rivals[m].values()), default="")
        optim = found.get("PipeOptim", {})
        claims += [
            judged_seconds(
                f"GPipe has the lowest throughput (next: {slowest or NOT_YET})",
                case,
                rivals.get(slowest, {}),
                found.get("GPipe", {}),
            ),
            judged_seconds(
                "PipeOptim's is within 16.5% of PipeDream's",
                case,
                optim,
                found.get("PipeDream", {}),
                alike_within=0.165,
            ),
            judged_seconds("PipeOptim's is above XPipe's", case, optim, found.get("XPipe", {})),
        ]
    return claims


def _memory_table(memory: Sequence[StageMemory]) -> DataFrame:
    rows = []
    for method in pipeoptim.METHODS:
        stages = sorted((m for m in memory if m.method == method), key=lambda m: m.stage)
        if not stages:
            continue
        row = {"method": method}
        for stage in stages:
            row[f"versions, stage {stage.stage}"] = (
                f"{stage.versions:.2f} / {stage.formula_versions:g}"
            )
        for stage in stages:
            row[f"MB, stage {stage.stage}"] = (
                f"{stage.more_bytes / 1e6:.0f} / {stage.formula_more_bytes / 1e6:.0f}"
            )
        rows.append(row)
    return DataFrame(rows)


def _memory_claim(memory: Sequence[StageMemory]) -> Claim:
    papers = [m for m in memory if m.method != "PipeMare T2"]
    wrong = [f"{m.method}, stage {m.stage}" for m in papers if m.versions != m.formula_versions]
    return decided(
        "versions of the weights are those of Table II",
        f"{len(papers)} stages",
        not wrong if papers else None,
        "; ".join(wrong) or "all equal",
    )


def _target_text(progress: Progress) -> str:
    return NOT_YET if progress.target is None else f"{progress.target:.3f}"


def _overall_table(progress: Progress, seconds: Seconds) -> DataFrame:
    return DataFrame(
        {
            "method": method,
            "held-out accuracy in %": spread(_scores(progress, method), 1),
            "minibatches to the loss": _reached_text(progress, method),
            "time of a minibatch": f"{1000 * of:.1f} ms"
            if (of := _case_seconds(seconds, method))
            else NOT_YET,
            "time to the loss": f"{spread([of * m for m in _counted(progress, method).values()], 1)} s"
            if of and _counted(progress, method)
            else NOT_YET,
        }
        for method in progress.study.methods
    )


def _case_seconds(seconds: Seconds, method: str) -> float | None:
    found = seconds.get("digits CNN", {}).get(method)
    return statistics.median(found.values()) if found else None


def _overall_claims(progress: Progress, seconds: Seconds) -> list[Claim]:
    """Judge whether PipeOptim needs the least time to the target."""
    claims = []
    mine = _counted(progress, "PipeOptim")
    times = {m: _case_seconds(seconds, m) for m in progress.study.methods}
    for method in progress.study.methods:
        if method == "PipeOptim":
            continue
        theirs = _counted(progress, method)
        own, other = times["PipeOptim"], times[method]
        claims.append(
            judged_seconds(
                "PipeOptim needs the least time to the accuracy",
                f"digits CNN, against {method}",
                {seed: own * m for seed, m in mine.items()} if own else {},
                {seed: other * m for seed, m in theirs.items()} if other else {},
            )
        )
        if method != "GPipe":
            claims.append(
                judged_seconds(
                    "PipeOptim needs the fewest samples of the asynchronous methods",
                    f"digits CNN, against {method}",
                    mine,
                    theirs,
                )
            )
    return claims


# PipeMare


def pipemare_section(learned: Sequence[Learned]) -> str:
    """Return Tables 2 and 3."""
    ours, claims = [], []
    for study in pipemare.studies(short=False):
        progress = Progress(study, learned)
        ours.append((_pipemare_title(progress), _pipemare_table(progress)))
        claims += _pipemare_claims(progress)
    ours.append(("The paper's Tables 2 and 3:", PIPEMARE_TABLES_2_AND_3))
    return _section("PipeMare: Tables 2 and 3", ours, claims)


def _pipemare_title(progress: Progress) -> str:
    study = progress.study
    return (
        f"{TASKS[study.task].title}, {study.stages} stages; every method at its own best rate; "
        f"after {study.planned} minibatches, and to the loss {_target_text(progress)}. "
        "Utilisation and time are those of the schedule with passes of one length, GPipe's with "
        f"N = {pipemare.MICROBATCHES}; a minibatch of a pipeline that never waits takes 1:"
    )


def _pipemare_table(progress: Progress) -> DataFrame:
    study, rows = progress.study, []
    for method in study.methods:
        row, times = study.row(method), _times(progress, method)
        counted = list(_counted(progress, method).values())
        factor = (
            pipemare.time_factor(row, study.stages, statistics.mean(counted)) if counted else None
        )
        rows.append(
            {
                "method": method,
                "held-out loss": _quality_text(progress, method),
                "accuracy in %": spread(_scores(progress, method), 1)
                if study.task == "digits"
                else "–",
                "minibatches to the loss": _reached_text(progress, method),
                "utilisation": f"{1 / factor:.0%}" if factor else NOT_YET,
                "time to the loss": spread(list(times.values()), 0) if times else NOT_YET,
                "weights and optimizer": f"{pipemare.weight_memory(study.task, row, study.stages):.2f}×",
            }
        )
    return DataFrame(rows)


def _pipemare_claims(progress: Progress) -> list[Claim]:
    where = TASKS[progress.study.task].title

    def quality(method: str) -> dict[int, float]:
        return {f.job.seed: -f.loss for f in progress.finals(method) if math.isfinite(f.loss)}

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
        )
        for method in ("T1", "T1+T2", "T1+T2+W")
    ]
    return [*alike, *better, *sooner]


def _times(progress: Progress, method: str) -> dict[int, float]:
    """Return the time to the loss of each seed, over that of a stage's minibatch."""
    study, row = progress.study, progress.study.row(method)
    return {
        seed: done * pipemare.time_factor(row, study.stages, done)
        for seed, done in _counted(progress, method).items()
    }


def _quality_text(progress: Progress, method: str) -> str:
    finals = progress.finals(method)
    losses = [final.loss for final in finals if math.isfinite(final.loss)]
    diverged = len(finals) - len(losses)
    text = spread(losses) if losses or not finals else "diverged"
    return f"{text} ({diverged} of {len(finals)} diverged)" if diverged and losses else text


def _scores(progress: Progress, method: str) -> list[float]:
    scores = (final.at_plan().score for final in progress.finals(method))
    return [100 * score for score in scores if score is not None]


def _counted(progress: Progress, method: str) -> dict[int, float]:
    """Return the minibatches of each seed to the target; who is not there counts as at the end."""
    target = progress.target
    if target is None:
        return {}
    return {
        final.job.seed: final.minibatches_to(target) or LONGEST * progress.study.planned
        for final in progress.finals(method)
    }


def _reached_text(progress: Progress, method: str) -> str:
    counted = _counted(progress, method)
    if not counted or progress.target is None:
        return NOT_YET
    target = progress.target
    missed = sum(f.minibatches_to(target) is None for f in progress.finals(method))
    text = spread(list(counted.values()), 0)
    return f"{text} ({missed} of {len(counted)} not there)" if missed else text
