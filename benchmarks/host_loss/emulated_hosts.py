"""Hosts with Ray on an emulated cluster, of which the last is lost for real, and comes back."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.emulated_cluster import EmulatedCluster, ended_by_signals
from benchmarks.processes import process_of

CUT, KILLED = "cut", "killed raylet"
_POLL_SECONDS = 0.1


class EmulatedHosts:
    """A host is cut off until it returns, or Ray's raylet there is killed.

    Where Ray has ended when it returns, or does later since the head has given the host up
    meanwhile, it is started again.

    Args:
        emulated: the hosts. Ray is started on them for every block of :meth:`used`.
        lost_by: :data:`CUT` or :data:`KILLED`.
    """

    def __init__(self, emulated: EmulatedCluster, lost_by: str) -> None:
        self.lost_by = lost_by
        self._emulated = emulated
        self._number = len(emulated.cluster.host_names) - 1
        self._name = emulated.cluster.host_names[self._number]
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._keep_running, daemon=True)

    @property
    def cluster(self) -> str:
        """Address of the Ray cluster."""
        return self._emulated.ray.address

    @contextmanager
    def used(self) -> Iterator[None]:
        """Be a program on the first host, with a new Ray cluster, in the block."""
        try:
            # Ray's own handlers would end this process at once, in the block and behind it.
            with ended_by_signals(), self._emulated.ray.joined(), ended_by_signals():
                yield
        finally:
            self._over.set()
            if self._watch.ident is not None:
                self._watch.join()
            self._emulated.stop_ray()

    def lose(self) -> None:
        """Lose the last host."""
        if self.lost_by == CUT:
            self._emulated.cut(self._name)
        else:
            node = self._emulated.ray.nodes[self._name]
            os.kill(process_of(node.process.pid, "/raylet"), signal.SIGKILL)

    def return_(self) -> None:
        """Let it be there again; from now on Ray runs there."""
        self._emulated.restore(self._name)
        self._watch.start()

    def _keep_running(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            if self._emulated.ray.nodes[self._name].process.poll() is not None:
                self._emulated.ray.start_node(self._number)
