"""A document of every kind, with everything in it that one may hold."""

from __future__ import annotations

from functools import cache

from drlpp.agents.hyperparameters import GuidedHyperparameters, Hyperparameters
from drlpp.capturing.capture import capture
from drlpp.capturing.graph import OpGraph
from drlpp.costs.profile import OperatorProfile, Profile, RunFactors
from drlpp.envs.measuring.search_file import Confidence, SearchFile
from drlpp.io.documents import Document, document_kinds
from drlpp.io.run_folder import RunRecord
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import LinkUsage, Measurement, WorkerUsage
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender
from drlpp.racing.rivals import PLAIN
from drlpp.racing.training_race import Curve, Point, TrainingRace, TrainingRun
from drlpp.runtime.training.checkpoints import PartsIndex
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Host, Link
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup

_LINK = Link(bandwidth_bytes_per_second=1e9, latency_seconds=1e-5)
_CLUSTER = Cluster(
    hosts=(
        Host(name="near", accelerators=2, memory_bytes=1e10, price=2.5, network=_LINK),
        Host(name="far", count=2, speed=0.5, accelerators=1),
    ),
    within_host=_LINK,
    between_hosts=_LINK,
)
_MEASUREMENT = Measurement(
    seconds_per_minibatch=0.1,
    median_seconds=0.1,
    standard_deviation_seconds=0.01,
    minibatches=30,
    steadiness=0.9,
    workers=(
        WorkerUsage(
            worker=0,
            stage=0,
            busy_seconds=1.0,
            waiting_seconds=1.0,
            peak_memory_bytes=1000,
            bytes_sent=1000,
            processor_seconds=1.0,
        ),
    ),
    links=(LinkUsage(sender=0, receiver=1, bytes_=1000, seconds=0.001),),
)
_OPTIMIZER = OptimizerSpec.parse(
    "adam",
    [
        ParameterGroup.parse("*.bias", weight_decay=0.0),
        ParameterGroup.parse("rnn*", optimizer="sgd", lr=0.1),
    ],
    lr=0.1,
    betas=(0.9, 0.99),
    eps=1e-8,
)

_METHOD = Method(
    policy="pipemare",
    recompute=True,
    precision="float16",
    loss_scale=1024.0,
    annealing_minibatches=10,
    correction_decay=0.1,
)


@cache
def every_document() -> dict[str, Document]:
    """Return a document of every kind; a kind that is missing here is an error."""
    reference = ModelReference.named("awd_lm", sequence_length=3, dropout=0.5, tied=True)
    graph = capture(reference, check=False).graph
    half = len(graph) // 2
    stages = [int(operator >= half) for operator in range(len(graph))]
    placement = Placement.from_assignment(stages, (0, 0, 1, 1))
    contender = Contender(
        found_by="exact",
        placement=placement,
        method=_METHOD,
        measurements=(_MEASUREMENT,),
        failure="it failed",
    )
    documents: list[Document] = [
        graph,
        _profile(graph),
        _CLUSTER,
        PlacementFile.create(
            reference,
            graph,
            placement,
            _CLUSTER,
            method=_METHOD,
            optimizer=_OPTIMIZER,
            found_by="somebody",
            measurement=_MEASUREMENT,
        ),
        RunRecord(
            command="drlpp train",
            settings={"seed": 0, "model": {"layers": [1, 2.0]}},
            started_as="drlpp train placement.json",
        ),
        Comparison(model="made up", minibatches=30, contenders=(contender,), rivals=(contender,)),
        SearchFile(
            placements=8,
            seconds=20.0,
            cluster_seconds=12.0,
            deploying_seconds=2.0,
            confidence=Confidence(
                configuration="2-2", method=_METHOD, share=0.9, expected_gain=0.004
            ),
        ),
        _race(contender),
        PartsIndex(number=2, attempt=3, workers=(0, 1, 2), leaders=(0, 2)),
        Hyperparameters(temperature=1.0),
        GuidedHyperparameters(),
    ]
    found = {document.kind: document for document in documents}
    # Benchmarks keep results of their own, which nobody sends to others.
    missing = {
        kind for kind, one in document_kinds().items() if one.__module__.startswith("drlpp.")
    } - found.keys()
    if missing:
        raise ValueError(f"there is nothing to try of {sorted(missing)}")
    return found


def _race(contender: Contender) -> TrainingRace:
    """Return a race that has ended: both candidates, and their finals, have all their curves."""
    points = tuple(Point(minibatches=m, seconds=m / 10, loss=2.0 - m / 10) for m in (0, 5, 10))
    curve = Curve(points=points, failure="it failed")
    return TrainingRace(
        model="made up",
        data="digits",
        optimizer="adam",
        minibatches=10,
        every=5,
        candidates=(Contender(found_by=PLAIN, method=Method(), threads=2), contender),
        target_loss=1.0,
        limit_seconds=9.0,
        rates=(0.1,),
        finals=2,
        runs=tuple(
            TrainingRun(candidate=candidate, rate=0.1, seed=seed, curve=curve)
            for candidate in (0, 1)
            for seed in (0, 1, 2)
        ),
    )


def _profile(graph: OpGraph) -> Profile:
    cost = OperatorProfile(
        forward_seconds=0.01,
        backward_seconds=0.02,
        forward_spread_seconds=0.001,
        backward_spread_seconds=0.001,
        kept_bytes=1000,
        working_bytes=1000,
    )
    return Profile(
        graph=graph,
        device="cpu",
        batch_size=32,
        operators=(cost,) * len(graph),
        timed_operators=len(graph) - 1,
        forward_overhead_seconds=1e-4,
        backward_overhead_seconds=1e-4,
        update_overhead_seconds=1e-4,
        update_seconds_per_byte=1e-10,
        prediction_seconds_per_byte=1e-10,
        sharing_seconds_per_byte=1e-10,
        in_pipeline=RunFactors(passes=1.1, seconds=1.2, spread=0.1),
        replicated=RunFactors(passes=1.1, seconds=1.2, spread=0.1),
    )
