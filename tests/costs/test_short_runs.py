"""Factors from short runs, against simulated clusters whose factors are known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.made_up import generate
from drlpp.costs.profile import Profile, RunFactors
from drlpp.costs.short_runs import MOST, USUAL_SPREAD, short_placements, with_short_runs
from drlpp.costs.workload import Workload
from drlpp.placement.measurement import Measurement
from drlpp.planners.problem import PlanningProblem
from drlpp.simulator import SimulatedCluster, simulate
from drlpp.specs.cluster import Link, local_cluster

LINK = Link(bandwidth_bytes_per_second=1e11)


def run_on(true: Profile, accelerators: int, link: Link = LINK) -> tuple[Profile, list[str]]:
    """What short runs on a cluster with these true costs say of the operators' costs alone."""
    declared = true.model_copy(update={"in_pipeline": None, "replicated": None})
    cluster = local_cluster(accelerators, link)
    runs, notes = {}, list[str]()
    for placement in short_placements(declared, range(accelerators)):
        found = SimulatedCluster(true, cluster).measure(placement, 8)
        assert isinstance(found, Measurement)
        runs[placement] = found
    return with_short_runs(declared, Workload.of(declared), cluster, runs, notes.append), notes


def test_factors_are_found_again() -> None:
    true = generate("chain", 24, seed=3).model_copy(
        update={
            "in_pipeline": RunFactors(passes=1.3, seconds=1.3),
            "replicated": RunFactors(passes=1.1, seconds=1.1),
        }
    )
    found, notes = run_on(true, 4)
    assert found.in_pipeline is not None
    assert found.replicated is not None
    assert found.in_pipeline.passes == pytest.approx(1.3, rel=0.02)
    assert found.in_pipeline.seconds == pytest.approx(1.3, rel=0.02)
    assert found.replicated.seconds == pytest.approx(1.1, rel=0.02)
    assert not notes


def test_an_error_bar_is_never_narrower_than_a_few_runs_can_tell() -> None:
    true = generate("chain", 24, seed=3)
    cluster = local_cluster(4, LINK)
    both = list(short_placements(true, range(4)))[:2]

    def spread_of(*factors: float) -> float:
        runs = {}
        for placement, factor in zip(both, factors, strict=True):
            slower = true.model_copy(
                update={"in_pipeline": RunFactors(passes=factor, seconds=factor)}
            )
            found = SimulatedCluster(slower, cluster).measure(placement, 8)
            assert isinstance(found, Measurement)
            runs[placement] = found
        told = with_short_runs(true, Workload.of(true), cluster, runs, print).in_pipeline
        assert told is not None
        return told.spread

    # Two that agree say little: of what is usual, 0.07, four parts in five are left.
    assert spread_of(1.2, 1.2) == pytest.approx(USUAL_SPREAD * (4 / 5) ** 0.5, rel=0.05)
    # Whole runs differ by ln 2 / sqrt 2, workers within a run do not.
    disagreeing = ((4 * USUAL_SPREAD**2 + math.log(2) ** 2 / 2) / 5) ** 0.5
    assert spread_of(1.0, 2.0) == pytest.approx(disagreeing, rel=0.05)


def test_a_factor_beyond_what_a_pipeline_can_do_is_left_out_and_said() -> None:
    busy = RunFactors(passes=3 * MOST, seconds=3 * MOST)
    found, notes = run_on(generate("chain", 24, seed=3).model_copy(update={"in_pipeline": busy}), 4)
    assert found.in_pipeline is None
    assert found.replicated is not None
    assert len(notes) == 1
    assert "6.0 times as long" in notes[0]


@settings(max_examples=25)
@given(seed=st.integers(0, 50), passes=st.floats(1, 1.5), replicas=st.floats(1, 1.5))
def test_the_simulator_takes_that_much_longer_and_the_rule_stays_a_bound(
    seed: int, passes: float, replicas: float
) -> None:
    plain = generate("layered", 12, seed=seed)
    longer = plain.model_copy(
        update={
            "in_pipeline": RunFactors(seconds=passes),
            "replicated": RunFactors(seconds=replicas),
        }
    )
    cluster = local_cluster(4, LINK)
    for placement in short_placements(plain, range(4)):
        before, after = (
            simulate(Workload.of(profile), cluster, placement).seconds_per_minibatch
            for profile in (plain, longer)
        )
        factor = passes if len(placement.stages) > 1 else replicas
        assert before * (1 - 1e-9) <= after <= before * factor * (1 + 1e-9)
        rule = PlanningProblem(Workload.of(longer), cluster).predict(placement)
        assert after >= rule.seconds_per_minibatch * (1 - 1e-9)
