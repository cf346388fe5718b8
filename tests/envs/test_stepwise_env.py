"""The masks allow exactly the placements that can run."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.capturing.graph import OpGraph
from drlpp.envs import MeasurementMemory, PlacementEnv, StepwisePlacementEnv
from tests.support.planning.fake_measurer import FakeMeasurer, branching, chain, graphs


def environment(graph: OpGraph, accelerators: int = 4) -> StepwisePlacementEnv:
    return StepwisePlacementEnv(MeasurementMemory(FakeMeasurer(graph, accelerators)))


@settings(max_examples=60)
@given(graph=graphs(8), accelerators=st.integers(1, 4), data=st.data())
def test_whatever_the_masks_allow_can_run(
    graph: OpGraph, accelerators: int, data: st.DataObject
) -> None:
    env = environment(graph, accelerators)
    env.reset()
    for _ in range(len(graph) + accelerators):
        allowed = np.flatnonzero(env.action_masks())
        _, reward, terminated, _, info = env.step(data.draw(st.sampled_from(list(allowed))))
        assert (reward == 0.0) or terminated
    assert terminated
    assert "seconds" in info


def test_every_placement_that_can_run_and_leaves_nobody_idle_is_allowed() -> None:
    graph, accelerators = branching(4), 2
    whole = PlacementEnv(MeasurementMemory(FakeMeasurer(graph, accelerators)))
    stepwise = environment(graph, accelerators)
    for action in itertools.product(range(accelerators), repeat=len(graph) + accelerators):
        if not set(action[len(graph) :]) <= set(action[: len(graph)]):
            continue
        valid = "seconds" in whole.step(np.array(action))[4]
        stepwise.reset()
        for stage in action:
            _, _, terminated, _, info = stepwise.step(np.int64(stage))
            if terminated:
                break
        assert ("seconds" in info) == valid, action
    assert stepwise.summary.distinct == whole.summary.distinct > 1


def test_a_masked_action_ends_the_episode_with_a_reason() -> None:
    env = environment(chain(3))
    env.reset()
    env.step(np.int64(2))
    _, reward, terminated, _, info = env.step(np.int64(1))
    assert terminated
    assert reward == env.invalid_reward
    assert info["error_type"] == "invalid action"
    assert info["reason"].endswith("allowed here: 2, 3")
