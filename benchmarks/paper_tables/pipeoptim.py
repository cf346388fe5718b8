"""PipeOptim's throughput, memory and overall performance: six methods on the same straight split.

All recompute activations, as in the paper, and GPipe has four microbatches. 2BW makes an update of
as many minibatches as there are stages, as in PipeDream's code, which the paper used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.deep_models import even_stages
from benchmarks.machine import this_machine
from benchmarks.models import MODELS, SMALL_MODELS
from benchmarks.models import reference as chain
from benchmarks.paper_tables.learning import Row
from benchmarks.paper_tables.learning_study import Study
from drlpp.capturing.capture import capture
from drlpp.costs.memory import MemoryModel
from drlpp.costs.workload import Workload
from drlpp.errors import RunFailure
from drlpp.io.documents import Record
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Option
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


def learning_rows(minibatches: int) -> Mapping[str, Row]:
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
    return {name: Row(method) for name, method in replayed.items()}


def studies(short: bool) -> list[Study]:
    """Return what Table VI replays: SGDM at the baseline's rate, as in the paper."""
    if short:
        return [Study("digits", STAGES, learning_rows, False, minibatches=8, seeds=(0, 1))]
    return [Study("digits", STAGES, learning_rows, own_rates=False)]


@dataclass(frozen=True)
class Case:
    """A model whose throughput is measured, with its optimizer."""

    model: ModelReference
    optimizer: OptimizerSpec

    def methods(self) -> list[str]:
        """Return who takes part."""
        is_sgdm = self.optimizer.name == "sgd"
        return [name for name in METHODS if is_sgdm or name != _FOR_SGDM]


def cases(short: bool) -> dict[str, Case]:
    """Return the models, with the papers' three optimizers."""
    sgdm = OptimizerSpec.parse("sgd", lr=0.01, momentum=0.9, weight_decay=5e-4)
    adam, adamw = OptimizerSpec.parse("adam", lr=0.001), OptimizerSpec.parse("adamw", lr=0.001)
    sizes = SMALL_MODELS if short else {k: v | {"batch_size": 16} for k, v in MODELS.items()}
    found = {
        "convolutions": Case(chain("convolutions", sizes["convolutions"]), sgdm),
        "digits CNN": Case(ModelReference.named("benchmarks.deep_models:digits_cnn"), sgdm),
        "feed-forwards": Case(chain("feed_forwards", sizes["feed_forwards"]), adamw),
        "decoder": Case(ModelReference.named("benchmarks.deep_models:decoder"), adam),
    }
    return {name: found[name] for name in (("convolutions",) if short else found)}


class Throughput(Record):
    """A sample: the seconds of a minibatch of a method, in steady state.

    Attributes:
        case, method: by their names.
        repetition: which of its samples.
        seconds: of a minibatch.
        machine: where and when.
    """

    case: str
    method: str
    repetition: int
    seconds: float
    machine: str


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


def measure_throughput(
    known: set[tuple[str, str, int]], tell: Callable[[Throughput], None], *, short: bool
) -> None:
    """Measure everybody in turns on emulated accelerators; ``known`` samples are not taken again.

    Raises:
        RunFailure: a method cannot be run.
    """
    for name, case in cases(short).items():
        turns = [
            (name, method, repetition)
            for repetition in range(1 if short else REPETITIONS)
            # There and back: what drifts hits all alike.
            for method in (case.methods() if repetition % 2 == 0 else reversed(case.methods()))
        ]
        missing = [turn for turn in turns if turn not in known]
        if not missing:
            continue
        captured = capture(case.model)
        placement = even_stages(captured.graph, STAGES)
        with ClusterSession(
            captured, STAGES, optimizer=case.optimizer, speeds=[SPEED] * STAGES, device="cpu"
        ) as session:
            for _, method, repetition in missing:
                recomputing = METHODS[method].model_copy(update={"recompute": True})
                outcome = session.measure(placement, 4 if short else MINIBATCHES, recomputing)
                if not isinstance(outcome, Measurement):
                    raise RunFailure(f"{name}, {method}: {outcome.reason}")
                tell(
                    Throughput(
                        case=name,
                        method=method,
                        repetition=repetition,
                        seconds=outcome.seconds_per_minibatch,
                        machine=str(this_machine()),
                    )
                )


MEMORY_MODEL: dict[str, Option] = {"batch_size": 16, "hidden": 512, "tokens": 32}
"""Of the feed-forwards whose memory is measured: a stage has 17 MB of weights."""


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


def measure_memory(*, short: bool) -> Iterator[StageMemory]:
    """Run every method, and yield what the stages held; how fast they run does not matter."""
    options = SMALL_MODELS["feed_forwards"] if short else MEMORY_MODEL
    captured = capture(chain("feed_forwards", options))
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
                stage = deployment.pipeline.stage_of(worker)
                yield StageMemory(
                    method=name,
                    stage=stage,
                    versions=result.peak_weight_bytes / result.weight_bytes,
                    more_bytes=result.peak_memory_bytes - plain[together][worker],
                    formula_more_bytes=round(formula(method, stage) - formula(naive, stage)),
                )
