"""What is known of costs, after measurements and on a part of the accelerators."""

from dataclasses import replace

import pytest

from drlpp.envs import CostPrior
from drlpp.placement.measurement import WorkerUsage
from drlpp.placement.placement import Placement
from tests.support.measured import measurement
from tests.support.planning.fake_measurer import chain, of

GRAPH = chain(4)
PRIOR = CostPrior.from_sizes(GRAPH, 4)


def test_who_has_measured_nothing_believes_what_was_declared() -> None:
    known = PRIOR.corrected([])
    assert known.problem.workload.seconds == pytest.approx(PRIOR.problem.workload.seconds)


def test_a_part_knows_what_was_measured_on_others() -> None:
    """A worker is busy ten times as long as declared: so would be the two that are left."""
    declared = float(PRIOR.problem.workload.seconds.sum())
    usage = WorkerUsage(
        worker=0,
        stage=0,
        busy_seconds=10 * declared * 10,
        waiting_seconds=0,
        peak_memory_bytes=1,
        bytes_sent=0,
    )
    ran = measurement(10 * declared).model_copy(update={"workers": (usage,), "minibatches": 10})
    alone = of(Placement.straight([1.0] * 4, [0]))
    part = PRIOR.corrected([(alone, ran)]).part([2, 3])
    assert part.problem.cluster.accelerators == 2
    assert float(part.problem.workload.seconds.sum()) > 3 * declared
    assert replace(part, problem=PRIOR.problem) == PRIOR
