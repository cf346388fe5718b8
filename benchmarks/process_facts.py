"""What Linux tells about a process: its memory, open files, threads and processor time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessFacts:
    """A process at one moment; memory is what is resident."""

    memory_bytes: int
    open_files: int
    threads: int
    processor_seconds: float


def facts_of(process_id: int) -> ProcessFacts:
    """Of a process that runs.

    Raises:
        OSError: it has ended.
    """
    folder = Path(f"/proc/{process_id}")
    # The name, in brackets, may hold spaces.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return ProcessFacts(
        memory_bytes=int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        open_files=len(list((folder / "fd").iterdir())),
        threads=int(fields[17]),
        processor_seconds=(int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND,
    )


def children_of(process_id: int) -> list[int]:
    """Processes that it started and that run, or that it has not waited for."""
    return [
        int(child)
        for thread in Path(f"/proc/{process_id}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
