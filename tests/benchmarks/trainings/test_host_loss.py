"""A lost host: one small trial of the study, and what it calls a finding."""

import math
import signal
from pathlib import Path

import pytest

from benchmarks.host_loss.__main__ import METHODS, findings_of, hosts_lost_by, table_of
from benchmarks.host_loss.emulated_hosts import CUT, KILLED
from benchmarks.host_loss.losable_hosts import LosableHosts
from benchmarks.host_loss.trials import Task, Trial, run_trial
from tests.support.programs.emulated_clusters import needs_kernel

GOOD = Trial(
    policy="sync",
    lost_by="cut",
    parameters=10,
    planned_seconds=0.1,
    again_seconds=0.5,
    grown_seconds=2.0,
    minibatches=100,
    largest_difference=0.0,
)


def test_what_is_late_or_differs_is_a_finding() -> None:
    late = GOOD.model_copy(update={"again_seconds": 10.1})
    wrong = [GOOD.model_copy(update={"largest_difference": d}) for d in (2e-6, math.inf)]
    assert findings_of([GOOD]) == []
    assert findings_of([GOOD, late]) == ["sync, cut: trained again after 10.1 s"]
    assert findings_of(wrong) == [f"sync, cut: weights differ by {d}" for d in ("2.0e-06", "inf")]
    (row,) = table_of([GOOD, late]).to_dict("records")
    assert (row["trials"], row["trains again"]) == ("2", "5.3 s, at most 10.1 s")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("policy", "way", "minibatches"),
    [
        *((policy, LosableHosts.lost_by, 160) for policy in METHODS),
        # Ray takes seconds to be there again.
        pytest.param("pipeoptim", CUT, 2000, marks=needs_kernel),
        pytest.param("sync", KILLED, 2000, marks=needs_kernel),
    ],
)
def test_a_small_trial_loses_nothing(
    tmp_path: Path, policy: str, way: str, minibatches: int
) -> None:
    task = Task.of(16, 3, 4, minibatches, checkpoint_every=40, method=METHODS[policy])
    with hosts_lost_by(way) as hosts:
        ended_by = signal.getsignal(signal.SIGTERM)
        trial = run_trial(task, tmp_path, 1, hosts)
        # Ray's own would leave networks behind.
        assert signal.getsignal(signal.SIGTERM) is ended_by
    assert trial.largest_difference <= 1e-6
    assert trial.minibatches == 2 * minibatches
    assert 0 < trial.planned_seconds <= trial.again_seconds
