"""Where the workers of a session run: on this machine, or on the hosts of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from drlpp.errors import InvalidInput
from drlpp.runtime.device.emulation import available_cores
from drlpp.runtime.hosts.host import Hosts, LocalHost
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.specs.cluster import Cluster

_WORKERS_PER_CORE, _LEAST_MOST_WORKERS = 4, 64
"""More workers than these only wait for each other and fill the memory. A file may ask for more."""

PlaceWorkers = Callable[[int, Path, TimeLimits], Hosts]
"""Says where a number of workers run whose session has that folder and those limits."""


def default_num_workers(
    *, cluster: str | None = None, hosts: Cluster | None = None, gpus: bool = True
) -> int:
    """Return a session's usual number of workers: four without a Ray cluster.

    On one it is one for each accelerator that it has, or that the wanted hosts have.

    Raises:
        InvalidInput: the cluster cannot be reached.
    """
    if hosts is not None:
        return hosts.accelerators
    if cluster is None:
        return 4
    return ray_cluster().accelerators_of_cluster(cluster, gpus=gpus)


def check_workers(
    workers: int,
    cluster: str | None = None,
    hosts: Cluster | None = None,
    least: int | None = None,
) -> None:
    """Check that this number of workers can be had.

    Args:
        workers: how many are wanted.
        cluster: address of a Ray cluster.
        hosts: of it that are wanted.
        least: of the workers to begin with, where hosts may be missing.

    Raises:
        InvalidInput: saying how many.
    """
    if workers < 1:
        raise InvalidInput(f"workers is {workers}; at least 1 is needed")
    if hosts is not None and cluster is None:
        raise InvalidInput("hosts are those of a Ray cluster; name it too (--cluster, cluster=)")
    if least is not None and (hosts is None or least > workers):
        raise InvalidInput(
            f"at least {least} of {workers} workers are wanted; expected hosts (hosts=), and no "
            "more workers at least than in all"
        )
    described = workers if hosts is None else hosts.accelerators
    if described > workers or (described < workers and least is None):
        raise InvalidInput(
            f"{workers} workers were asked for, and hosts with {described} accelerators; leave out "
            "one of them"
        )
    cores = len(available_cores())
    most = max(_LEAST_MOST_WORKERS, _WORKERS_PER_CORE * cores)
    if cluster is None and workers > most:
        raise InvalidInput(
            f"{workers} workers were asked for, and each is a process; up to {most} are started "
            f"on this machine of {cores} cores"
        )


def memory_of(hosts: Cluster | None, workers: int) -> tuple[float | None, ...]:
    """Return the memory of every worker's accelerator, None where it is not limited.

    Workers that a description of hosts does not have are on others like its last.
    """
    known = (None,) if hosts is None else hosts.memory_bytes
    return (*known, *known[-1:] * workers)[:workers]


def hosts_for(
    workers: int,
    folder: Path,
    limits: TimeLimits = DEFAULT_TIME_LIMITS,
    *,
    cluster: str | None = None,
    hosts: Cluster | None = None,
    least: int | None = None,
    gpus: bool = True,
) -> Hosts:
    """Return where a session's workers run: on this machine, or the hosts of a Ray cluster.

    Args:
        workers: how many.
        folder: of the session on this machine.
        limits: of the session.
        cluster, hosts, least: as in :func:`check_workers`.
        gpus: whether workers may compute on GPUs.

    Raises:
        InvalidInput: ``torchrun`` has started this program, once for every worker; Ray is not
            installed; or the cluster has not what is wanted.
        HostLost: a host does not answer.
    """
    if cluster is not None:
        return ray_cluster().RayHosts(workers, folder, limits, cluster, hosts, least, gpus=gpus)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise InvalidInput(
            "this program was started by torchrun, and every process would have workers of its "
            "own; start it once, and name a Ray cluster for several hosts (--cluster, cluster=)"
        )
    return Hosts([LocalHost(range(workers), folder)])


def ray_cluster() -> ModuleType:
    """Import what works with Ray; a session on one machine neither needs it nor waits for it.

    Raises:
        InvalidInput: it is not installed.
    """
    try:
        import ray  # noqa: F401
    except ImportError:
        raise InvalidInput(
            "a cluster of several hosts needs Ray, which is not installed: "
            "pip install 'drlpp[ray]', on every host"
        ) from None
    from drlpp.runtime.hosts.on_ray import cluster

    return cluster
