"""How far off declarations are, learned from what was observed."""

from __future__ import annotations

import numpy
import pytest

from benchmarks.made_up import generate
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.planners import PlanningProblem
from drlpp.planners.calibration.calibration import Calibration
from drlpp.planners.calibration.scales import DECLARED, NOISE, ScalesPosterior
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster

LINK = Link(bandwidth_bytes_per_second=1e9, latency_seconds=1e-5)


@pytest.mark.parametrize(("declared", "noise"), [(0.125, 0.5), (1.0, 1.0), (4.0, 0.25)])
def test_scales_are_those_that_made_the_observations(declared: float, noise: float) -> None:
    draw = numpy.random.default_rng(0)
    features = draw.standard_normal((60, 40))
    misses = features @ (0.3 * declared * draw.standard_normal(40))
    misses += 0.1 * noise * draw.standard_normal(60)
    parts = ((0.09 * features @ features.T, DECLARED), (0.01 * numpy.eye(60), NOISE))
    found = ScalesPosterior(misses, parts, numpy.zeros((60, 60))).most_probable
    assert found == pytest.approx((declared, noise), rel=1.01)


def test_declarations_that_fit_are_believed_and_others_are_not() -> None:
    profile = generate("chain", 16, 3)
    placement = Placement.from_assignment([o // 2 for o in range(16)], list(range(8)))
    candidate = Candidate(placement, Method())

    def spread(speeds: list[float]) -> float:
        calibration = Calibration(PlanningProblem(Workload.of(profile), local_cluster(8, LINK)))
        truth = SimulatedCluster(profile, local_cluster(8, LINK, speeds))
        calibration.observe(candidate, truth.measure(candidate, 30))
        draw = numpy.random.default_rng(0)
        drawn = [calibration.sample(draw).workload.seconds for _ in range(50)]
        return float(numpy.std(numpy.log([seconds[0] / seconds[-1] for seconds in drawn])))

    assert spread([1.0] * 8) < spread([1.0, 0.6, 0.8, 0.5, 1.0, 0.7, 0.9, 0.55]) / 2
