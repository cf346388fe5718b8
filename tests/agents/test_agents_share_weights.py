"""Agents place models whose operators share weights, on a simulated cluster."""

import pytest

from drlpp.agents import DRLPP, GuidedHyperparameters, MeasurementBudgetCallback
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.placement.measurement import Measurement
from drlpp.planners import PLANNERS
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster
from tests.support.in_turns import in_turns
from tests.support.strategies.graphs import tied_chain

PROFILE = tied_chain([6, 9, 3, 12, 6], 8)


@pytest.mark.parametrize(("name", "bandwidth"), in_turns(["paper", "guided"], [64.0, 0.5]))
def test_an_agent_finds_a_placement(name: str, bandwidth: float) -> None:
    """The search and policy of the guided one find the planner's optimum, or better."""
    cluster = local_cluster(3, Link(bandwidth_bytes_per_second=bandwidth))
    declared = CostPrior.of(PROFILE, cluster)
    env = PlacementEnv(
        MeasurementMemory(SimulatedCluster(PROFILE, cluster)),
        declared=declared if name == "guided" else None,
    )
    if name == "guided":
        few = GuidedHyperparameters(practice=True, pretrained=False, evaluations=40, draws=4)
        agent = few.build(env, seed=0)
    else:
        agent = DRLPP(
            "PlacementPolicy", env, partitions_per_rollout=4, placements_per_partition=2, seed=0
        )
    agent.learn(16, MeasurementBudgetCallback(env.memory, 12))
    found = env.memory.best()
    assert found is not None
    best = found[1]
    assert isinstance(best, Measurement)
    assert best.seconds_per_minibatch > 0
    if name == "guided":
        planned = SimulatedCluster(PROFILE, cluster).measure(
            PLANNERS["exact"](declared.problem).placement
        )
        assert isinstance(planned, Measurement)
        assert best.seconds_per_minibatch <= planned.seconds_per_minibatch * (1 + 1e-9)
