"""PipeOptim's throughput, memory and overall performance: six methods on the same straight split.

All recompute activations, as in the paper, and GPipe has four microbatches. 2BW makes an update of
as many minibatches as there are stages, as in PipeDream's code, which the paper used.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pandas import DataFrame

from benchmarks.deep_models import even_stages
from benchmarks.learning.study import Case as LearningCase
from benchmarks.learning.study import Late, Learned, LearningStudy, target_text
from benchmarks.learning.tasks import TASKS
from benchmarks.models import MODELS, SMALL_MODELS
from benchmarks.models import reference as chain
from benchmarks.papers.claims import NOT_YET, Claim, judged_seconds, section, spread
from benchmarks.papers.figures import PIPEOPTIM_TABLE_VI
from benchmarks.study import Needs, Row, Study, this_machine
from drlpp.capturing.capture import capture
from drlpp.errors import RunFailure
from drlpp.io.documents import Record
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

STAGES = 4
SPEED = 0.4
"""Of an accelerator, in cores: four of them leave a fifth of two cores for everything else."""
MINIBATCHES = 12
REPETITIONS = 6

METHODS: dict[str, Method] = {
    "GPipe": Method(schedule="gpipe", policy="sync", microbatches=4),
    "PipeDream": Method(policy="stash"),
    "2BW": Method(policy="2bw", accumulate=STAGES),
    "SpecTrain": Method(policy="spectrain"),
    "XPipe": Method(policy="xpipe"),
    "PipeOptim": Method(policy="pipeoptim"),
    "vanilla": Method(policy="vanilla"),
    "PipeMare T2": Method(policy="pipemare", correction_decay=0.135),
}
"""Those of the paper, and two that other tables ask for."""
_FOR_SGDM = "SpecTrain"
"""The paper has it with no other optimizer."""


def learning_rows(minibatches: int) -> Mapping[str, Late]:
    """Return the methods of Table VI, to be replayed; the first is the baseline.

    2BW's microbatches are parts of a minibatch here, so that all make as many updates.
    """
    replayed = {
        "GPipe": Method(schedule="gpipe", policy="sync"),
        "PipeDream": METHODS["PipeDream"],
        "2BW": Method(policy="2bw", microbatches=STAGES),
        "SpecTrain": METHODS["SpecTrain"],
        "XPipe": METHODS["XPipe"],
        "PipeOptim": METHODS["PipeOptim"],
    }
    return {name: Late(method) for name, method in replayed.items()}


@dataclass(frozen=True)
class Timed:
    """A model whose throughput is measured, with its optimizer."""

    model: ModelReference
    optimizer: OptimizerSpec

    def methods(self) -> list[str]:
        """Return who takes part."""
        is_sgdm = self.optimizer.name == "sgd"
        return [name for name in METHODS if is_sgdm or name != _FOR_SGDM]


def timed_models(*, short: bool) -> dict[str, Timed]:
    """Return the models, with the papers' three optimizers."""
    sgdm = OptimizerSpec.parse("sgd", lr=0.01, momentum=0.9, weight_decay=5e-4)
    adam, adamw = OptimizerSpec.parse("adam", lr=0.001), OptimizerSpec.parse("adamw", lr=0.001)
    sizes = SMALL_MODELS if short else {k: v | {"batch_size": 16} for k, v in MODELS.items()}
    found = {
        "convolutions": Timed(chain("convolutions", sizes["convolutions"]), sgdm),
        "digits CNN": Timed(ModelReference.named("benchmarks.deep_models:digits_cnn"), sgdm),
        "feed-forwards": Timed(chain("feed_forwards", sizes["feed_forwards"]), adamw),
        "decoder": Timed(ModelReference.named("benchmarks.deep_models:decoder"), adam),
    }
    return {name: found[name] for name in (("convolutions",) if short else found)}


class Case(Record):
    """A model on which all methods run in turns, and how often for how many minibatches."""

    model: str
    repetitions: int = REPETITIONS
    minibatches: int = MINIBATCHES


class Throughput(Row):
    """Seconds of a minibatch in steady state, of every method and each of its turns."""

    case: Case
    seconds: dict[str, tuple[float, ...]]
    machine: str


class Throughputs(Study[Case, Throughput]):
    """PipeOptim's figure 6, and the times of its Table VI."""

    name = "pipeoptim"
    question = "How does PipeOptim's throughput compare with the other methods' (figure 6)?"
    row = Throughput
    needs = Needs(quiet=True, hours=0.5)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return every model."""
        if short:
            return [Case(model="convolutions", repetitions=1, minibatches=4)]
        return [
            Case(model=model, repetitions=seeds or REPETITIONS)
            for model in timed_models(short=False)
        ]

    def run(self, case: Case) -> Throughput:
        """Measure all methods in turns on emulated accelerators.

        Raises:
            RunFailure: a method cannot be run.
        """
        timed = timed_models(short=case.minibatches < MINIBATCHES)[case.model]
        captured = capture(timed.model)
        placement = even_stages(captured.graph, STAGES)
        seconds: dict[str, list[float]] = {method: [] for method in timed.methods()}
        with ClusterSession(
            captured, STAGES, optimizer=timed.optimizer, speeds=[SPEED] * STAGES, device="cpu"
        ) as session:
            for repetition in range(case.repetitions):
                # There and back: what drifts hits all alike.
                for method in seconds if repetition % 2 == 0 else reversed(seconds):
                    recomputing = METHODS[method].model_copy(update={"recompute": True})
                    outcome = session.measure(placement, case.minibatches, recomputing)
                    if not isinstance(outcome, Measurement):
                        raise RunFailure(f"{case.model}, {method}: {outcome.reason}")
                    seconds[method].append(outcome.seconds_per_minibatch)
        return Throughput(
            case=case,
            seconds={method: tuple(found) for method, found in seconds.items()},
            machine=this_machine(),
        )

    def table(self, rows: Sequence[Throughput]) -> Mapping[str, DataFrame]:
        """Return figure 6 and what it shows."""
        seconds = _seconds_of(rows)
        return section(
            [
                (
                    "Figure 6, minibatches a second (medians) and relative to GPipe, on four even "
                    "stages",
                    _throughput_table(seconds),
                )
            ],
            _throughput_claims(seconds),
        )


class Learning(LearningStudy):
    """PipeOptim's Table VI: SGDM at the baseline's rate, as in the paper."""

    name = "pipeoptim-learning"
    question = "Does PipeOptim need the least time to an accuracy (Table VI)?"
    needs = Needs(hours=2)

    def cases(self, seeds: int | None, *, short: bool) -> list[LearningCase]:
        """Return every method on the digits CNN; for a look, in a few minibatches."""
        planned = 8 if short else TASKS["digits"].minibatches
        return [
            LearningCase(
                task="digits",
                optimizer="sgd",
                method=method,
                stages=1 if late.method.flushes else STAGES,
                planned=planned,
                own_rate=late.method.flushes,
                seeds=seeds or 3,
            )
            for method, late in learning_rows(planned).items()
        ]

    def methods(self, case: LearningCase) -> Mapping[str, Late]:
        """Return those of Table VI."""
        return learning_rows(case.planned)

    def table(self, rows: Sequence[Learned]) -> Mapping[str, DataFrame]:
        """Return Table VI, with the times in git of the study of throughput."""
        return table_vi(rows, THROUGHPUT.stored())


def table_vi(rows: Sequence[Learned], timed: Sequence[Throughput]) -> dict[str, DataFrame]:
    """Return Table VI from runs that learned, and from the times of a minibatch."""
    found = {case.method: LEARNING.of(rows, case) for case in LEARNING.cases(None, short=False)}
    seconds = _seconds_of(timed)
    return section(
        [
            (
                "Table VI: the digits CNN on four stages, SGDM at GPipe's best rate; the loss to "
                f"reach is {target_text(found['GPipe'])}",
                _overall_table(found, seconds),
            ),
            ("The paper's Table VI", PIPEOPTIM_TABLE_VI),
        ],
        _overall_claims(found, seconds),
    )


Seconds = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Of a minibatch, by case, method and repetition."""


def _seconds_of(rows: Sequence[Throughput]) -> Seconds:
    return {
        row.case.model: {method: dict(enumerate(found)) for method, found in row.seconds.items()}
        for row in rows
    }


def _throughput_table(seconds: Seconds) -> DataFrame:
    known = timed_models(short=False)

    def cell(case: str, method: str) -> str:
        if method not in known[case].methods():
            return "–"
        mine, gpipe = (seconds.get(case, {}).get(m) for m in (method, "GPipe"))
        if not (mine and gpipe):
            return NOT_YET
        median = statistics.median(mine.values())
        return f"{1 / median:.1f} ({statistics.median(gpipe.values()) / median:.2f}×)"

    return DataFrame(
        {
            "method": method,
            **{f"{case}, {known[case].optimizer.name}": cell(case, method) for case in known},
        }
        for method in METHODS
    )


def _throughput_claims(seconds: Seconds) -> list[Claim]:
    claims = []
    for case in timed_models(short=False):
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


def _overall_table(found: Mapping[str, Learned | None], seconds: Seconds) -> DataFrame:
    rows = []
    for method, learned in found.items():
        each = _case_seconds(seconds, method)
        times = [each * m for m in LEARNING.counted(learned).values()] if each else []
        scores = [] if learned is None else list(learned.scores.values())
        rows.append(
            {
                "method": method,
                "held-out accuracy in %": spread(scores, 1),
                "minibatches to the loss": LEARNING.reached_text(learned),
                "time of a minibatch": f"{1000 * each:.1f} ms" if each else NOT_YET,
                "time to the loss": f"{spread(times, 1)} s" if times else NOT_YET,
            }
        )
    return DataFrame(rows)


def _case_seconds(seconds: Seconds, method: str) -> float | None:
    found = seconds.get("digits CNN", {}).get(method)
    return statistics.median(found.values()) if found else None


def _overall_claims(found: Mapping[str, Learned | None], seconds: Seconds) -> list[Claim]:
    """Judge whether PipeOptim needs the least time to the target."""
    claims = []
    mine = LEARNING.counted(found["PipeOptim"])
    times = {method: _case_seconds(seconds, method) for method in found}
    for method, learned in found.items():
        if method == "PipeOptim":
            continue
        theirs = LEARNING.counted(learned)
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


THROUGHPUT, LEARNING = Throughputs(), Learning()
