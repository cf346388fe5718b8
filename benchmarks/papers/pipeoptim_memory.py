"""PipeOptim's Table II: the versions of weights, and the memory, that each method holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pandas import DataFrame

from benchmarks.deep_models import even_stages
from benchmarks.models import SMALL_MODELS
from benchmarks.models import reference as chain
from benchmarks.papers.claims import Claim, decided, section
from benchmarks.papers.figures import PIPEOPTIM_TABLE_V
from benchmarks.papers.pipeoptim import METHODS, STAGES
from benchmarks.study import Row, Study
from drlpp.capturing.capture import capture
from drlpp.costs.memory import MemoryModel
from drlpp.costs.workload import Workload
from drlpp.io.documents import Record
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec


class StageMemory(Record):
    """What a stage holds under a method.

    Attributes:
        method: its name.
        stage: from 0.
        versions: of its weights that the runtime held at most, counted by storage.
        more_bytes: resident at the peak, beyond the naive schedule's, which holds one version and
            the activations of one minibatch.
        formula_more_bytes: the same by the formula that planners count with.
    """

    method: str
    stage: int
    versions: float
    more_bytes: int
    formula_more_bytes: int


def formula_versions(method: str, stage: int) -> float:
    """Return the versions of a stage's weights by the paper's Table II, and of PipeMare's T2."""
    last = stage == STAGES - 1
    return {
        "GPipe": 1,
        "vanilla": 1,
        "PipeDream": STAGES - stage,
        "2BW": 2,
        "SpecTrain": 2,
        "XPipe": 2,
        "PipeOptim": 1 if last else 2,
        # W_{t+s}, while a backward runs with others; δ is no version.
        "PipeMare T2": 1 if last else 2,
    }[method]


class MemoryCase(Record):
    """The model of feed-forwards whose memory is measured: a stage has 17 MB of weights."""

    batch_size: int = 16
    hidden: int = 512
    tokens: int = 32


class Held(Row):
    """What the stages hold under every method."""

    case: MemoryCase
    stages: tuple[StageMemory, ...]


class Memory(Study[MemoryCase, Held]):
    """PipeOptim's Table II."""

    name = "pipeoptim-memory"
    question = "Does each method hold the versions of weights of PipeOptim's Table II?"
    row = Held

    def cases(self, seeds: int | None, *, short: bool) -> list[MemoryCase]:
        """Return the one model; how fast it runs does not matter."""
        return [MemoryCase(**SMALL_MODELS["feed_forwards"])] if short else [MemoryCase()]  # type: ignore[arg-type]

    def run(self, case: MemoryCase) -> Held:
        """Run every method, and see what the stages hold."""
        return Held(case=case, stages=tuple(measure_memory(case)))

    def table(self, rows: Sequence[Held]) -> Mapping[str, DataFrame]:
        """Return Table II and the paper's Table V."""
        memory = [stage for row in rows for stage in row.stages]
        return section(
            [
                (
                    "Table II: versions of the weights of stages 0 to 3, as the runtime held them "
                    "/ as the paper says; and resident memory beyond the naive schedule's, in MB, "
                    "measured / by the formula of the planners, activations included",
                    _memory_table(memory),
                ),
                ("The paper's Table V, the largest minibatch of a GPU", PIPEOPTIM_TABLE_V),
            ],
            [_memory_claim(memory)],
        )


def measure_memory(case: MemoryCase) -> Iterator[StageMemory]:
    """Run every method, and yield what the stages held; how fast they run does not matter."""
    captured = capture(chain("feed_forwards", case.model_dump()))
    placement = even_stages(captured.graph, STAGES)
    optimizer = OptimizerSpec.parse("adamw", lr=0.001)
    naive = Method(schedule="gpipe", policy="sync")
    with ClusterSession(captured, STAGES, optimizer=optimizer, device="cpu") as session:
        profile, _ = session.profile(1)

        def formula(method: Method, stage: int) -> float:
            plan = session.plan(placement, method)
            operators = placement.stages[stage].operators
            work = Workload.of(profile, method).stage(operators, last=stage == STAGES - 1)
            # One minibatch at a time has as much in flight as GPipe's parts together.
            in_flight = 1 if method.flushes else plan.in_flight[stage]
            return float(MemoryModel.of(method, optimizer).stage_bytes(work, in_flight, 1))

        plain: dict[int, dict[int, int]] = {}
        for name, method in METHODS.items():
            together = method.accumulate
            if together not in plain:
                summing = naive.model_copy(update={"accumulate": together})
                _, results = session.run(session.deploy(placement, summing), 2 * STAGES)
                plain[together] = {w: r.peak_memory_bytes for w, r in results.items()}
            deployment = session.deploy(placement, method)
            _, results = session.run(deployment, 2 * STAGES)
            for worker, result in sorted(results.items()):
                stage = deployment.plan.pipeline.stage_of(worker)
                yield StageMemory(
                    method=name,
                    stage=stage,
                    versions=result.peak_weight_bytes / result.weight_bytes,
                    more_bytes=result.peak_memory_bytes - plain[together][worker],
                    formula_more_bytes=round(formula(method, stage) - formula(naive, stage)),
                )


def _memory_table(memory: Sequence[StageMemory]) -> DataFrame:
    rows = []
    for method in METHODS:
        stages = sorted((m for m in memory if m.method == method), key=lambda m: m.stage)
        if not stages:
            continue
        row = {"method": method}
        for stage in stages:
            row[f"versions, stage {stage.stage}"] = (
                f"{stage.versions:.2f} / {formula_versions(method, stage.stage):g}"
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
        if m.versions != formula_versions(m.method, m.stage)
    ]
    return decided(
        "versions of the weights are those of Table II",
        f"{len(papers)} stages",
        not wrong if papers else None,
        "; ".join(wrong) or "all equal",
    )


STUDY = Memory()
