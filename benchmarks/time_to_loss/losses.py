"""Held-out losses after every epoch, of pipelines on live workers and of plain PyTorch.

Nothing is emulated, and nothing is timed: what the workers compute does not depend on how fast they
are. Stages are split evenly by costs that are made up from sizes, so that they are always the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy
from pandas import DataFrame

from benchmarks.learning.race_tasks import RaceTask
from benchmarks.time_to_loss.seconds import DIVIDED, WHOLE
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.io.documents import Record
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.planners import PlanningProblem, even_split
from drlpp.racing.plain import PlainLearner
from drlpp.racing.rivals import PLAIN
from drlpp.racing.to_loss import Learner, PipelineLearner, RaceData
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.weight_policies import PIPEOPTIM
from drlpp.specs.cluster import Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec

_METHOD = Method(clip_norm=1.0)


class EpochLosses(Record):
    """One training.

    Attributes:
        kind: of training, as in the report of times.
        stages: of the pipeline, 1 for plain PyTorch.
        seed: of the order of the samples, and of dropout.
        losses: held-out, after every epoch.
    """

    kind: str
    stages: int
    seed: int
    losses: tuple[float, ...]


def train(
    task: RaceTask, depths: list[int], epochs: int, seeds: int, optimizer: str
) -> Iterator[EpochLosses]:
    """Train plain PyTorch, and both kinds of PipeOptim at every depth, with the task's own rate."""
    captured = capture(ModelReference.named(task.model))
    data = RaceData(captured, task.data)
    spec = OptimizerSpec.parse(optimizer, lr=task.rate)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for seed in range(seeds):
            plain = PlainLearner(
                captured,
                data.ordered(seed),
                folder / f"plain-{seed}",
                _METHOD,
                spec,
                threads=1,
                device="cpu",
                seed=seed,
            )
            losses = _losses(plain, data.first.minibatches, epochs)
            yield EpochLosses(kind=PLAIN, stages=1, seed=seed, losses=losses)
        for depth in depths:
            with ClusterSession(captured, depth, optimizer=spec, device="cpu") as session:
                for kind, parts in ((WHOLE, 1), (DIVIDED, depth)):
                    plan = session.plan(_candidate(captured, spec, depth, parts))
                    for seed in range(seeds):
                        pipeline = PipelineLearner(
                            session,
                            plan,
                            data.ordered(seed),
                            folder / f"{depth}-{parts}-{seed}",
                            spec,
                        )
                        losses = _losses(pipeline, data.first.minibatches, epochs)
                        yield EpochLosses(kind=kind, stages=depth, seed=seed, losses=losses)


def table(found: list[EpochLosses]) -> DataFrame:
    """Return mean and standard deviation over seeds after every epoch."""
    rows = {}
    for kind, stages in dict.fromkeys((one.kind, one.stages) for one in found):
        losses = numpy.array([o.losses for o in found if (o.kind, o.stages) == (kind, stages)])
        spread = losses.std(axis=0, ddof=1) if len(losses) > 1 else numpy.zeros(losses.shape[1])
        name = kind if stages == 1 else f"{kind}, {stages} stages"
        rows[name] = {
            f"epoch {epoch + 1}": f"{mean:.3f} ± {deviation:.3f}"
            for epoch, (mean, deviation) in enumerate(zip(losses.mean(axis=0), spread, strict=True))
        }
    return DataFrame.from_dict(rows, orient="index").reset_index(names="held-out loss after")


def _candidate(
    captured: CapturedModel, spec: OptimizerSpec, depth: int, microbatches: int
) -> Candidate:
    method = choose_method(PIPEOPTIM.name, {"microbatches": microbatches}, _METHOD)
    cluster = local_cluster(depth, Link(bandwidth_bytes_per_second=1e9))
    profile = estimate_profile(captured.graph)
    return Candidate(
        even_split(PlanningProblem.profiled(profile, cluster, method, spec), depth), method
    )


def _losses(learner: Learner, minibatches: int, epochs: int) -> tuple[float, ...]:
    losses = []
    for epoch in range(epochs):
        stint = learner.train_until((epoch + 1) * minibatches)
        assert stint.held_out_loss is not None
        losses.append(stint.held_out_loss)
    return tuple(losses)
