"""A race goes on with the accelerators that it began with, and with no others."""

from pathlib import Path

import pytest

from drlpp.cli.learning.known_accelerators import recognized
from drlpp.cli.learning.race_folder import race_folder
from drlpp.errors import InvalidFile
from drlpp.io.documents import write_document
from drlpp.specs.cluster import Cluster, Host, Link

LINK = Link(bandwidth_bytes_per_second=1e9)


def cluster_of(hosts: str) -> Cluster:
    lines = tuple(Host(name=name, accelerators=hosts.count(name)) for name in dict.fromkeys(hosts))
    return Cluster(hosts=lines, within_host=LINK, between_hosts=LINK)


def hosts_of(cluster: Cluster) -> list[str]:
    return [cluster.host_names[host] for host in cluster.host_of]


def raced(run: Path, hosts: str) -> Path:
    """Begin a race on these hosts, or continue it; return the file that it then has."""
    whole = cluster_of("aabc")

    def are_there(cluster: Cluster) -> bool:
        return recognized(whole, hosts_of(cluster)) == recognized(whole, hosts)

    folder = race_folder(run, are_there)
    assert folder == run / "race"
    file = folder / "race.json"
    if not file.exists():
        write_document(folder / "cluster.yaml", cluster_of(hosts))
        file.write_text(hosts)
    return file


def test_every_set_of_accelerators_has_a_race_of_its_own(tmp_path: Path) -> None:
    for hosts in ("aabc", "aab", "aabc", "bc", "cb", "aab", "bc", "aabc"):
        assert raced(tmp_path, hosts).read_text() == hosts
    assert len(list(tmp_path.iterdir())) == 4


def test_a_host_that_stands_for_another_continues_its_race(tmp_path: Path) -> None:
    raced(tmp_path, "aabc")
    assert raced(tmp_path, "xxbc").read_text() == "aabc"


def test_a_race_that_was_put_aside_only_by_half_is_found(tmp_path: Path) -> None:
    """The program was killed between putting one aside and beginning another."""
    raced(tmp_path, "aabc")
    (tmp_path / "race").rename(tmp_path / "race-1")
    assert raced(tmp_path, "aabc").read_text() == "aabc"


def test_a_race_whose_cluster_cannot_be_read_is_not_continued(tmp_path: Path) -> None:
    raced(tmp_path, "aabc").with_name("cluster.yaml").write_text("{")
    with pytest.raises(InvalidFile):
        raced(tmp_path, "aabc")
