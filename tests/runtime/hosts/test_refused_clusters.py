"""What is refused before any worker is started, in one line."""

import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from drlpp.errors import InvalidInput
from drlpp.runtime import ClusterSession
from drlpp.runtime.hosts import session_hosts
from drlpp.runtime.hosts.on_ray import cluster as on_ray
from drlpp.runtime.hosts.session_hosts import check_workers, default_num_workers
from drlpp.specs.cluster import Cluster, Host, Link

LINK = Link(bandwidth_bytes_per_second=1e9)
PAIR = Cluster(
    hosts=(Host(name="a", accelerators=2), Host(name="b", accelerators=2)),
    within_host=LINK,
    between_hosts=LINK,
)
MODEL = "tests.support.models.small:forked"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that says nothing."""
    monkeypatch.setattr(on_ray, "_NODE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("workers", "given", "words"),
    [
        (0, (), "at least 1"),
        (4, (None, PAIR), "name it too"),
        (3, ("auto", PAIR), "3 workers .* with 4 acc"),
        (5, ("auto", PAIR), "5 workers .* with 4 acc"),
        (3, ("auto", PAIR, 2), "3 workers .* with 4 acc"),
        (4, ("auto", PAIR, 5), "at least 5 of 4"),
        (4, ("auto", None, 2), "expected hosts"),
        (1000, (), "each is a process"),
    ],
)
def test_numbers_of_workers(workers: int, given: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_workers(workers, *given)
    check_workers(4, "auto", PAIR)
    check_workers(7, "auto", PAIR, 2)


def _on_torchrun(monkeypatch: pytest.MonkeyPatch, _address: str) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    ClusterSession(MODEL, 1)


def _without_ray(monkeypatch: pytest.MonkeyPatch, _address: str) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    default_num_workers(cluster="auto")


def _where_nobody_speaks(_patch: pytest.MonkeyPatch, address: str) -> None:
    ClusterSession(MODEL, 1, cluster=address)


def _through_a_client(monkeypatch: pytest.MonkeyPatch, _address: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:1")
    ClusterSession(MODEL, 1, cluster="auto")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (_through_a_client, "ray://127.0.0.1:1 is no address of a head, .* give auto or HOST:PORT"),
        (_on_torchrun, "started by torchrun, .* name a Ray cluster"),
        (_without_ray, r"not installed: pip install 'drlpp\[ray\]'"),
        (_where_nobody_speaks, "cannot be reached.*no word .* RAY_AUTH_MODE"),
    ],
)
def test_clusters(
    call: Callable[[pytest.MonkeyPatch, str], None],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    silent: str,
) -> None:
    with pytest.raises(InvalidInput, match=words):
        call(monkeypatch, silent)
    assert session_hosts.default_num_workers() == 4
