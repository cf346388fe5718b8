"""The number of microbatches: measured seconds times the samples that staleness costs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS, PlanningProblem, even_split
from drlpp.racing.microbatches import (
    MicrobatchChoice,
    MicrobatchTrial,
    as_many_as,
    choose_microbatches,
    numbers_to_try,
    pipeline_to_try,
    twice_as_many,
)
from drlpp.runtime import ClusterSession
from drlpp.schedule.analysis.samples_needed import samples_needed
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.cluster import Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.strategies.graphs import chain_of


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    captured = capture(ModelReference.named("tests.support.models.small:forked"))
    with ClusterSession(captured, workers=3) as session:
        yield session


def measured(seconds: float) -> Measurement:
    return Measurement(
        seconds_per_minibatch=seconds,
        median_seconds=seconds,
        standard_deviation_seconds=0.0,
        minibatches=10,
    )


def on_all(problem: PlanningProblem, method: Method) -> Placement:
    return even_split(problem, problem.cluster.accelerators)


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
    cluster = local_cluster(3, Link(bandwidth_bytes_per_second=1e6))
    problem = PlanningProblem.profiled(profile, cluster, Method(), OptimizerSpec())
    exact, even = PLANNERS["exact"](problem).placement, even_split(problem, 3)
    assert len(exact.stages) in planned
    assert pipeline_to_try(problem, Method()) == (exact if len(exact.stages) > 1 else even)
    # Lists are for three stages, whatever a planner says.
    assert pipeline_to_try(problem, Method(in_flight_per_link=(1, 0))) == even


def test_samples_by_staleness() -> None:
    assert [samples_needed(s, at_plain_rate=True) for s in (0, 0.875, 3, 7)] == [
        1.0,
        1.14,
        1.78,
        3.0,
    ]
    assert samples_needed(5, at_plain_rate=True) == pytest.approx((1.78 + 3.0) / 2)
    found = [samples_needed(s / 2, at_plain_rate=True) for s in range(60)]
    assert found == sorted(found)
    assert samples_needed(11, at_plain_rate=True) == pytest.approx(3.0 + 1.22)
    assert samples_needed(7) == 2.17


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        # s is 2, 1 and 1/4 in the mean, the samples at the best rate 1.30, 1.11 and 1.02.
        ({1: 1.0, 2: 1.1}, 2),
        ({1: 1.0, 2: 1.2}, 1),
        ({1: 1.0, 2: 1.1, 8: 1.18}, 8),
        ({1: 1.0, 2: 1.1, 8: 1.22}, 2),
        ({1: 1.0}, 1),
    ],
)
def test_the_product_decides(
    session: ClusterSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: dict[int, float],
    best: int,
) -> None:
    def measure(candidate: Candidate, minibatches: int) -> Outcome:
        assert candidate.configuration == "1-1-1"
        if candidate.method.microbatches not in seconds:
            return FailedMeasurement(failure="out of memory", reason="too large")
        return measured(seconds[candidate.method.microbatches])

    profile, cluster = session.profile(repeats=2)
    with monkeypatch.context() as patch:
        patch.setattr("drlpp.racing.microbatches.pipeline_to_try", on_all)
        patch.setattr(session, "measure", measure)
        choice = choose_microbatches(session, profile, cluster, tmp_path)
    assert choice is not None
    assert choice.best.microbatches == best
    assert f"microbatches={best}" in str(choice)
    # What was chosen stays, whatever a second look would find.
    seconds.clear()
    assert choose_microbatches(session, profile, cluster, tmp_path) == choice


def test_numbers_go_up_to_twice_that_of_the_stages(
    session: ClusterSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the workers themselves: of three stages twice as many, of a batch of eight all eight."""
    monkeypatch.setattr("drlpp.racing.microbatches.pipeline_to_try", on_all)
    profile, cluster = session.profile(repeats=2)
    choice = choose_microbatches(session, profile, cluster, tmp_path)
    assert choice is not None
    found = [(trial.microbatches, trial.staleness) for trial in choice.trials]
    assert found == [(1, 2.0), (2, 1.0), (4, 0.5), (8, 0.25)]
    assert all(trial.seconds > 0 for trial in choice.trials)


@pytest.mark.parametrize(
    ("stages", "batch_size", "numbers"),
    [
        (4, 16, [1, 2, 4, 8]),
        (3, 16, [1, 2, 4, 8]),
        (2, 2, [1, 2]),
        (2, 31, [1]),
        (4, 37, [1]),
        (8, 50, [1, 2, 5, 10, 25]),
        (4, 9, [1, 3, 9]),
    ],
)
def test_numbers_divide_the_minibatch(stages: int, batch_size: int, numbers: list[int]) -> None:
    assert numbers_to_try(stages, batch_size) == numbers


@pytest.mark.parametrize(
    ("stages", "batch_size", "many", "twice"),
    [
        (4, 16, 4, 8),
        (3, 16, 4, 8),
        (2, 2, 2, None),
        (4, 9, 3, 9),
        (8, 50, 10, 25),
        (4, 37, 1, None),
    ],
)
def test_as_many_as_stages_and_twice_as_many(
    stages: int, batch_size: int, many: int, twice: int | None
) -> None:
    assert as_many_as(stages, batch_size) == many
    assert twice_as_many(stages, batch_size) == twice


def test_a_schedule_that_flushes_has_nothing_to_choose(
    session: ClusterSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, cluster = session.profile(repeats=2)
    monkeypatch.setattr(session, "method", choose_method("sync"))
    assert choose_microbatches(session, profile, cluster, tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_equals_go_to_fewer_microbatches() -> None:
    trials = tuple(
        MicrobatchTrial(microbatches=m, seconds=1.0, staleness=0, samples=1.0) for m in (1, 2)
    )
    assert MicrobatchChoice(configuration="1-1", trials=trials).best.microbatches == 1
