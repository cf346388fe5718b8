"""What profiling finds on live workers, and workers that emulate slower ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from unittest.mock import Mock, patch

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from drlpp.capturing.capture import capture
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import OutOfMemory
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, TimeLimits
from drlpp.runtime.device.devices import DeviceFacts
from drlpp.runtime.ipc.protocol import TrainingTimes
from drlpp.runtime.session.measured_cluster import link_of, speeds_of, time_speeds
from drlpp.runtime.session.profiling import profile_of
from drlpp.runtime.worker import operator_timing
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec


def wide(batch_size: int = 8) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """What is kept can be told by hand: the inputs of linear layers, the outputs of tanh."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 500), nn.Tanh(), nn.Linear(500, 500), nn.Tanh())
    return module, (torch.randn(batch_size, 16),)


WIDE = ModelReference.named("tests.runtime.worker.test_profiling:wide")


@pytest.fixture(scope="module")
def profile() -> Iterator[Profile]:
    with ClusterSession(capture(WIDE), workers=2) as session:
        yield session.profile(repeats=15)[0]


def test_the_bytes_kept_for_the_backward_are_counted_once(profile: Profile) -> None:
    """The first layer keeps its input, which is the worker's data; each tanh its output."""
    kept = [operator.kept_bytes for operator in profile.operators]
    assert kept == [0, 8 * 500 * 4, 0, 8 * 500 * 4]


def test_the_larger_layer_takes_longer_and_predictions_have_a_price(profile: Profile) -> None:
    small, _, large, _ = profile.seconds
    assert large > small
    assert profile.prediction_seconds_per_byte > 0
    # Which of the two an update's time is told as depends on how quiet the machine is.
    assert profile.update_overhead_seconds + profile.update_seconds_per_byte > 0
    # Nothing or all of a backward, if a half of it was measured in a disturbed moment.
    assert 0 <= profile.weight_share <= 1


@pytest.mark.system
def test_workers_of_unlike_speeds_sum_gradients_equally_often() -> None:
    """Only the fast one has time for every repeat; a sum that it is alone in would fail."""
    with ClusterSession(capture(WIDE), workers=2, speeds=[1, 0.02]) as session:
        session.time_limits = TimeLimits(answer_seconds=5)
        profile, _ = session.profile(repeats=60)
    assert len(profile.operators) == 4


@given(st.integers(1, 30), st.floats(0, 2))
def test_long_passes_are_repeated_less_often(repeats: int, seconds: float) -> None:
    clock = count(step=seconds)
    with patch("drlpp.runtime.worker.operator_timing.time.monotonic", clock.__next__):
        numbers = list(operator_timing.timed_passes(repeats))
    assert numbers == list(range(len(numbers)))
    if repeats * seconds <= 1:
        assert len(numbers) == 3 + repeats
    else:
        assert len(numbers) >= 3 + min(repeats, 5)
    # The last but one had not taken too long yet.
    assert len(numbers) <= 3 + 5 or (len(numbers) - 3 - 5) * seconds <= 1


Times = dict[str, list[TrainingTimes]]


def of_training(**seconds: list[float]) -> list[TrainingTimes]:
    """Everything is measured twice."""
    twice = {kind.replace("_", " "): [[one] * 2 for one in of] for kind, of in seconds.items()}
    return [TrainingTimes("cpu", twice, kept_bytes=[0] * 4, prediction_seconds=[])]


def stage_times(seconds: list[float], update: list[float]) -> list[TrainingTimes]:
    """Backwards take twice the time of forwards."""
    return of_training(forward=seconds, backward=[2 * one for one in seconds], update=update)


def operator_times(alone: list[float], **more: list[float]) -> Times:
    """Of the four operators of ``wide``: four parts of 3 s make a whole of 9 s.

    ``more`` has other updates of the parts, or forwards of a microbatch.
    """
    return {
        "operators": stage_times(alone, [1.0] * 4),
        "parts": stage_times([3.0] * 4, more.get("parts", [2.0, 0.0, 3.0, 0.0])),
        "halves": of_training(backward=[6.0, 6.0, 5.0, 6.0], second_half=[1.0, 1.0, 6.0, 1.0]),
        "whole": stage_times([9.0], [4.0]),
        "shared": of_training(backward=[21.0], update=[7.0]),
        "microbatch": stage_times(more.get("microbatch", []), [4.0]),
    }


def test_what_a_pass_costs_is_found_by_cutting_the_model() -> None:
    """Three cuts cost 3 s: 1 s for each pass. Alone the operators take 12 s, 1 s too long each."""
    captured = capture(WIDE)
    profile = profile_of(captured, operator_times([3.0, 2.0, 5.0, 2.0]))
    assert profile.forward_overhead_seconds == 1
    assert profile.backward_overhead_seconds == 2
    assert [op.forward_seconds for op in profile.operators] == [2, 1, 4, 1]
    assert [op.backward_seconds for op in profile.operators] == [4, 2, 8, 2]
    # Two of the parts have weights: 5 s for their updates, 4 s for that of the whole.
    assert profile.update_overhead_seconds == 1
    weight_bytes = captured.graph.parameter_bytes
    assert profile.update_seconds_per_byte == 3 / weight_bytes
    # Sharing adds 3 s to the backward of 18 s, and 3 s to the update of 4 s.
    assert profile.sharing_seconds_per_byte == 6 / weight_bytes
    # The third part has halves of 5 and 6 s for a whole of 6 s, of which 2 s are another overhead.
    # 3 s are left for its one operator, half of them in either half; so of the 6 s of the second,
    # 6 - 2 - 1.5 are for weights, of the 8 s that the operator's backward takes.
    assert profile.split_seconds == 3
    assert profile.weight_share == 2.5 / 8


def test_what_was_disturbed_stays_within_the_whole() -> None:
    captured = capture(WIDE)
    disturbed = operator_times([3.0, 2.0, 5.0, 2.0], parts=[20.0, 0.0, 30.0, 0.0])
    profile = profile_of(captured, disturbed)
    assert profile.update_overhead_seconds == 4
    assert profile.update_seconds_per_byte == 0
    alone = profile_of(captured, operator_times([0.5, 10.0, 10.0, 0.5]))
    assert [op.forward_seconds for op in alone.operators] == [0, 4, 4, 0]
    one, other = (operator_times([value] * 4) for value in (1.0, 3.0))
    together = profile_of(captured, {name: one[name] + other[name] for name in one})
    assert [operator.forward_seconds for operator in together.operators] == [2] * 4
    assert together.operators[0].forward_spread_seconds > 0


def test_a_microbatch_takes_more_than_its_share() -> None:
    """Of 27 s, 3 s are an overhead: a quarter of the samples would take 6 of 24 s, and takes 9 s.

    So 4 s do not depend on samples: 4 + (24 − 4) / 4 = 9.
    """
    profile = profile_of(capture(WIDE), operator_times([3.0, 2.0, 5.0, 2.0], microbatch=[4.0]), 4)
    assert profile.fixed_share == pytest.approx(4 / 24)
    whole, four = (Workload.of(profile, Method(microbatches=count)) for count in (1, 4))
    assert four.seconds.sum() == pytest.approx(4 * 9)
    assert whole.seconds.sum() == pytest.approx(24)
    quick = operator_times([3.0, 2.0, 5.0, 2.0], microbatch=[1.0])
    assert profile_of(capture(WIDE), quick, 4).fixed_share == 0


def test_workers_time_a_microbatch(profile: Profile) -> None:
    """A few samples of a linear layer are read with all of its weights."""
    assert profile.fixed_share > 0
    odd = ModelReference.named("tests.runtime.worker.test_profiling:wide", batch_size=3)
    with ClusterSession(capture(odd), workers=1, method=Method(policy="stash")) as session:
        found, _ = session.profile(repeats=2)
    assert found.fixed_share == 0
    assert found.prediction_seconds_per_byte == 0, "nothing is predicted"


@example(0.5, 2.5)
@given(st.floats(1e-6, 10), st.floats(1e-6, 10))
def test_no_link_is_much_faster_than_its_large_message_was(small: float, large: float) -> None:
    """Noise may make the small message the slower one."""
    link = link_of({1024: small, 4 * 1024 * 1024: large})
    achieved = 4 * 1024 * 1024 / large
    assert link.bandwidth_bytes_per_second <= 10 * achieved * (1 + 1e-9)
    assert link.latency_seconds == min(small, large)
    if large > 2 * small:
        assert link.seconds(4 * 1024 * 1024) == pytest.approx(large)


def test_other_machines_show_how_fast_they_are() -> None:
    """A minibatch of 9 + 18 s takes the second machine's workers twice as long."""
    hosts = [Mock(machine=name) for name in ("first", "first", "second", "second")]
    session = Mock(of_worker=dict(enumerate(hosts)), devices=[DeviceFacts()] * 4)
    (usual,), (slow,) = stage_times([9.0], [4.0]), stage_times([18.0], [4.0])
    known, training = {0: usual, 1: usual}, Mock()
    session.command.return_value = {2: slow, 3: slow}
    assert time_speeds(session, training, known) == [1, 1, 0.5, 0.5]
    session.command.assert_called_once_with({2: training, 3: training})
    (similar,) = stage_times([10.0], [4.0])
    assert speeds_of("aab", {0: usual, 2: similar}, [0]) == [1, 1, 1], "what differs little"
    session.command.side_effect = OutOfMemory("worker 2 needs more")
    assert time_speeds(session, training, known) == [1] * 4
    assert "worker 2 needs more" in session.note.call_args.args[0]


def test_slower_workers_take_their_time() -> None:
    """However busy the machine is, a pass takes its processor time over the speed at least."""
    with ClusterSession(
        capture(ModelReference.named("tests.runtime.worker.test_profiling:wide", batch_size=32)),
        workers=2,
        optimizer=OptimizerSpec(name="sgd"),
        speeds=(1.0, 0.25),
    ) as session:
        profile, cluster = session.profile(repeats=2)
        outcome = session.measure(Placement.from_assignment([0, 0, 1, 1], [0, 1]), 4)
    assert cluster.speeds == (1.0, 0.25)
    assert isinstance(outcome, Measurement)
    work = Workload.of(profile).stage([2, 3], last=True)
    assert outcome.seconds_per_minibatch > 0.5 * work.seconds / 0.25
