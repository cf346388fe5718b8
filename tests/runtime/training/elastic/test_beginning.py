"""Training that begins without some of its hosts or workers."""

from pathlib import Path
from typing import Any

import pytest

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import HostLost, InvalidInput, NothingFits
from drlpp.planners.replanning import Elastic
from tests.support.losable_hosts import FailingHost, LosableHosts
from tests.support.training.elastic_trainings import assert_each_sample_once_an_epoch, fit
from tests.support.training.strikes import Strikes, changes_in


@pytest.mark.system
def test_it_begins_and_resumes_with_the_hosts_that_are_there_and_grows(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """The first host is missing; what is there is lost; on the other it is resumed, and grows."""
    hosts = LosableHosts([2, 2], missing=[0])
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].lose())
    with pytest.raises(HostLost, match="; 0 workers are left, and training wants 1 at least"):
        fit(captured, hosts, strikes, tmp_path)
    begin = (
        "host host-0 is missing or in use: training begins with 2 of 4 workers, 1-1, and grows when"
    )
    assert strikes.notes[0].startswith(begin)
    assert changes_in(tmp_path) == ()

    hosts.missing = [1]
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].return_())
    result = fit(captured, hosts, strikes, tmp_path, resume=True)
    assert_each_sample_once_an_epoch(result)
    assert (
        "host host-1 is missing or in use: training begins with 2 of 4 workers" in strikes.notes[0]
    )
    (returned,) = changes_in(tmp_path)
    assert (returned.returned, returned.configuration) == ((2, 3), "1-1-1-1")


@pytest.mark.system
def test_it_begins_without_a_worker_that_cannot_be_started(
    captured: CapturedModel, tmp_path: Path
) -> None:
    class Failing(FailingHost):
        failures = 1000

    strikes = Strikes(tmp_path)
    result = fit(captured, LosableHosts([4], Failing), strikes, tmp_path)
    assert_each_sample_once_an_epoch(result)
    replaced, given_up = changes_in(tmp_path)
    assert (replaced.given_up, given_up.given_up) == ((), (2,))
    assert (given_up.workers, given_up.configuration) == ((0, 1, 3), "1-1-1")


def test_no_plan_for_what_is_there_is_told(captured: CapturedModel, tmp_path: Path) -> None:
    class Planless(Elastic):
        def planner(self, *_: Any) -> Any:
            return self

        def plan(self, *_: Any) -> Any:
            raise NothingFits("no memory")

    hosts = LosableHosts([2, 2], missing=[1])
    with pytest.raises(
        InvalidInput, match=r"host-1 is missing or in use: .* for which there is no plan: no"
    ):
        fit(captured, hosts, Strikes(tmp_path), tmp_path, elastic=Planless(1, 4))
