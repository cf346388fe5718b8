"""The masks allow exactly the placements that can run."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sb3_contrib import MaskablePPO

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


def test_the_first_zero_of_an_observation_is_what_comes_next() -> None:
    env = environment(chain(2), accelerators=2)
    observation, _ = env.reset()
    assert observation.tolist() == [0, 0, 0, 0]
    assert env.step(np.int64(0))[0].tolist() == [0.5, 0, 0, 0]
    assert env.step(np.int64(1))[0].tolist() == [0.5, 1, 0, 0]


def test_maskable_ppo_never_asks_for_an_invalid_placement() -> None:
    env = environment(chain(5), accelerators=3)
    penalties = []
    reward_of = env._penalty
    env._penalty = lambda *reason: penalties.append(reason) or reward_of(*reason)  # type: ignore
    MaskablePPO("MlpPolicy", env, n_steps=128, batch_size=64, device="cpu", seed=0).learn(256)
    assert not penalties
    assert env.summary.distinct > 1
