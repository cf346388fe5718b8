"""Placements at the edge of memory: what needs more than there is fails, whoever planned it."""

import math
import random
import warnings
from itertools import pairwise, starmap

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.memory import MemoryModel
from drlpp.costs.workload import Workload
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster, Host, Link
from drlpp.specs.optimizer_spec import OptimizerSpec

TRIALS, WORKERS, PLENTY = 30, 3, 1e10
ADAM = OptimizerSpec.parse("adam")
METHODS = (
    Method(),
    Method(policy="stash"),
    Method(microbatches=4),
    Method(recompute=True),
    Method(schedule="gpipe", policy="sync", microbatches=4),
    Method(schedule="1f1b-flush", policy="sync", microbatches=2),
)


def accelerators(*limits: float) -> Cluster:
    """Accelerators with so many bytes each."""
    hosts = tuple(Host(name="here", accelerators=1, memory_bytes=limit) for limit in limits)
    return Cluster(hosts=hosts, within_host=Link(bandwidth_bytes_per_second=1e9))


def in_a_row(draw: random.Random, operators: int) -> Placement:
    """One, two or three stages with drawn cuts, an accelerator each."""
    count = draw.choice((1, 2, 3))
    bounds = [0, *sorted(draw.sample(range(1, operators), count - 1)), operators]
    return Placement.of(starmap(range, pairwise(bounds)), [[k] for k in range(count)])


def opened(captured: CapturedModel, cluster: Cluster) -> ClusterSession:
    return ClusterSession(captured, WORKERS, optimizer=ADAM, device="cpu", links=cluster)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_needs_more_than_there_is_fails_and_nothing_else_does() -> None:
    """By what torch allocated where there was plenty, with limits of 0.9 to 1.1 times of it."""
    warnings.simplefilter("ignore", UserWarning)
    captured, draw = capture(ModelReference.named("alexnet")), random.Random(1)
    drawn = [
        Candidate(in_a_row(draw, len(captured.graph)), draw.choice(METHODS)) for _ in range(TRIALS)
    ]
    with opened(captured, accelerators(*[PLENTY] * WORKERS)) as session:
        profile = session.profile(repeats=1)[0]
        outcomes = [session.measure(candidate, 4) for candidate in drawn]
    correct = 0
    for candidate, known in zip(drawn, outcomes, strict=True):
        assert isinstance(known, Measurement)
        needs = {usage.worker: usage.peak_memory_bytes for usage in known.workers}
        tightest = max(needs, key=needs.__getitem__)
        limits = [PLENTY] * WORKERS
        limits[tightest] = needs[tightest] * math.exp(draw.uniform(-0.1, 0.1))
        cluster, method = accelerators(*limits), candidate.method
        memory, workload = MemoryModel.of(method, ADAM), Workload.of(profile, method)
        played = simulate(workload, cluster, candidate.placement, method, memory=memory)
        fits = needs[tightest] <= limits[tightest]
        correct += (played.without_room(cluster) is None) == fits
        with opened(captured, cluster) as session:
            outcome = session.measure(candidate, 4)
        failure = outcome.failure if isinstance(outcome, FailedMeasurement) else None
        assert failure == (None if fits else "out of memory")
    print(f"predicted correctly: {correct} of {TRIALS}")
    assert correct >= 0.8 * TRIALS
