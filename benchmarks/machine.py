"""The machine that figures are measured on, and the day."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import torch

from drlpp.io.documents import Record


class Machine(Record):
    """Where samples were taken, and when that began."""

    processor: str
    cores: int
    python: str
    torch: str
    date: str

    def __str__(self) -> str:
        return (
            f"{self.processor}, {self.cores} cores; Python {self.python}, torch {self.torch}; "
            f"{self.date}"
        )

    def is_like(self, other: Machine) -> bool:
        """Return whether samples of both can be compared: all but the date is the same."""
        return self.model_copy(update={"date": other.date}) == other


def this_machine() -> Machine:
    """Say where and when."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return Machine(
        processor=names[0] if names else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        torch=torch.__version__,
        date=datetime.now(UTC).date().isoformat(),
    )
