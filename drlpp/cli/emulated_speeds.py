"""The speeds of emulated accelerators, as a user gives them."""

from __future__ import annotations

import math

from drlpp.errors import InvalidInput


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
