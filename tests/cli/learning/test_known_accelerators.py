"""Accelerators of a run are known by their hosts, whatever numbers the session gives them."""

import pytest

from drlpp.cli.learning.known_accelerators import extended, recognized, stand_ins
from drlpp.specs.cluster import Cluster, Host, Link

LINK = Link(bandwidth_bytes_per_second=1e9)
FAST = Link(bandwidth_bytes_per_second=1e10)


def cluster_of(**accelerators: int) -> Cluster:
    hosts = tuple(Host(name=name, accelerators=count) for name, count in accelerators.items())
    return Cluster(hosts=hosts, within_host=FAST, between_hosts=LINK if len(hosts) > 1 else None)


KNOWN = cluster_of(a=2, b=1, c=2)


@pytest.mark.parametrize(
    ("hosts", "numbers"),
    [
        ("aabcc", (0, 1, 2, 3, 4)),
        ("aacc", (0, 1, 3, 4)),
        ("bccaa", (2, 3, 4, 0, 1)),
        ("ac", (0, 3)),
        # One that has more than it had, and one that nobody has seen.
        ("aaabcc", (0, 1, 5, 2, 3, 4)),
        ("aaccdd", (0, 1, 3, 4, 5, 6)),
        # It has as many as one that is missing.
        ("aadcc", (0, 1, 2, 3, 4)),
        ("xxyzz", (0, 1, 2, 3, 4)),
        ("xxyyzz", (0, 1, 3, 4, 5, 6)),
    ],
)
def test_hosts_are_known_by_name_and_else_by_size(hosts: str, numbers: tuple[int, ...]) -> None:
    assert recognized(KNOWN, hosts) == numbers


def test_who_stands_for_whom_is_said() -> None:
    """A host may be another kind of machine, which its size does not tell."""

    def said(hosts: str) -> dict[str, str]:
        return stand_ins(KNOWN, hosts, recognized(KNOWN, hosts))

    assert said("bccaa") == {}
    assert said("aadcc") == {"d": "b"}
    assert said("xxyzz") == {"x": "a", "y": "b", "z": "c"}
    assert said("aaabccd") == {}


def test_who_joins_stands_behind_the_others() -> None:
    found = Cluster(
        hosts=(
            Host(name="c", accelerators=2),
            Host(name="d", accelerators=3, memory_bytes=8e9),
        ),
        within_host=FAST,
        between_hosts=LINK,
    )
    grown = extended(KNOWN, recognized(KNOWN, "ccddd"), found)
    assert [grown.host_names[host] for host in grown.host_of] == list("aabccddd")
    assert grown.memory_bytes[5] == 8e9
    assert (grown.within_host, grown.between_hosts) == (FAST, LINK)


def test_a_single_host_gets_a_link_to_the_others() -> None:
    grown = extended(cluster_of(a=1), (0, 1, 2), cluster_of(a=1, b=2))
    assert grown.host_names == ("a", "b")
    assert (grown.within_host, grown.between_hosts) == (FAST, LINK)
