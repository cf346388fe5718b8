"""How many workers there are, and how fast, from what a user gives."""

from __future__ import annotations

import math

from drlpp.errors import InvalidInput
from drlpp.specs.cluster import Cluster
from drlpp.specs.device_choice import DeviceChoice


def workers_and_speeds(
    workers: int | None,
    speeds: str | None,
    device: DeviceChoice,
    cluster: str | None,
    hosts: Cluster | None,
) -> tuple[int, tuple[float, ...] | None]:
    """Return the number of workers, and the speeds that they emulate, None without any.

    Raises:
        InvalidInput: what is given does not go together, or is not there.
    """
    from drlpp.runtime import default_num_workers

    emulated = emulated_speeds(speeds, workers)
    if emulated:
        return len(emulated), emulated
    gpus = device is not DeviceChoice.CPU
    return workers or default_num_workers(cluster=cluster, hosts=hosts, gpus=gpus), None


def emulated_speeds(text: str | None, workers: int | None) -> tuple[float, ...] | None:
    """Return the speeds of emulated accelerators, as fast as this machine can; None without any.

    Args:
        text: relative speeds, separated by commas.
        workers: asked for besides.

    Raises:
        InvalidInput: the numbers are none, are not those of the workers, or cannot be emulated.
    """
    if text is None:
        return None
    from drlpp.cli.planning.planning_input import read_speeds
    from drlpp.runtime.device.emulation import available_cores, fitting_speeds

    relative = read_speeds(text)
    if not all(0 < speed < math.inf for speed in relative):
        raise InvalidInput(f"--speeds {text}: expected numbers above 0, such as 1,1,0.5,0.5")
    if workers not in (None, len(relative)):
        raise InvalidInput(f"--speeds {text} has {len(relative)} numbers for {workers} workers")
    return fitting_speeds(relative, available_cores())
