"""Actions and candidates are the same thing in two forms, also where actions choose the method."""

from __future__ import annotations

import random

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from drlpp.capturing.graph import OpGraph
from drlpp.costs.synthetic_profiles import generate
from drlpp.costs.workload import Workload
from drlpp.envs import ActionCodec, CostPrior, MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.planners import PlanningProblem, Space, Vary
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.schedule.per_stage import of_links
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster
from tests.support.planning.fake_measurer import FakeMeasurer, chain, graphs
from tests.support.strategies.problems import random_folded

METHODS = Space(Method()).methods
PLACED = [0, 0, 1, 1, 2, 2, 0, 1, 2]
CODEC = ActionCodec(6, 3, METHODS)


@given(graph=graphs(), accelerators=st.integers(1, 5), data=st.data())
def test_every_candidate_of_an_action_is_encoded_and_decoded_as_itself(
    graph: OpGraph, accelerators: int, data: st.DataObject
) -> None:
    codec = ActionCodec(len(graph), accelerators, [DEFAULT_METHOD])
    stages = st.integers(0, accelerators - 1)
    size = len(graph) + accelerators
    action = np.array(data.draw(st.lists(stages, min_size=size, max_size=size)))
    candidate = codec.decode(action)
    again = codec.encode(candidate)
    assert again.dtype == codec.space.dtype
    assert codec.decode(again) == candidate
    # The same stages without gaps, and idle accelerators in the one behind.
    number = {stage: index for index, stage in enumerate(sorted(set(action[: len(graph)])))}
    assert again.tolist() == [number.get(stage, len(number)) for stage in action]


def test_what_is_encoded_is_decoded() -> None:
    assert CODEC.space == spaces.MultiDiscrete([3] * 9 + [5] * 3)
    for number, method in enumerate(METHODS):
        candidate = CODEC.decode(np.array([*PLACED, number]))
        assert candidate.method == method
        assert CODEC.encode(candidate).tolist() == [*PLACED, *[number] * 3]


BY_STAGE = Space(
    Method(policy="stash"), frozenset({Vary.DEPTH, Vary.RECOMPUTE, Vary.MICROBATCHES})
).methods


@given(data=st.data(), stages=st.integers(1, 3))
def test_links_and_stages_have_numbers_of_their_own(data: st.DataObject, stages: int) -> None:
    codec = ActionCodec(6, 3, BY_STAGE)
    assert codec.space == spaces.MultiDiscrete([3] * 9 + [len(BY_STAGE)] * 3)
    placed = [min(stage, stages - 1) for stage in PLACED]
    numbers = data.draw(st.lists(st.integers(0, len(BY_STAGE) - 1), min_size=3, max_size=3))
    candidate = codec.decode(np.array([*placed, *numbers]))
    chosen = [BY_STAGE[number] for number in numbers[:stages]]
    assert candidate.method.microbatches == chosen[0].microbatches
    assert [candidate.method.recomputes(k) for k in range(stages)] == [m.recompute for m in chosen]
    depths = [method.in_flight_per_link for method in chosen]
    assert of_links(candidate.method.in_flight_per_link, stages) == tuple(depths[1:])
    action = codec.encode(candidate)
    assert codec.space.contains(action)
    assert codec.decode(action) == candidate


FLUSHING = Space(
    Method(schedule="gpipe", policy="sync", microbatches=2), frozenset({Vary.SCHEDULE})
).methods
FOLDING = ActionCodec(6, 3, FLUSHING)
ZB_V = next(number for number, m in enumerate(FLUSHING) if m.schedule_kind.stages_held > 1)


@pytest.mark.parametrize(
    ("accelerators", "holders"),
    [
        ([0, 1, 2], [(0,), (1,), (2,), (2,), (1,), (0,)]),
        ([2, 0, 1], [(1,), (2,), (0,), (0,), (2,), (1,)]),
    ],
)
def test_an_action_gives_an_accelerator_two_stages(
    accelerators: list[int], holders: list[tuple[int, ...]]
) -> None:
    assert FOLDING.space == spaces.MultiDiscrete([6] * 6 + [3] * 3 + [4])
    action = np.array([*range(6), *accelerators, ZB_V])
    candidate = FOLDING.decode(action)
    assert [stage.accelerators for stage in candidate.placement.stages] == holders
    assert candidate.placement.is_folded
    assert FOLDING.encode(candidate).tolist() == action.tolist()
    # The same stages with another method are one for each accelerator, of which some have none.
    assert not FOLDING.decode([*action[:-1], 0]).placement.is_folded


@given(data=st.data(), seed=st.integers(0, 99))
def test_every_folded_candidate_is_encoded_and_decoded_as_itself(
    data: st.DataObject, seed: int
) -> None:
    operators, accelerators = data.draw(st.integers(4, 9)), data.draw(st.integers(2, 5))
    profile = generate("layered", operators, seed)
    cluster = local_cluster(accelerators, Link(bandwidth_bytes_per_second=1e8))
    problem = PlanningProblem(Workload.of(profile, FLUSHING[ZB_V]), cluster)
    placement = random_folded(problem, random.Random(seed))
    assert placement is not None
    codec = ActionCodec(operators, accelerators, FLUSHING)
    candidate = Candidate(placement, FLUSHING[ZB_V])
    action = codec.encode(candidate)
    assert codec.space.contains(action)
    assert codec.decode(action) == candidate
    assert ExecutionPlan.of(codec.decode(action), profile.graph, accelerators).pipeline.is_folded


def test_any_action_is_a_candidate_that_can_be_run_or_is_refused() -> None:
    profile = generate("chain", 6, 0)
    cluster = local_cluster(3, Link(bandwidth_bytes_per_second=1e8, latency_seconds=5e-5))
    space = Space(FLUSHING[0], frozenset({Vary.SCHEDULE}))
    declared = CostPrior.of(profile, cluster, FLUSHING[0], space=space)
    measurer = SimulatedCluster(profile, cluster, method=FLUSHING[0])
    env = PlacementEnv(MeasurementMemory(measurer), declared=declared)
    env.action_space.seed(0)
    for _ in range(200):
        _, _, _, _, info = env.step(env.action_space.sample())
        assert info.get("error_type", "invalid placement") == "invalid placement"
    folded = np.array([*range(6), 0, 1, 2, ZB_V])
    _, _, _, _, info = env.step(folded)
    expected = measurer.measure(env.codec.decode(folded))
    assert info["seconds"] == expected.seconds_per_minibatch


def test_an_action_without_a_method_has_the_first() -> None:
    assert CODEC.decode(PLACED) == CODEC.decode([*PLACED, 0]) == CODEC.decode([*PLACED, 0, 0, 0])
    other = Candidate(Placement.from_assignment(PLACED[:6], PLACED[6:]), Method(microbatches=2))
    with pytest.raises(InvalidInput, match="none of the 5 methods"):
        CODEC.encode(other)


def test_actions_have_no_place_for_a_second_stage_on_an_accelerator() -> None:
    method = Method(schedule="zb-v", policy="sync")
    with pytest.raises(InvalidInput, match="one stage, and schedule zb-v needs two; plan such a"):
        ActionCodec(4, 2, [method])


@pytest.mark.parametrize("repetitions", [1, 3])
def test_what_is_too_stale_is_not_measured(repetitions: int) -> None:
    measurer = FakeMeasurer(chain(12))
    space = Space(DEFAULT_METHOD, frozenset({Vary.DEPTH}), most_staleness=2)
    declared = CostPrior(CostPrior.from_sizes(measurer.graph, 4).problem, space=space)
    env = PlacementEnv(MeasurementMemory(measurer, repetitions=repetitions), declared=declared)
    whole, halves = [0] * 12 + [0] * 4, [0] * 6 + [1] * 6 + [0, 0, 1, 1]
    actions = np.array([[*whole, *[0] * 4], [*halves, *[0] * 4], [*halves, 0, 4, 0, 0]])
    env.prefetch(actions)
    outcomes = [env.step(action)[4] for action in actions]
    assert ["seconds" in info for info in outcomes] == [True, True, False]
    assert outcomes[2]["error_type"] == "invalid placement"
    assert outcomes[2]["reason"] == "a stage has a staleness of 5, of at most 2"
    assert len(env.outcomes) == 2
