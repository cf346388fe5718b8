"""Does an emulated cluster hold what its file says? Links and accelerators, measured within it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks.emulated_cluster.emulation import EmulatedCluster
from drlpp.specs.cluster import Cluster, Link

_PROBE = Path(__file__).with_name("probe.py")
_SECONDS_PER_LINK = 1.0
_MOST_BYTES = 500_000_000
_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class LinkCheck:
    """One way between two accelerators.

    Attributes:
        sender: accelerator.
        receiver: accelerator.
        asked: what the cluster's file says.
        bandwidth_bytes_per_second: of one long message.
        latency_seconds: of a byte, one way.
        delayed: whether the latency is emulated; otherwise the measured one is the machine's own.
    """

    sender: int
    receiver: int
    asked: Link
    bandwidth_bytes_per_second: float
    latency_seconds: float
    delayed: bool

    @property
    def bandwidth_ratio(self) -> float:
        """Measured over asked."""
        return self.bandwidth_bytes_per_second / self.asked.bandwidth_bytes_per_second


@dataclass(frozen=True)
class SpeedCheck:
    """One accelerator.

    Attributes:
        accelerator: its number.
        asked: its speed in the cluster's file.
        measured: the part of a core that it had while all computed.
    """

    accelerator: int
    asked: float
    measured: float

    @property
    def ratio(self) -> float:
        """Measured over asked."""
        return self.measured / self.asked


@dataclass(frozen=True)
class SelfCheck:
    """All that was measured.

    Attributes:
        links: one of each kind.
        speeds: of every accelerator.
        others_cores: what programs outside of the cluster used of this machine meanwhile.
    """

    links: tuple[LinkCheck, ...]
    speeds: tuple[SpeedCheck, ...]
    others_cores: float

    def as_json(self) -> str:
        """Return the check as JSON, with the ratios."""
        return json.dumps(
            {
                "links": [
                    {
                        **asdict(link),
                        "asked": link.asked.model_dump(),
                        "bandwidth_ratio": link.bandwidth_ratio,
                    }
                    for link in self.links
                ],
                "speeds": [{**asdict(speed), "ratio": speed.ratio} for speed in self.speeds],
                "others_cores": self.others_cores,
            },
            indent=1,
        )


def check(emulated: EmulatedCluster) -> SelfCheck:
    """Measure every kind of link, one after the other, and all accelerators at the same time.

    Raises:
        RunFailure: the measuring program fails.
    """
    cluster = emulated.cluster
    ways = kinds_of_ways(cluster)
    links = [cluster.link(*way) for way in ways]
    sizes = [
        round(min(link.bandwidth_bytes_per_second * _SECONDS_PER_LINK, _MOST_BYTES))
        for link in links
    ]
    with tempfile.TemporaryDirectory() as folder:
        task, result = Path(folder, "task.json"), Path(folder, "result.json")
        content = {
            "ways": [[*way, size] for way, size in zip(ways, sizes, strict=True)],
            "addresses": [emulated.addresses[host] for host in cluster.host_of],
        }
        task.write_text(json.dumps(content))
        emulated.run_ranks([sys.executable, str(_PROBE), str(task), str(result)], _TIMEOUT_SECONDS)
        found = json.loads(result.read_text())
    return SelfCheck(
        links=tuple(
            _link_check(emulated, way, found[way[0]][0][str(number)])
            for number, way in enumerate(ways)
        ),
        speeds=tuple(
            SpeedCheck(accelerator, cluster.speeds[accelerator], share)
            for accelerator, (_, (share, _)) in enumerate(found)
        ),
        others_cores=max(0.0, found[0][1][1] - sum(share for _, (share, _) in found)),
    )


def _link_check(
    emulated: EmulatedCluster, way: tuple[int, int], found: Sequence[float]
) -> LinkCheck:
    asked = emulated.cluster.link(*way)
    by = emulated.delayed_by(asked, emulated.cluster.level(*way))
    (sender, receiver), (bandwidth, latency) = way, found
    return LinkCheck(sender, receiver, asked, bandwidth, latency, delayed=by is not None)


def kinds_of_ways(cluster: Cluster) -> list[tuple[int, int]]:
    """Return the first way of every kind that messages may take: (sender, receiver)."""
    found: dict[object, tuple[int, int]] = {}
    for sender, receiver in permutations(range(cluster.accelerators), 2):
        level = cluster.level(sender, receiver)
        # Within a host all links are the same device; elsewhere both ends matter.
        ends = () if level == 0 else (cluster.network(sender), cluster.network(receiver))
        found.setdefault((level, *ends), (sender, receiver))
    return list(found.values())


def table_of(checked: SelfCheck, cluster: Cluster) -> Table:
    """Return a table that compares what was measured with what was asked."""
    table = Table(box=box.SIMPLE)
    for heading in ("", "asked", "measured", "ratio"):
        table.add_column(heading, justify="right" if heading else "left")

    def name(accelerator: int) -> str:
        return f"{accelerator} ({cluster.host_name_of[accelerator]})"

    for link in checked.links:
        way = f"{name(link.sender)} → {name(link.receiver)}"
        table.add_row(
            f"bandwidth {way}",
            _megabits(link.asked.bandwidth_bytes_per_second),
            _megabits(link.bandwidth_bytes_per_second),
            f"{link.bandwidth_ratio:.3f}",
        )
        asked = link.asked.latency_seconds
        table.add_row(
            f"latency {way}",
            f"{asked * 1e6:.0f} µs",
            f"{link.latency_seconds * 1e6:.0f} µs",
            f"{link.latency_seconds / asked:.3f}" if link.delayed else "not emulated",
        )
    for speed in checked.speeds:
        table.add_row(
            f"part of a core {name(speed.accelerator)}",
            f"{speed.asked:.3f}",
            f"{speed.measured:.3f}",
            f"{speed.ratio:.3f}",
        )
    table.add_row("cores used by others meanwhile", "", f"{checked.others_cores:.2f}", "")
    return table


def _megabits(bytes_per_second: float) -> str:
    return f"{bytes_per_second * 8 / 1e6:.1f} Mbit/s"
