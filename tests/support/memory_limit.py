"""A process whose memory is limited while it runs."""

from __future__ import annotations

import resource
from pathlib import Path


def limit_memory(process: int, more: int = 2**25) -> None:
    """Let a process hold the data that it has, and so many bytes more."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + more
    resource.prlimit(process, resource.RLIMIT_DATA, (limit, limit))
