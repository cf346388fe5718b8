"""The accelerators and the links between them."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from drlpp.files import Document, Record


class Link(Record):
    """A connection between two accelerators: seconds = latency + bytes / bandwidth."""

    bandwidth_bytes_per_second: float = Field(gt=0)
    latency_seconds: float = Field(default=0.0, ge=0)

    def seconds(self, bytes_: float) -> float:
        """Seconds that ``bytes_`` need from one end to the other."""
        return self.latency_seconds + bytes_ / self.bandwidth_bytes_per_second


class Host(Record):
    """A machine with ``accelerators`` equal accelerators of one ``device`` type."""

    name: str
    accelerators: int = Field(ge=1)
    device: str = "cpu"


class Cluster(Document):
    """Hosts and links; accelerators are numbered 0, 1, … in the order of the hosts."""

    kind: ClassVar[str] = "cluster"

    hosts: tuple[Host, ...] = Field(min_length=1)
    within_host: Link
    between_hosts: Link | None = None

    @model_validator(mode="after")
    def _several_hosts_need_a_link(self) -> Cluster:
        if len(self.hosts) > 1 and self.between_hosts is None:
            raise ValueError("several hosts need 'between_hosts', the link that joins them")
        return self

    @property
    def accelerators(self) -> int:
        """The number of accelerators."""
        return sum(host.accelerators for host in self.hosts)

    def host_of(self, accelerator: int) -> int:
        """The index of the host that ``accelerator`` belongs to."""
        for index, host in enumerate(self.hosts):
            if accelerator < host.accelerators:
                return index
            accelerator -= host.accelerators
        raise IndexError("no such accelerator")

    def link(self, one: int, other: int) -> Link:
        """The link between two different accelerators."""
        if self.between_hosts is None or self.host_of(one) == self.host_of(other):
            return self.within_host
        return self.between_hosts


def local_cluster(accelerators: int, link: Link) -> Cluster:
    """Equal CPU workers on this machine."""
    return Cluster(hosts=(Host(name="localhost", accelerators=accelerators),), within_host=link)
