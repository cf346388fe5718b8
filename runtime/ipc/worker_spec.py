"""What a worker is given when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits


@dataclass(frozen=True)
class StoreAddress:
    """Where the workers of a session find each other.

    Attributes:
        address: of the machine with the store.
        port: of the store.
        token: the prefix of everything that the session keeps there, so that no other session
            meets it by mistake. The store itself has no password.
    """

    address: str
    port: int
    token: str = field(repr=False)


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is given when it starts.

    Attributes:
        worker: its number.
        place: its number among the workers of its host.
        address: of its host, where other workers reach it.
        store: where it finds them.
        limits: of the session.
        speed: below 1 it sleeps after every pass, as if it took so much longer.
        core: that it computes on; None leaves it to the system.
        own_group: whether it leaves the process group that it starts in, since whoever started that
            kills the whole of it, and the worker has files to remove.
        on_one_host: whether all workers of the session are on its host.
    """

    worker: int
    place: int
    address: str
    store: StoreAddress
    limits: TimeLimits = DEFAULT_TIME_LIMITS
    speed: float = 1.0
    core: int | None = None
    own_group: bool = False
    on_one_host: bool = False
