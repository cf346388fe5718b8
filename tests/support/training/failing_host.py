"""A host on which a worker cannot be started."""

import os
import signal
from collections.abc import Sequence
from itertools import cycle

from drlpp.runtime.hosts.local_host import LocalHost
from drlpp.runtime.ipc.protocol import WorkerSpec


class FailingHost(LocalHost):
    """Its worker 2, or the next of ``failing``, ends as soon as it has been started, so often."""

    failures = 0
    failing = cycle([2])

    def start(self, posts: Sequence[WorkerSpec]) -> None:
        super().start(posts)
        numbers = [post.worker for post in posts]
        worker = next(self.failing)
        if worker in numbers and self.failures:
            self.failures -= 1
            os.kill(self.process_ids[numbers.index(worker)], signal.SIGKILL)
