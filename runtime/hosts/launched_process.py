"""What a process that ``torchrun`` has started knows of itself, and shows to the others."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from drlpp.errors import InvalidInput
from drlpp.runtime.device.emulation import available_cores
from drlpp.runtime.hosts.host_protocol import Handshake
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits

TOKEN_VARIABLE = "DRLPP_TOKEN"


@dataclass(frozen=True)
class Launch:
    """What ``torchrun`` tells a process.

    Attributes:
        rank: of the process among all; 0 is the controller.
        size: number of processes.
        node: number of its host.
        controller: address of the host of rank 0.
        token: the secret of the session.
        limits: how long to wait for the other processes.
    """

    rank: int
    size: int
    node: int
    controller: str
    token: bytes = field(repr=False)
    limits: TimeLimits = DEFAULT_TIME_LIMITS

    @classmethod
    def from_environment(cls, limits: TimeLimits = DEFAULT_TIME_LIMITS) -> Launch | None:
        """Return the launch, None if this process was not started by ``torchrun``.

        Raises:
            InvalidInput: there is no token.
        """
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return None
        token = os.environ.get(TOKEN_VARIABLE, "")
        if len(token) < 16:
            raise InvalidInput(
                f"{TOKEN_VARIABLE} is {'too short' if token else 'not set'}: processes of torchrun "
                "accept only each other, by a secret in the environment that is the same on every "
                "host, such as what `openssl rand -hex 16` prints"
            )
        return cls(
            rank=int(os.environ["RANK"]),
            size=int(os.environ["WORLD_SIZE"]),
            node=int(os.environ["GROUP_RANK"]),
            controller=os.environ["MASTER_ADDR"],
            token=os.fsencode(token),
            limits=limits,
        )

    def hello(self, address: str) -> Handshake:
        """Return who this process is."""
        return Handshake(
            rank=self.rank,
            node=self.node,
            host_name=socket.gethostname(),
            address=address,
            machine=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            cores=tuple(available_cores()),
        )


def versions() -> str:
    """Return what has to be equal on all hosts, whose processes send each other pickled objects.

    The devices for which torch was built are not part of it, since they may differ.
    """
    found = [
        f"{package} {metadata.version(package).partition('+')[0]}" for package in ("drlpp", "torch")
    ]
    return ", ".join([*found, f"Python {sys.version_info.major}.{sys.version_info.minor}"])
