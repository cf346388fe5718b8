"""Who takes part in a race to a loss, and who needs no search for a learning rate."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.planners import Space
from drlpp.racing.contenders import Contender
from drlpp.racing.prospects import (
    MOST,
    expected_seconds,
    learning_rates_shared,
    pipelines,
    with_a_chance,
)
from drlpp.racing.rivals import DATA_PARALLEL, PLAIN, Grounds
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.cluster import Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.strategies.graphs import chain_of

GRAPH, PROFILE = chain_of(seconds=[1.0] * 8, parameter_bytes=[1] * 8, output_bytes=[1] * 8)
SYNC = choose_method("sync", {"schedule": "1f1b-flush", "microbatches": 4})


@pytest.fixture
def grounds() -> Grounds:
    def plan(candidate: Candidate) -> ExecutionPlan:
        return ExecutionPlan.of(candidate, GRAPH, 4)

    session: Any = SimpleNamespace(
        method=Method(),
        optimizer=OptimizerSpec.parse("adam"),
        graph=GRAPH,
        plan=plan,
        captured=SimpleNamespace(task=SimpleNamespace(batch_size=16)),
    )
    cluster = local_cluster(4, Link(bandwidth_bytes_per_second=1e9))
    return Grounds(session, PROFILE, cluster, Space(Method()))


def split(stages: int, method: Method, replicas: int = 1) -> Contender:
    cuts = [operator * stages // 8 for operator in range(8)]
    held = [accelerator // replicas for accelerator in range(4)]
    return Contender.of(Candidate(Placement.from_assignment(cuts, held), method), "even split")


def data_parallel(method: Method) -> Contender:
    return split(1, method, 4).model_copy(update={"found_by": DATA_PARALLEL})


PLAIN_ONE = Contender(found_by=PLAIN, method=Method(), threads=1)


def test_what_is_far_behind_does_not_train_but_what_was_asked_for_does(grounds: Grounds) -> None:
    """A pipeline of four equal stages takes a quarter of the time, and 1.77 times the samples."""
    assert expected_seconds(grounds, PLAIN_ONE) == pytest.approx(8, rel=0.01)
    whole, flushed, parts = split(4, Method()), split(2, SYNC), split(4, Method(microbatches=4))
    assert expected_seconds(grounds, whole) == pytest.approx(2 * 1.77, rel=0.01)
    usual = [PLAIN_ONE, data_parallel(SYNC), whole, flushed, parts]
    trained, line = with_a_chance(grounds, usual)
    assert trained == [PLAIN_ONE, data_parallel(SYNC), parts]
    assert line is not None
    assert line.count("×") == 2
    assert f"even split {flushed.configuration}" in line
    # What is named takes room, and trains by both names.
    named = [flushed] * (MOST - 3)
    trained, line = with_a_chance(grounds, usual, named)
    assert trained == [*usual[:2], flushed, parts]
    # Without a memory that suffices nothing but plain PyTorch tries to.
    small = replace(grounds, cluster=local_cluster(4, grounds.cluster.within_host, None, 1e-9))
    assert with_a_chance(small, usual)[0] == usual[:1]


def test_learning_rates_are_shared_by_what_is_as_late(grounds: Grounds) -> None:
    candidates = [
        PLAIN_ONE,
        data_parallel(SYNC),
        split(4, Method()),
        split(4, Method(microbatches=4)),
        split(2, SYNC),
        split(2, Method()),
        split(4, choose_method("stash")),
    ]
    assert learning_rates_shared(grounds.session, candidates) == [0, 0, 2, 3, 0, 3, 6]


# How many microbatches


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        # Samples at the best rate: 1.77, 1.20, 1.17 and 1.09.
        ({1: 1.0, 2: 1.1}, 2),
        ({1: 1.0, 2: 1.5}, 1),
        ({1: 1.0, 2: 1.2, 8: 1.3}, 8),
        ({}, None),
    ],
)
def test_the_least_product_of_seconds_and_samples_decides(
    grounds: Grounds, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], best: int | None
) -> None:
    """What is not there is too large, and so are two stages."""

    def simulated(_: Grounds, candidate: Candidate) -> tuple[bool, float]:
        number = candidate.method.microbatches
        assert number <= 8, "twice as many as stages"
        too_large = number not in seconds or len(candidate.placement.stages) < 4
        return too_large, seconds.get(number, 0.0)

    monkeypatch.setattr(Grounds, "seconds", simulated)
    found = pipelines(grounds, grounds.method)
    assert {one.method.microbatches for one in found} == ({best} if best else set())


def test_what_flushes_races_at_microbatches_of_its_own(grounds: Grounds) -> None:
    """Those of the session were chosen for its asynchronous method."""
    link = Link(bandwidth_bytes_per_second=10.0)
    slow = replace(grounds, cluster=local_cluster(4, link))
    slow.session.method = Method(microbatches=2)
    for method, wanted in ((slow.synchronous("1f1b-flush", 1), 16), (slow.method, 2)):
        found = pipelines(slow, method)
        assert max(one.method.microbatches for one in found) == wanted
