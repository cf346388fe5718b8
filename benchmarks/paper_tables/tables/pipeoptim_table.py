"""PipeOptim's figure 6 and Tables II, V and VI."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pandas import DataFrame

from benchmarks.paper_tables import pipeoptim
from benchmarks.paper_tables.learning import Learned
from benchmarks.paper_tables.learning_study import Progress
from benchmarks.paper_tables.pipeoptim import StageMemory, Throughput
from benchmarks.paper_tables.tables.claims import NOT_YET, Claim, decided, judged_seconds, spread
from benchmarks.paper_tables.tables.papers import PIPEOPTIM_TABLE_V, PIPEOPTIM_TABLE_VI
from benchmarks.paper_tables.tables.parts import (
    counted,
    reached_text,
    scores,
    section,
    target_text,
)

Seconds = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Of a minibatch, by case, method and repetition."""


def pipeoptim_section(
    throughput: Sequence[Throughput], memory: Sequence[StageMemory], learned: Sequence[Learned]
) -> str:
    """Return figure 6 and Tables II, V and VI."""
    seconds = _seconds_of(throughput)
    progress = Progress(pipeoptim.studies(short=False)[0], learned)
    return section(
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
                f"reach is {target_text(progress)}:",
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
                f"{stage.versions:.2f} / {pipeoptim.formula_versions(method, stage.stage):g}"
            )
        for stage in stages:
            row[f"MB, stage {stage.stage}"] = (
                f"{stage.more_bytes / 1e6:.0f} / {stage.formula_more_bytes / 1e6:.0f}"
            )
        rows.append(row)
    return DataFrame(rows)


def _memory_claim(memory: Sequence[StageMemory]) -> Claim:
    papers = [m for m in memory if m.method != "PipeMare T2"]
    wrong = [
        f"{m.method}, stage {m.stage}"
        for m in papers
        if m.versions != pipeoptim.formula_versions(m.method, m.stage)
    ]
    return decided(
        "versions of the weights are those of Table II",
        f"{len(papers)} stages",
        not wrong if papers else None,
        "; ".join(wrong) or "all equal",
    )


def _overall_table(progress: Progress, seconds: Seconds) -> DataFrame:
    rows = []
    for method in progress.study.methods:
        each = _case_seconds(seconds, method)
        times = [each * m for m in counted(progress, method).values()] if each else []
        rows.append(
            {
                "method": method,
                "held-out accuracy in %": spread(scores(progress, method), 1),
                "minibatches to the loss": reached_text(progress, method),
                "time of a minibatch": f"{1000 * each:.1f} ms" if each else NOT_YET,
                "time to the loss": f"{spread(times, 1)} s" if times else NOT_YET,
            }
        )
    return DataFrame(rows)


def _case_seconds(seconds: Seconds, method: str) -> float | None:
    found = seconds.get("digits CNN", {}).get(method)
    return statistics.median(found.values()) if found else None


def _overall_claims(progress: Progress, seconds: Seconds) -> list[Claim]:
    """Judge whether PipeOptim needs the least time to the target."""
    claims = []
    mine = counted(progress, "PipeOptim")
    times = {m: _case_seconds(seconds, m) for m in progress.study.methods}
    for method in progress.study.methods:
        if method == "PipeOptim":
            continue
        theirs = counted(progress, method)
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
