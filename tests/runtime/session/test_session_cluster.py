"""The cluster that a session's hosts are, and the cores of their machines."""

from pathlib import Path

from drlpp.runtime.device.devices import DeviceFacts
from drlpp.runtime.hosts.local_host import LocalHost
from drlpp.runtime.session.profiling import (
    crowded_machine,
    ends_to_measure,
    session_cluster,
)
from drlpp.specs.cluster import Link


def test_hosts_become_a_cluster() -> None:
    a, b, c = ("a", (0, 1)), ("b", (0, 1, 2, 3)), ("c", (0,))
    named = [("x", *a), ("x", *a), ("x", *a), ("y", *b), ("z", *c)]
    places = [_Named((worker,), *name) for worker, name in enumerate(named)]
    assert ends_to_measure(places) == [(0, 1), (0, 3), (0, 4)]
    inside, quick, slow = (Link(bandwidth_bytes_per_second=b) for b in (1e10, 1e9, 1e8))
    links = {(0, 1): inside, (0, 3): quick, (0, 4): slow}
    cluster = session_cluster(places, [DeviceFacts()] * 5, (1.0,) * 5, links)
    assert cluster.host_of == (0, 0, 0, 1, 2)
    assert cluster.link(0, 2) == inside
    assert cluster.link(1, 3) == quick
    assert cluster.link(3, 4) == cluster.link(0, 4) == slow
    note = crowded_machine((1.0,) * 5, places, [DeviceFacts()] * 5)
    assert note is not None
    assert "3 workers share 2 cores of a" in note
    emulated = session_cluster(places, [DeviceFacts()] * 5, (0.5, 0.25, 0.5, 0.5, 0.5), links)
    assert emulated.speeds == (0.5, 0.25, 0.5, 0.5, 0.5)
    assert emulated.link(0, 4) == slow
    assert crowded_machine((0.5, 0.25, 0.5, 0.5, 0.5), places, [DeviceFacts()] * 5) is None
    gpus = [DeviceFacts("cuda", "GPU", name, 80) for name in ("a", "b", "b", "c", "d")]
    on_gpus = session_cluster(places, gpus, (1.0,) * 5, links)
    assert on_gpus.devices == ("cuda",) * 5
    assert crowded_machine((1.0,) * 5, places, gpus) is None
    assert on_gpus.memory_bytes == (40, 40, 40, 80, 80)
    alone = [_Named((0,), "x", *c)]
    assert ends_to_measure(alone) == []
    assert session_cluster(alone, [DeviceFacts()], (1.0,), {}).accelerators == 1


class _Named(LocalHost):
    def __init__(
        self, workers: tuple[int, ...], name: str, machine: str, cores: tuple[int, ...]
    ) -> None:
        super().__init__(workers, Path("unused"), name)
        self.machine, self.cores = machine, cores
