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
        memory_bytes: its resident set.
        private_bytes: the part of it that the process has written. A process that was forked from
            another shares memory with it until one of them writes there, which may be its first
            garbage collection: this part may grow when the whole does not.
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
            memory_bytes=sizes["Rss"],
            private_bytes=sizes["Private_Dirty"],
            threads=len(os.listdir(folder / "task")),
            descriptors=len(os.listdir(folder / "fd")),
        )
