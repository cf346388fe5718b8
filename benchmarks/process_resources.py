"""What a process holds, as Linux tells it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class ProcessResources:
    """At one moment.

    Attributes:
        memory_bytes: its proportional set size: what it has for itself, and its share of what it
            has with others.
        private_bytes: what it has written and nobody else has.
        threads: how many.
        descriptors: open files and sockets.
    """

    memory_bytes: int
    private_bytes: int
    threads: int
    descriptors: int

    @classmethod
    def of(cls, process_id: int) -> Self:
        """Of a process that runs.

        Raises:
            OSError: it has ended, or the system does not tell.
        """
        folder = Path(f"/proc/{process_id}")
        sizes = {}
        for line in (folder / "smaps_rollup").read_text().splitlines()[1:]:
            name, _, value = line.partition(":")
            sizes[name] = int(value.split()[0]) * 1024
        return cls(
            memory_bytes=sizes["Pss"],
            private_bytes=sizes["Private_Dirty"],
            threads=len(os.listdir(folder / "task")),
            descriptors=len(os.listdir(folder / "fd")),
        )
