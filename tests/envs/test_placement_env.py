"""One step measures one placement, live ones too, and nothing invalid reaches the measurer."""

import math
import types
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.env_util import make_vec_env

import drlpp.envs  # noqa: F401 - registers the environments
from drlpp.capturing.graph import OpGraph
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidInput
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.planners import Space
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.specs.cluster import Link, local_cluster
from tests.support.planning.fake_measurer import FakeMeasurer, chain, graphs

OUT_OF_MEMORY = FailedMeasurement(failure="out of memory", reason="worker 0 needs 9 GB")


PROFILE = Profile(
    graph=chain(6),
    device="cpu",
    batch_size=1,
    operators=(OperatorProfile(forward_seconds=0.01, backward_seconds=0.02),) * 6,
)
CLUSTER = local_cluster(2, Link(bandwidth_bytes_per_second=1e6))


def environment(measurer: FakeMeasurer, **options: float) -> PlacementEnv:
    return PlacementEnv(MeasurementMemory(measurer), **options)


def simulated(environment_id: str, **options: str) -> gym.Env:
    return gym.make(environment_id, profile=PROFILE, cluster=CLUSTER, **options)


@pytest.mark.parametrize("kind", ["Live", "Sim"])
@pytest.mark.parametrize("check", [gymnasium_check_env, sb3_check_env])
def test_both_checkers_are_content(kind: str, check: types.FunctionType) -> None:
    environment_id = f"drlpp/Placement{kind}-v0"
    if kind == "Sim":
        made = simulated(environment_id)
    else:
        made = gym.make(environment_id, measurer=FakeMeasurer(chain(6)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(made.unwrapped)
    spec = made.unwrapped.spec
    assert spec is not None
    assert spec.nondeterministic == (kind == "Live")


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ([0] * 9, ["shape (9,)", "(10,)"]),
        ([0] * 11, ["shape (11,)", "(10,)"]),
        (None, ["shape ()", "(10,)"]),
        (["1"] * 10, ["'1'", "whole numbers"]),
        ([0, 0, 4, *[0] * 7], ["entry 2", "is 4", "0 to 3"]),
        ([*[0] * 9, -1], ["entry 9", "is -1", "0 to 3"]),
        ([0.5, *[0] * 9], ["entry 0", "is 0.5", "whole"]),
    ],
)
def test_what_is_no_action_is_refused(action: object, words: list[str]) -> None:
    measurer = FakeMeasurer(chain(6))
    with pytest.raises(InvalidInput) as refused:
        environment(measurer).step(action)  # type: ignore[arg-type]
    assert all(word in str(refused.value) for word in words)
    assert not measurer.measured


def test_unknown_arguments_are_refused_as_python_does() -> None:
    assert simulated("drlpp/PlacementSim-v0", render_mode=None).render_mode is None
    with pytest.raises(TypeError, match="render_mode='human': a placement cannot be drawn"):
        simulated("drlpp/PlacementSim-v0", render_mode="human")
    measurer = FakeMeasurer(chain(6))
    with pytest.raises(TypeError, match=r"a measurer is given, .* takes optimizer"):
        gym.make("drlpp/PlacementLive-v0", measurer=measurer, optimizer=None)
    # Which stable-baselines3 takes for an environment that cannot be rendered.
    env = make_vec_env("drlpp/PlacementLive-v0", env_kwargs={"measurer": measurer})
    assert env.reset().shape == (1, 1)


def test_files_stand_for_the_profile_and_the_cluster(tmp_path: Path) -> None:
    profile, cluster = tmp_path / "profile.json", tmp_path / "cluster.yaml"
    write_document(profile, PROFILE)
    write_document(cluster, CLUSTER)
    by_files = gym.make("drlpp/PlacementSim-v0", profile=str(profile), cluster=cluster)
    by_files.reset(seed=0)
    known = simulated("drlpp/PlacementSim-v0")
    known.reset(seed=0)
    action = known.action_space.sample()
    assert by_files.step(action)[1] == known.step(action)[1]


def test_a_step_is_a_measurement_as_reward_and_info() -> None:
    measurer = FakeMeasurer(chain(6), failures={"4": OUT_OF_MEMORY})
    env = environment(measurer, invalid_reward=-7.0)
    for action, failure in (
        (np.zeros(10, np.int64), "out of memory"),
        (np.array([1, 0, 0, 0, 0, 0, 0, 0, 1, 1]), "invalid placement"),
        (np.array([0, 0, 0, 1, 1, 1, 0, 1, 0, 1]), None),
    ):
        observation, reward, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(observation)
        assert (terminated, truncated) == (True, False)
        outcome = env.outcome(env.candidate(action))
        assert info.get("measurement", outcome) == outcome
        assert info.get("error_type") == failure
        assert getattr(outcome, "failure", None) == failure
        measured = isinstance(outcome, Measurement)
        assert reward == (-math.log(outcome.seconds_per_minibatch) if measured else -7.0)
        is_invalid = failure == "invalid placement"
        assert ("stages must form no cycle" in info.get("reason", "")) == is_invalid
    assert (info["configuration"], info["stages"]) == ("2-2", 2)
    assert len(measurer.measured) == 2
    assert env.summary.distinct == 2


@given(graph=graphs(), accelerators=st.integers(1, 5), data=st.data())
def test_an_action_has_the_stage_of_every_operator_and_accelerator(
    graph: OpGraph, accelerators: int, data: st.DataObject
) -> None:
    env = PlacementEnv(MeasurementMemory(FakeMeasurer(graph, accelerators)))
    size, stages = len(graph) + accelerators, st.integers(0, accelerators - 1)
    action = np.array(data.draw(st.lists(stages, min_size=size, max_size=size)))
    assert env.action_space.contains(action)
    candidate = env.candidate(action)
    assert candidate.method == DEFAULT_METHOD
    used = sorted({*action[: len(graph)].tolist()})
    assert [stage.operators for stage in candidate.placement.stages] == [
        tuple(np.flatnonzero(action[: len(graph)] == stage)) for stage in used
    ]
    assert [stage.accelerators for stage in candidate.placement.stages] == [
        tuple(np.flatnonzero(action[len(graph) :] == stage)) for stage in used
    ]


@pytest.mark.parametrize("repetitions", [1, 3])
def test_what_is_too_stale_is_not_measured(repetitions: int) -> None:
    measurer = FakeMeasurer(chain(12))
    space = Space(Method(in_flight_per_link=4), frozenset(), most_staleness=2)
    declared = CostPrior(CostPrior.from_sizes(measurer.graph, 4).problem, space=space)
    env = PlacementEnv(MeasurementMemory(measurer, repetitions=repetitions), declared=declared)
    actions = np.array([[0] * 12 + [0] * 4, [0] * 6 + [1] * 6 + [0, 0, 1, 1]])
    env.prefetch(actions)
    alone, stale = (env.step(action)[4] for action in actions)
    assert "seconds" in alone
    assert stale["error_type"] == "invalid placement"
    assert stale["reason"] == "a stage has a staleness of 5, of at most 2"
    assert len(env.memory.outcomes) == 1


def test_actions_have_no_place_for_a_second_stage_on_an_accelerator() -> None:
    space = Space(Method(schedule="zb-v", policy="sync"), frozenset())
    declared = CostPrior(CostPrior.from_sizes(chain(6), 4).problem, space=space)
    with pytest.raises(InvalidInput, match="one stage, and schedule zb-v needs two; plan such a"):
        PlacementEnv(MeasurementMemory(FakeMeasurer(chain(6))), declared=declared)


def test_a_placement_is_measured_once_on_a_session_that_stays_open(tmp_path: Path) -> None:
    reference = ModelReference.named("tests.support.models.small:perceptron", layers=1)
    with ClusterSession(reference, workers=2) as session:
        env = gym.make(
            "drlpp/PlacementLive-v0",
            measurer=session,
            minibatches=4,
            path=tmp_path / "measurements.jsonl",
        )
        env.reset()
        # Three operators, then two accelerators: a pipeline of two stages.
        action = np.array([0, 0, 1, 0, 1])
        _, reward, terminated, _, info = env.step(action)
        assert terminated
        assert reward == pytest.approx(-np.log(info["seconds"]))
        processes = session.process_ids
        env.reset()
        _, again, *_ = env.step(action)
        assert again == reward, "a placement is measured once"
        env.close()
        assert session.process_ids == processes


def test_an_environment_opens_its_own_session() -> None:
    env = gym.make(
        "drlpp/PlacementLive-v0",
        model="tests.support.models.small:perceptron",
        workers=2,
        minibatches=4,
    )
    operators = len(env.unwrapped.graph)  # type: ignore[attr-defined]
    env.reset()
    _, _, _, _, info = env.step(np.array([0] * operators + [0, 0]))
    assert info["configuration"] == "2"
    env.close()
