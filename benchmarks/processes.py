"""What Linux tells about a process: its memory, open files, threads and processor time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessFacts:
    """A process at one moment.

    Attributes:
        memory_bytes: its resident set.
        private_bytes: the part of it that the process has written. A process that was forked from
            another shares memory with it until one of them writes there, which may be its first
            garbage collection: this part may grow when the whole does not.
        open_files: files and sockets.
        threads: how many.
        processor_seconds: that it has used.
    """

    memory_bytes: int
    private_bytes: int
    open_files: int
    threads: int
    processor_seconds: float


def facts_of(process_id: int) -> ProcessFacts:
    """Of a process that runs.

    Raises:
        OSError: it has ended, or the system does not tell.
    """
    folder = Path(f"/proc/{process_id}")
    sizes = {}
    for line in (folder / "smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        sizes[name] = int(value.split()[0]) * 1024
    # The name, in brackets, may hold spaces.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return ProcessFacts(
        memory_bytes=sizes["Rss"],
        private_bytes=sizes["Private_Dirty"],
        open_files=len(list((folder / "fd").iterdir())),
        threads=int(fields[17]),
        processor_seconds=(int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND,
    )


def children_of(process_id: int) -> list[int]:
    """Processes that it started and that run, or that it has not waited for.

    Raises:
        OSError: it has ended.
    """
    return [
        int(child)
        for thread in Path(f"/proc/{process_id}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
