"""Workers that cells of a study share: they live as long as the process that runs the cells."""

from __future__ import annotations

import atexit

from benchmarks.methods_table.rows import WORKERS
from drlpp.capturing.capture import CapturedModel
from drlpp.runtime import ClusterSession


def session_of_process(captured: CapturedModel) -> ClusterSession:
    """Start four workers for a model; they end with this process."""
    session = ClusterSession(captured, WORKERS)
    atexit.register(session.close)
    return session
