"""Actions that choose the method with the placement."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from drlpp.costs.synthetic_profiles import generate
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.envs.action_codec import ActionCodec
from drlpp.envs.method_codec import MethodCodec
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.planners import Space
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster

METHODS = Space(Method()).methods
PLACED = [0, 0, 1, 1, 2, 2, 0, 1, 2]
CODEC = MethodCodec(6, 3, METHODS[0], METHODS)


def test_what_is_encoded_is_decoded() -> None:
    assert CODEC.space == spaces.MultiDiscrete([3] * 9 + [5])
    assert ActionCodec.accelerators_of(CODEC.space, 6) == 3
    for number, method in enumerate(METHODS):
        candidate = CODEC.decode(np.array([*PLACED, number]))
        assert candidate.method == method
        assert CODEC.encode(candidate).tolist() == [*PLACED, number]


def test_an_action_without_a_method_has_the_first() -> None:
    assert CODEC.decode(PLACED) == CODEC.decode([*PLACED, 0])
    other = Candidate(Placement.from_assignment(PLACED[:6], PLACED[6:]), Method(microbatches=2))
    with pytest.raises(InvalidInput, match="none of the 5 methods"):
        CODEC.encode(other)


def test_an_environment_of_a_space_measures_the_method_that_is_chosen() -> None:
    profile = generate("chain", 6, 0)
    cluster = local_cluster(3, Link(bandwidth_bytes_per_second=1e8, latency_seconds=5e-5))
    measurer = SimulatedCluster(profile, cluster)
    declared = CostPrior.of(profile, cluster, space=Space(Method()))
    env = PlacementEnv(MeasurementMemory(measurer), declared=declared)
    assert env.action_space == CODEC.space
    for number, method in enumerate(METHODS):
        _, _, _, _, info = env.step(np.array([*PLACED, number]))
        alone = measurer.measure(Candidate(env.codec.decode(PLACED).placement, method))
        assert info["seconds"] == alone.seconds_per_minibatch
    assert env.memory.distinct == len(METHODS)
    alone = PlacementEnv(MeasurementMemory(measurer), declared=CostPrior.of(profile, cluster))
    assert alone.action_space == spaces.MultiDiscrete([3] * 9)
