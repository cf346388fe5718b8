"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

_PREFIXES = {9: "G", 6: "M", 3: "k", 0: "", -3: "m", -6: "µ", -9: "n", -12: "p"}


def seconds_text(seconds: float) -> str:
    """Return seconds with a prefix and two digits after the point, such as ``25.30 ms``."""
    if not seconds or not math.isfinite(seconds):
        return f"{seconds:.2f} s"
    exponent = min(
        max(math.floor(math.log10(abs(seconds)) / 3) * 3, min(_PREFIXES)), max(_PREFIXES)
    )
    # What rounds to a thousand has the next prefix.
    if round(abs(seconds) / 10.0**exponent, 2) >= 1000 and exponent < max(_PREFIXES):
        exponent += 3
    return f"{seconds / 10.0**exponent:.2f} {_PREFIXES[exponent]}s"


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


def speeds_option(speeds: Sequence[float]) -> str:
    """Return what a command needs to emulate accelerators of these speeds, if there are any."""
    return f" --speeds {','.join(map(str, speeds))}" if speeds else ""
