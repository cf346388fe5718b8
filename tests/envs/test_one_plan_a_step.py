"""One step of an environment checks a placement once, and derives everything once."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from drlpp.capturing.capture import capture
from drlpp.envs import MeasurementMemory, PlacementEnv
from drlpp.models.model_reference import ModelReference
from drlpp.placement import execution_plan
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method

COUNTED = [
    (Placement, "validate_for"),
    (Placement, "pipeline"),
    (execution_plan, "stage_delays"),
    (execution_plan, "weight_uses"),
    (Method, "schedule_for"),
]
HALVES = np.array([0, 0, 1, 0, 1])


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    captured = capture(ModelReference.named("tests.support.models.small:perceptron", layers=1))
    with ClusterSession(captured, workers=2) as session:
        yield session


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    found: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            found[name] += 1
            return function(*arguments, **options)

        return counted

    for owner, name in COUNTED:
        monkeypatch.setattr(owner, name, counting(name, getattr(owner, name)))
    return found


@pytest.mark.parametrize("repetitions", [1, 3])
def test_a_step_on_live_workers(
    session: ClusterSession, calls: Counter[str], repetitions: int
) -> None:
    env = PlacementEnv(MeasurementMemory(session, 6, repetitions=repetitions))
    env.reset()
    env.prefetch(np.stack([HALVES, HALVES]))
    _, _, _, _, info = env.step(HALVES)
    assert isinstance(info["measurement"], Measurement)
    assert calls == dict.fromkeys([name for _, name in COUNTED], 1)
    env.step(HALVES)
    assert calls == dict.fromkeys([name for _, name in COUNTED], 1), "it is known"


def test_what_cannot_run_reaches_no_worker(session: ClusterSession, calls: Counter[str]) -> None:
    env = PlacementEnv(MeasurementMemory(session, 6))
    deployed = session.spent.deploying_seconds
    backwards = np.array([1, 1, 0, 0, 1])
    _, _, _, _, info = env.step(backwards)
    assert info["error_type"] == "invalid placement"
    assert calls == {"validate_for": 1}
    assert session.spent.deploying_seconds == deployed
