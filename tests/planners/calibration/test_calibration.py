"""Calibration against clusters whose true costs are known."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.made_up import FAMILIES, generate, random_placement
from drlpp.costs.memory import MemoryModel
from drlpp.costs.profile import Profile, RunFactors
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.planners.baselines import gpipe
from drlpp.planners.calibration.calibration import Calibration
from drlpp.planners.problem import PlanningProblem
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Cluster, Host, Link, local_cluster
from tests.support.strategies.graphs import chain_of

LINK = Link(bandwidth_bytes_per_second=1e9, latency_seconds=5e-5)


def scaled(profile: Profile, factors: list[float]) -> Profile:
    return profile.model_copy(
        update={
            "operators": tuple(
                o.model_copy(
                    update={
                        "forward_seconds": o.forward_seconds * f,
                        "backward_seconds": o.backward_seconds * f,
                    }
                )
                for o, f in zip(profile.operators, factors, strict=True)
            )
        }
    )


def measure(measurer: SimulatedCluster, placement: Placement) -> Measurement:
    outcome = measurer.measure(placement)
    assert isinstance(outcome, Measurement)
    return outcome


def observed(
    calibration: Calibration, truth: SimulatedCluster, placements: Iterable[Placement]
) -> PlanningProblem:
    for placement in placements:
        calibration.observe(Candidate(placement, truth.method), measure(truth, placement))
    return calibration.fit()


def random_placements(workload: Workload, cluster: Cluster, count: int) -> list[Placement]:
    draw = random.Random(0)
    problem = PlanningProblem(workload, cluster)
    return [random_placement(problem, draw) for _ in range(count)]


def test_without_measurements_what_was_declared_is_believed() -> None:
    workload = Workload.of(generate("blocks", 20, 0))
    cluster = local_cluster(4, LINK, speeds=[1, 1, 0.5, 0.5])
    fitted = Calibration(PlanningProblem(workload, cluster)).fit()
    assert fitted.workload.seconds == pytest.approx(workload.seconds)
    assert fitted.cluster.speeds == pytest.approx(cluster.speeds)
    assert fitted.cluster.within_host == LINK


def test_one_data_parallel_measurement_tells_undeclared_speeds() -> None:
    profile = generate("chain", 12, 0)
    truth = SimulatedCluster(profile, local_cluster(4, LINK, speeds=[1, 1, 0.5, 0.25]))
    calibration = Calibration(PlanningProblem(Workload.of(profile), local_cluster(4, LINK)))
    everything = Placement.from_assignment([0] * 12, [0] * 4)
    speeds = numpy.array(observed(calibration, truth, [everything]).cluster.speeds)
    assert speeds / speeds[0] == pytest.approx([1, 1, 0.5, 0.25], rel=0.03)
    # Those that are equal are told to be.
    assert speeds[0] == speeds[1]


@example(family="towers", seed=423)  # what was measured is off by 0.104
@example(family="layered", seed=115)  # 0.61 of the declared error is left: the worst that is known
@given(family=st.sampled_from(list(FAMILIES)), seed=st.integers(0, 1000))
@settings(max_examples=3)
def test_corrected_times_are_better_than_declared_ones(family: str, seed: int) -> None:
    """Some operators are never apart from others in what was measured."""
    measured, unseen = _errors(family, seed)
    assert _shrunk(measured) < 0.5
    assert _shrunk(unseen) < 1


def _shrunk(errors: NDArray[numpy.float64]) -> float:
    """Return the error that is left, relative to the declared one."""
    corrected, declared = numpy.sqrt((errors**2).mean(axis=0))
    return float(corrected / declared)


def _errors(family: str, seed: int) -> tuple[NDArray[numpy.float64], NDArray[numpy.float64]]:
    """Return logarithms of seconds to the true ones, corrected and declared, ``(stages, 2)``.

    They are of every stage on each of its accelerators: of 30 placements that were measured, and of
    ten others. Operator by operator the scale is shared with the speeds; stages on accelerators
    are not.
    """
    profile = generate(family, 16, seed)
    factors = numpy.random.default_rng(seed).lognormal(0.0, 0.3, 16).tolist()
    workload = Workload.of(scaled(profile, factors))
    truth = SimulatedCluster(profile, local_cluster(4, LINK))
    calibration = Calibration(PlanningProblem(workload, local_cluster(4, LINK)))
    placements = random_placements(workload, truth.cluster, 40)
    fitted, true = observed(calibration, truth, placements[:30]), Workload.of(profile)

    def errors(some: Sequence[Placement]) -> NDArray[numpy.float64]:
        found = []
        for stage in (stage for placement in some for stage in placement.stages):
            chosen = list(stage.operators)
            wanted = true.seconds[chosen].sum()
            declared = workload.seconds[chosen].sum()
            for accelerator in stage.accelerators:
                corrected = fitted.workload.seconds[chosen].sum()
                corrected /= fitted.cluster.speeds[accelerator]
                found.append((numpy.log(corrected / wanted), numpy.log(declared / wanted)))
        return numpy.array(found)

    return errors(placements[:30]), errors(placements[30:])


@pytest.mark.parametrize(
    ("method", "sizes"),
    [
        (
            Method(schedule="zb-v", policy="sync", microbatches=4),
            (1, 1, 2, 2, 3, 3, 3, 3, 2, 2, 1, 1),
        ),
        # Of three alike, the first computes again, and is not slower.
        (Method(recompute=(True, False, False), in_flight_per_link=(0, 1)), (1, 2, 3)),
    ],
    ids=["two stages", "recomputing"],
)
def test_what_is_declared_and_true_stays(method: Method, sizes: tuple[int, ...]) -> None:
    """Of workers with two stages, and where one recomputes; nearly all memory is of weights."""
    count = len(sizes)
    _, profile = chain_of(
        seconds=[36 / count] * count,
        parameter_bytes=[1000 * size for size in sizes],
        output_bytes=[1] * count,
    )
    cluster = local_cluster(3, LINK, memory_bytes=1e12)
    workload, memory = Workload.of(profile, method), MemoryModel(method)
    placement = gpipe(PlanningProblem(workload, cluster)).placement
    truth = SimulatedCluster(profile, cluster, method=method, memory=memory)
    fitted = observed(
        Calibration(PlanningProblem(workload, cluster, memory=memory)), truth, [placement]
    )
    assert fitted.workload.seconds == pytest.approx(workload.seconds, rel=0.02)
    assert fitted.cluster.speeds == pytest.approx([1.0] * 3, rel=0.02)
    assert fitted.cluster.memory_bytes == pytest.approx([1e12] * 3, rel=0.05)


def test_links_of_every_level_are_corrected_on_their_own() -> None:
    profile = generate("chain", 12, 1)
    hosts = (Host(name="a", accelerators=2), Host(name="b", accelerators=2))
    declared = Cluster(hosts=hosts, within_host=LINK, between_hosts=LINK)
    slow = Link(bandwidth_bytes_per_second=1e8, latency_seconds=5e-5)
    truth = SimulatedCluster(profile, Cluster(hosts=hosts, within_host=LINK, between_hosts=slow))
    calibration = Calibration(PlanningProblem(Workload.of(profile), declared))
    placements = random_placements(calibration.workload, declared, 10)
    found = observed(calibration, truth, placements).cluster
    assert found.within_host.bandwidth_bytes_per_second == pytest.approx(1e9, rel=0.05)
    assert found.between_hosts is not None
    assert found.between_hosts.bandwidth_bytes_per_second == pytest.approx(1e8, rel=0.05)


def test_what_short_runs_took_longer_is_not_taken_for_operators() -> None:
    profile = generate("chain", 12, 4).model_copy(
        update={
            "in_pipeline": RunFactors(passes=1.3, seconds=1.3),
            "replicated": RunFactors(passes=1.1, seconds=1.1),
        }
    )
    cluster = local_cluster(4, LINK)
    truth = SimulatedCluster(profile, cluster)
    calibration = Calibration(PlanningProblem(Workload.of(profile), cluster))
    placements = random_placements(calibration.workload, cluster, 12)
    fitted = observed(calibration, truth, placements)
    seconds = fitted.workload.seconds / calibration.workload.seconds
    assert seconds == pytest.approx(numpy.ones(12), rel=0.05)
    assert fitted.cluster.speeds == pytest.approx(cluster.speeds, rel=0.05)


def test_memory_limits_become_those_of_the_formula() -> None:
    profile = generate("chain", 12, 2)
    cluster = local_cluster(2, LINK, memory_bytes=1e9)
    calibration = Calibration(PlanningProblem(Workload.of(profile), cluster))
    truth = SimulatedCluster(profile, local_cluster(2, LINK))
    for placement in random_placements(calibration.workload, cluster, 8):
        outcome = measure(truth, placement)
        workers = tuple(
            u.model_copy(update={"peak_memory_bytes": int(1.5 * u.peak_memory_bytes + 2e8)})
            for u in outcome.workers
        )
        calibration.observe(
            Candidate(placement, Method()), outcome.model_copy(update={"workers": workers})
        )

    # (1e9 − 2e8) / 1.5
    assert calibration.fit().cluster.memory_bytes == pytest.approx([5.33e8] * 2, rel=0.02)


def test_samples_vary_where_nothing_was_measured_and_agree_where_much_was() -> None:
    profile = generate("chain", 8, 3)
    truth = SimulatedCluster(profile, local_cluster(2, LINK))
    calibration = Calibration(PlanningProblem(Workload.of(profile), local_cluster(2, LINK)))
    halves = Placement.from_assignment([0] * 4 + [1] * 4, [0, 1])
    observed(calibration, truth, [halves] * 5)
    draw = numpy.random.default_rng(0)
    sums, singles = [], []
    for _ in range(200):
        sample = calibration.sample(draw)
        seconds = sample.workload.seconds / sample.cluster.speeds[0]
        overhead = sample.workload.forward_overhead_seconds
        overhead += sample.workload.backward_overhead_seconds
        sums.append(numpy.log(seconds[:4].sum() + overhead / sample.cluster.speeds[0]))
        singles.append(numpy.log(seconds[0]))
    assert numpy.std(sums) < 0.08
    assert numpy.std(singles) > 3 * numpy.std(sums)


def test_a_memory_limit_leaves_room_for_what_has_run() -> None:
    """A line through needs and peaks may say that what ran could not."""
    profile = generate("chain", 9, 0)
    limit = 11.0
    workload, cluster = Workload.of(profile), local_cluster(3, LINK, memory_bytes=limit)
    calibration = Calibration(PlanningProblem(workload, cluster, memory=MemoryModel(Method())))
    calibration._memory = [(5.0, 5.6), (8.0, 8.9), (10.5, 10.9)]
    assert min(calibration.fit().cluster.memory_bytes) >= 10.5
