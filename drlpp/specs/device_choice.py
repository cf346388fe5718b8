"""What workers compute on, as a user chooses it."""

from __future__ import annotations

from enum import StrEnum


class DeviceChoice(StrEnum):
    """What workers compute on; ``auto`` is GPUs where there are any."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
