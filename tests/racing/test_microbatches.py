"""The number of microbatches: measured seconds times the samples that staleness costs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS, PlanningProblem, even_split
from drlpp.racing.microbatches import (
    choose_microbatches,
    pipeline_to_try,
    suiting,
)
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.cluster import Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.measured import measurement
from tests.support.strategies.graphs import chain_of, profile_of

CLUSTER = local_cluster(3, Link(bandwidth_bytes_per_second=1e6))


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    """With no worker: none is started before something is measured."""
    model = ModelReference.named("tests.support.models.small:forked")
    with ClusterSession(capture(model, check=False), workers=3) as session:
        yield session


@pytest.mark.parametrize(
    ("weights", "activations", "planned"), [(10**6, 1, (2, 3)), (1, 10**6, (1,))]
)
def test_the_pipeline_to_try_is_the_exact_planners_if_it_has_stages(
    weights: int, activations: int, planned: tuple[int, ...]
) -> None:
    """Slow links carry what is smaller: activations between stages, or the sums of replicas."""
    _, profile = chain_of(
        seconds=[1.0] * 6, parameter_bytes=[weights] * 6, output_bytes=[activations] * 6
    )
    problem = PlanningProblem.profiled(profile, CLUSTER, Method(), OptimizerSpec())
    exact, even = PLANNERS["exact"](problem).placement, even_split(problem, 3)
    assert len(exact.stages) in planned
    assert pipeline_to_try(problem, Method()) == (exact if len(exact.stages) > 1 else even)
    # Lists are for three stages, whatever a planner says.
    assert pipeline_to_try(problem, Method(in_flight_per_link=(1, 0))) == even


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        # Samples at the best rate: 1.30, 1.11 and 1.02.
        ({1: 1.0, 2: 1.1}, 2),
        ({1: 1.0, 2: 1.2}, 1),
        ({1: 1.0, 2: 1.1, 8: 1.18}, 8),
        ({1: 1.0, 2: 1.1, 8: 1.22}, 2),
    ],
)
def test_the_product_decides(
    session: ClusterSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: dict[int, float],
    best: int,
) -> None:
    def on_all(problem: PlanningProblem, method: Method) -> Placement:
        return even_split(problem, problem.cluster.accelerators)

    def measure(candidate: Candidate, minibatches: int) -> Outcome:
        assert candidate.configuration == "1-1-1"
        taken = seconds.get(candidate.method.microbatches)
        if taken is None:
            return FailedMeasurement(failure="out of memory", reason="too large")
        return measurement(taken)

    profile = profile_of(session.graph, [0.01] * len(session.graph))
    monkeypatch.setattr("drlpp.racing.microbatches.pipeline_to_try", on_all)
    monkeypatch.setattr(session, "measure", measure)
    choice = choose_microbatches(session, profile, CLUSTER, tmp_path)
    assert choice is not None
    assert choice.best.microbatches == best
    staleness = {1: 2.0, 2: 1.0, 4: 0.5, 8: 0.25}
    assert {t.microbatches: t.staleness for t in choice.trials} == {
        m: staleness[m] for m in seconds
    }
    # What was chosen stays, whatever a second look would find.
    seconds.clear()
    assert choose_microbatches(session, profile, CLUSTER, tmp_path) == choice


def test_a_schedule_that_flushes_has_nothing_to_choose(
    session: ClusterSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = profile_of(session.graph, [0.01] * len(session.graph))
    monkeypatch.setattr(session, "method", choose_method("sync"))
    assert choose_microbatches(session, profile, CLUSTER, tmp_path) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("stages", "batch_size", "numbers"),
    [(3, 16, [4, 8]), (2, 2, [2]), (4, 37, [1]), (8, 50, [10, 25])],
)
def test_numbers_divide_the_minibatch(stages: int, batch_size: int, numbers: list[int]) -> None:
    assert suiting(stages, batch_size) == numbers
