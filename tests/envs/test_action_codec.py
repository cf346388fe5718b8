"""Actions and candidates are the same thing in two forms, also where actions choose the method."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from drlpp.capturing.graph import OpGraph
from drlpp.envs import ActionCodec, MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.schedule.method import DEFAULT_METHOD, Method
from tests.support.planning.fake_measurer import FakeMeasurer, chain, graphs

FLUSHING = Method(schedule="gpipe", policy="sync", microbatches=2)


def test_actions_have_no_place_for_a_second_stage_on_an_accelerator() -> None:
    method = Method(schedule="zb-v", policy="sync")
    with pytest.raises(InvalidInput, match="one stage, and schedule zb-v needs two; plan such a"):
        ActionCodec(4, 2, method)


@given(graph=graphs(), accelerators=st.integers(1, 5), data=st.data())
def test_every_candidate_of_an_action_is_encoded_and_decoded_as_itself(
    graph: OpGraph, accelerators: int, data: st.DataObject
) -> None:
    codec = ActionCodec(len(graph), accelerators, DEFAULT_METHOD)
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


@dataclass(frozen=True)
class ChoosingCodec(ActionCodec):
    """Actions that choose one of some methods as well, in a last field."""

    methods: tuple[Method, ...] = (DEFAULT_METHOD, FLUSHING)

    @property
    def space(self) -> spaces.MultiDiscrete:
        return spaces.MultiDiscrete([*super().space.nvec, len(self.methods)])

    def encode(self, candidate: Candidate) -> NDArray[np.int64]:
        return np.append(super().encode(candidate), self.methods.index(candidate.method))

    def decode(self, action: Sequence[int] | NDArray[np.int64]) -> Candidate:
        return Candidate(super().decode(action).placement, self.methods[action[-1]])


class BothMethods(FakeMeasurer):
    """Flushing takes twice as long."""

    def measure(self, plan: ExecutionPlan, minibatches: int = 30) -> Outcome:
        outcome = super().measure(plan, minibatches)
        assert isinstance(outcome, Measurement)
        slower = outcome.seconds_per_minibatch * (2 if plan.method == FLUSHING else 1)
        return outcome.model_copy(update={"seconds_per_minibatch": slower})


def test_an_action_may_choose_the_method_with_the_placement(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    measurer = BothMethods(chain(6))

    def environment(measurer: FakeMeasurer) -> PlacementEnv:
        codec = ChoosingCodec(6, 4, measurer.method)
        return PlacementEnv(MeasurementMemory(measurer, path=path), codec=codec)

    env = environment(measurer)
    env.reset()
    placed = [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    seconds = []
    for choice in (0, 1, 0, 1):
        action = np.array([*placed, choice])
        assert env.action_space.contains(action)
        _, reward, _, _, info = env.step(action)
        assert reward == -math.log(info["seconds"])
        seconds.append(info["seconds"])
    assert seconds == [seconds[0], 2 * seconds[0]] * 2
    placement = env.codec.decode(np.array([*placed, 0])).placement
    both = [Candidate(placement, DEFAULT_METHOD), Candidate(placement, FLUSHING)]
    assert list(env.outcomes) == both
    assert len(measurer.measured) == 2
    for choice, candidate in enumerate(both):
        assert env.codec.encode(candidate).tolist() == [*placed, choice]

    header, *entries = map(json.loads, path.read_text().splitlines())
    assert Method.model_validate(header["method"]) == DEFAULT_METHOD
    assert "method" not in entries[0]
    assert Method.model_validate(entries[1]["method"]) == FLUSHING
    fresh = BothMethods(chain(6))
    assert environment(fresh).outcomes == env.outcomes
    assert not fresh.measured
