"""The accelerators and the links between them: what ``cluster.yaml`` describes.

Links are within a host and between hosts. A host may be slower to reach than others (``network``),
and lines with the same name are one host with accelerators of several kinds::

    kind: cluster
    version: 1
    hosts:
      - {name: fast, count: 2, accelerators: 4, device: cuda, memory_bytes: 16000000000}
      - {name: slow, accelerators: 2, device: cuda, speed: 0.5, memory_bytes: 8000000000}
    within_host: {bandwidth_bytes_per_second: 1.2e10, latency_seconds: 5.0e-6}
    between_hosts: {bandwidth_bytes_per_second: 1.25e9, latency_seconds: 5.0e-5}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cached_property, reduce
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from drlpp.errors import InvalidCluster
from drlpp.io.documents import Document, StrictRecord, first_problem, read_document
from drlpp.io.quantities import BytesPerSecond, Room, Seconds, Speed

DeviceType = Literal["cpu", "cuda", "xpu", "mps"]
"""What torch calls the devices that workers may compute on, those of ``DEVICE_KINDS``."""


CLUSTER_FILES = (".yaml", ".yml", ".json")
"""How the names of cluster files end."""


class DeviceChoice(StrEnum):
    """What workers compute on; ``auto`` is GPUs where there are any."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    XPU = "xpu"
    MPS = "mps"

    @property
    def demands_gpu(self) -> bool:
        """Whether a worker without a GPU is an error."""
        return self not in (DeviceChoice.AUTO, DeviceChoice.CPU)


class Link(StrictRecord):
    """A connection between two accelerators: seconds = latency + bytes / bandwidth.

    It carries messages in both directions at once.
    """

    bandwidth_bytes_per_second: BytesPerSecond
    latency_seconds: Seconds = 0.0

    def seconds(self, bytes_: float) -> float:
        """Return the seconds that ``bytes_`` need from one end to the other."""
        return self.latency_seconds + bytes_ / self.bandwidth_bytes_per_second

    def slower(self, other: Link) -> Link:
        """Return a path over both: the smaller bandwidth, the larger latency."""
        if self is other:
            return self
        return Link(
            bandwidth_bytes_per_second=min(
                self.bandwidth_bytes_per_second, other.bandwidth_bytes_per_second
            ),
            latency_seconds=max(self.latency_seconds, other.latency_seconds),
        )


MOST_ACCELERATORS = 16_384
"""The most accelerators in a cluster.

A file could ask for more than memory holds, or than any planner can finish.
"""


class Host(StrictRecord):
    """``count`` machines with ``accelerators`` equal accelerators of one ``device`` type each.

    Attributes:
        name: of the machine; of several, ``name-0``, ``name-1``, … Letters, digits, ``.``, ``-``
            and ``_``.
        count: of such machines.
        accelerators: of each.
        device: their type, as torch names it: ``cpu``, ``cuda``, ``xpu`` or ``mps``.
        speed: relative to the device that profiles are measured on; 0.5 takes twice as long.
        flops_per_second: what each computes of a model in training, instead of ``speed``, which
            then follows from the model's FLOPs (:meth:`Cluster.for_model`).
        memory_bytes: of each accelerator; not limited if left out.
        price: of each accelerator, in dollars an hour.
        network: of this host, where it is slower than ``between_hosts``.
    """

    name: str = Field(pattern=r"^\w[\w.-]*$")
    count: int = Field(default=1, ge=1, le=MOST_ACCELERATORS)
    accelerators: int = Field(ge=1, le=MOST_ACCELERATORS)
    device: DeviceType = "cpu"
    speed: Speed = 1.0
    flops_per_second: float | None = Field(default=None, ge=1e6, le=1e18)
    memory_bytes: Room | None = None
    price: float | None = Field(default=None, gt=0, le=1e6)
    network: Link | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its machines."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}-{number}" for number in range(self.count))


class Cluster(Document):
    """Hosts and links; accelerators are numbered 0, 1, … in the order of the hosts."""

    kind: ClassVar[str] = "cluster"

    hosts: tuple[Host, ...] = Field(min_length=1)
    within_host: Link
    between_hosts: Link | None = None

    @model_validator(mode="after")
    def _every_accelerator_is_reachable(self) -> Cluster:
        total = sum(host.count * host.accelerators for host in self.hosts)
        if total > MOST_ACCELERATORS:
            raise ValueError(
                f"there are {total} accelerators; up to {MOST_ACCELERATORS} are supported"
            )
        first_lines: dict[str, Host] = {}
        for host in self.hosts:
            for name in host.names:
                line = first_lines.setdefault(name, host)
                if line.name != host.name:
                    raise ValueError(
                        f"host {name!r} is a line of its own, and one of the several that 'count' "
                        "makes of another line; name one of them otherwise"
                    )
                if line.network != host.network:
                    raise ValueError(
                        f"host {name!r} has two networks; all lines of a host say the same"
                    )
        if len({host.flops_per_second is None for host in self.hosts}) > 1:
            raise ValueError("some hosts say flops_per_second and others do not; all or none do")
        if len(first_lines) > 1 and self.between_hosts is None:
            first, second = list(first_lines)[:2]
            raise ValueError(
                f"the accelerators of {second!r} cannot be reached from {first!r}: several hosts "
                "need 'between_hosts', the link that joins them"
            )
        return self

    @property
    def accelerators(self) -> int:
        """The number of accelerators."""
        return len(self._kinds)

    @cached_property
    def _kinds(self) -> tuple[tuple[Host, str], ...]:
        """For every accelerator its line and the name of its machine."""
        return tuple(
            (host, name)
            for host in self.hosts
            for name in host.names
            for _ in range(host.accelerators)
        )

    @cached_property
    def host_names(self) -> tuple[str, ...]:
        """The names of all machines, in order."""
        return tuple(dict.fromkeys(name for _, name in self._kinds))

    @cached_property
    def host_of(self) -> tuple[int, ...]:
        """The machine of every accelerator, as an index of ``host_names``."""
        index = {name: number for number, name in enumerate(self.host_names)}
        return tuple(index[name] for _, name in self._kinds)

    @cached_property
    def host_name_of(self) -> tuple[str, ...]:
        """The name of every accelerator's host."""
        return tuple(self.host_names[host] for host in self.host_of)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The device type of every accelerator."""
        return tuple(host.device for host, _ in self._kinds)

    @cached_property
    def speeds(self) -> tuple[float, ...]:
        """The relative speed of every accelerator.

        Raises:
            InvalidCluster: they follow from a model (:meth:`for_model`).
        """
        if self.hosts[0].flops_per_second is not None:
            raise InvalidCluster(
                "hosts say flops_per_second, so speeds depend on a model: use "
                "drlpp.plan(model, cluster=…), or give speeds"
            )
        return tuple(host.speed for host, _ in self._kinds)

    @cached_property
    def memory_bytes(self) -> tuple[float | None, ...]:
        """The memory of every accelerator, in bytes."""
        return tuple(host.memory_bytes for host, _ in self._kinds)

    @cached_property
    def prices(self) -> tuple[float | None, ...]:
        """What every accelerator costs, in dollars an hour."""
        return tuple(host.price for host, _ in self._kinds)

    def level(self, one: int, other: int) -> int:
        """Return where two accelerators meet: 0 in a host, 1 between hosts."""
        return int(self.host_of[one] != self.host_of[other])

    @cached_property
    def levels(self) -> tuple[Link, ...]:
        """The link of every level on which two accelerators meet, the innermost first."""
        links = []
        if len(self.host_names) < self.accelerators or self.accelerators == 1:
            links.append(self.within_host)
        if len(self.host_names) > 1:
            assert self.between_hosts is not None
            links.append(self.between_hosts)
        return tuple(links)

    def link(self, one: int, other: int) -> Link:
        """Return the link between two different accelerators."""
        if self.level(one, other) == 0:
            return self.within_host
        return self._between[self._kinds[one][0].network, self._kinds[other][0].network]

    def links_from(self, accelerator: int) -> dict[int, Link]:
        """Return the links from an accelerator to all others."""
        others = (other for other in range(self.accelerators) if other != accelerator)
        return {other: self.link(accelerator, other) for other in others}

    def network(self, accelerator: int) -> Link:
        """Return the link that joins the host of an accelerator to others."""
        return self._between[self._kinds[accelerator][0].network, None]

    @cached_property
    def _between(self) -> dict[tuple[Link | None, Link | None], Link]:
        """The link between hosts with these networks of their own, None for none."""
        assert self.between_hosts is not None
        networks = {None, *(host.network for host in self.hosts)}
        return {
            pair: reduce(Link.slower, filter(None, pair), self.between_hosts)
            for pair in product(networks, networks)
        }

    def ring(self, accelerators: Sequence[int]) -> tuple[Link, ...]:
        """Return the links of a ring through ``accelerators``, none for a single one."""
        if len(self.host_names) == 1:
            return (self.within_host,) * (len(accelerators) if len(accelerators) > 1 else 0)
        return tuple(
            self.link(one, other)
            for one, other in pairwise((*accelerators, accelerators[0]))
            if one != other
        )

    def links_between(self, ones: Sequence[int], others: Sequence[int]) -> set[Link]:
        """Return the links from ``ones`` to ``others``, which have no accelerator in common.

        Those from one host to another are all the same.
        """
        first, second = ({self.host_of[a]: a for a in group} for group in (ones, others))
        return {self.link(one, other) for one in first.values() for other in second.values()}

    def with_speeds(self, speeds: Sequence[float]) -> Cluster:
        """Return the same cluster with other relative speeds, one for every accelerator.

        Raises:
            InvalidCluster: for another number of speeds, or one that is not above 0.
        """
        if len(speeds) != self.accelerators:
            raise InvalidCluster(
                f"{len(speeds)} speeds given for {self.accelerators} accelerators; "
                "expected one for each"
            )
        try:
            return self.with_hosts(
                Host(**{**line.model_dump(), "speed": speed, "flops_per_second": None})
                for line, speed in zip(self._lines, speeds, strict=True)
            )
        except ValidationError as error:
            raise InvalidCluster(f"speeds are {list(speeds)}: {first_problem(error)}") from None

    def for_model(self, flops: float, seconds: float) -> Cluster:
        """Return the same cluster with the speeds that its ``flops_per_second`` mean for a model.

        Args:
            flops: of a minibatch, forward and backward.
            seconds: that it takes on the device that was profiled.

        Raises:
            InvalidCluster: an accelerator would be too slow or too fast for any that there is.
        """
        return self.with_speeds(
            [(host.flops_per_second or 0) * seconds / flops for host, _ in self._kinds]
        )

    def part(self, accelerators: Sequence[int]) -> Cluster:
        """Return a cluster of some accelerators, which are numbered anew in the order given."""
        return self.with_hosts(self._lines[accelerator] for accelerator in accelerators)

    @property
    def _lines(self) -> list[Host]:
        """A line for every accelerator."""
        return [
            host.model_copy(update={"name": name, "count": 1, "accelerators": 1})
            for host, name in self._kinds
        ]

    def with_hosts(self, hosts: Iterable[Host]) -> Cluster:
        """Return a cluster with the same links between other hosts."""
        # Not a copy with an update, which would keep what has been cached of these hosts.
        return Cluster(
            hosts=tuple(hosts),
            within_host=self.within_host,
            between_hosts=self.between_hosts,
        )

    def scaled(self, bandwidth: float, memory: float) -> Cluster:
        """Return the same cluster with so many times the bandwidth and the memory."""

        def scaled(link: Link) -> Link:
            faster = bandwidth * link.bandwidth_bytes_per_second
            return link.model_copy(update={"bandwidth_bytes_per_second": faster})

        hosts = [
            host.model_copy(
                update={
                    "memory_bytes": host.memory_bytes and memory * host.memory_bytes,
                    "network": host.network and scaled(host.network),
                }
            )
            for host in self.hosts
        ]
        between = self.between_hosts and scaled(self.between_hosts)
        within = scaled(self.within_host)
        return Cluster(hosts=tuple(hosts), within_host=within, between_hosts=between)


def merged(speeds: Sequence[float], same: float) -> list[float]:
    """Return speeds in which those near the smallest of them are replaced by their mean.

    Args:
        speeds: to be compared.
        same: how far apart they are at most, as a part of the smallest.
    """
    groups: list[list[float]] = []
    for speed in sorted(speeds):
        if not groups or speed > groups[-1][0] * (1 + same):
            groups.append([])
        groups[-1].append(speed)
    means = {speed: fmean(group) for group in groups for speed in group}
    return [means[speed] for speed in speeds]


NAMED_CLUSTERS = Path(__file__).with_name("clusters")
"""A file for each cluster that is known by name, with sources."""


def read_cluster(given: str | Path) -> Cluster:
    """Read a cluster by its name, such as ``a100-10gbit``, or the path of its file.

    Raises:
        InvalidInput: there is no such cluster, or the file is not one.
    """
    if Path(given).suffix in CLUSTER_FILES or Path(given).is_file():
        return read_document(given, Cluster)
    names = sorted(path.stem for path in NAMED_CLUSTERS.glob("*.yaml"))
    if str(given) not in names:
        raise InvalidCluster(
            f"cluster {str(given)!r} is unknown; expected a cluster.yaml, or one of "
            f"{', '.join(names)}"
        )
    return read_document(NAMED_CLUSTERS / f"{given}.yaml", Cluster)


def local_cluster(
    accelerators: int,
    link: Link,
    speeds: Sequence[float] | None = None,
    memory_bytes: float | None = None,
) -> Cluster:
    """Return equal accelerators of one machine, with their own ``speeds`` if given.

    Raises:
        InvalidCluster: for a number that no cluster has, or another number of speeds.
    """
    try:
        host = Host(name="localhost", accelerators=accelerators, memory_bytes=memory_bytes)
    except ValidationError as error:
        raise InvalidCluster(first_problem(error)) from None
    cluster = Cluster(hosts=(host,), within_host=link)
    return cluster if speeds is None else cluster.with_speeds(speeds)
