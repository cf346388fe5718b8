"""How many workers a session may ask for."""

import pytest

from drlpp.errors import InvalidInput
from drlpp.runtime.hosts.session_hosts import check_workers
from drlpp.specs.cluster import Cluster, Host, Link

LINK = Link(bandwidth_bytes_per_second=1e9)
PAIR = Cluster(
    hosts=(Host(name="a", accelerators=2), Host(name="b", accelerators=2)),
    within_host=LINK,
    between_hosts=LINK,
)


@pytest.mark.parametrize("workers", [3, 5])
def test_workers_are_those_of_the_hosts_that_are_named(workers: int) -> None:
    check_workers(4, "auto", PAIR)
    with pytest.raises(InvalidInput, match=f"{workers} workers were asked for, and hosts with 4 a"):
        check_workers(workers, "auto", PAIR)


def test_where_hosts_may_be_missing_further_ones_may_join() -> None:
    for workers in (4, 7):
        check_workers(workers, "auto", PAIR, least=2)
    with pytest.raises(InvalidInput, match="3 workers were asked for, and hosts with 4 acc"):
        check_workers(3, "auto", PAIR, least=2)
    with pytest.raises(InvalidInput, match="at least 5 of 4 workers are wanted"):
        check_workers(4, "auto", PAIR, least=5)
