"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9), ("ps", 1e-12))


def seconds_text(seconds: float) -> str:
    """Return seconds in a fitting unit with two digits after the point, such as ``25.30 ms``."""
    # What rounds to a thousand of a unit is one of the next.
    fitting = (one for one in _UNITS if abs(seconds) >= 0.999995 * one[1])
    unit, size = next(fitting, _UNITS[0])
    return f"{seconds / size:.2f} {unit}"


def predicted_text(seconds: float, error_bar: float) -> str:
    """Return seconds with how far off they may be, such as ``26.28 ms ± 6%``, if that is known."""
    return seconds_text(seconds) + (f" ± {error_bar:.0%}" if error_bar else "")


def range_text(least: float, most: float) -> str:
    """Return two times with the unit of the larger one, such as ``9.80–25.30 ms``."""
    last = seconds_text(most)
    number, _, unit = last.partition(" ")
    scale = float(number) / most if most and math.isfinite(most) else 1.0
    return f"{least * scale:.2f}–{number} {unit}"


def emulation_text(speeds: Sequence[float]) -> str:
    """Say which accelerators workers emulate.

    Args:
        speeds: of every worker, in units of a core of this machine.
    """
    listed = ", ".join(f"{speed:g}" for speed in speeds)
    return f"emulated: {len(speeds)} accelerators of speeds {listed} (a core is 1)"
