"""What runs cells: processes of this machine, or tasks on a Ray cluster."""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from drlpp.errors import InvalidInput
from drlpp.runtime.hosts.session_hosts import require_ray


@dataclass(frozen=True)
class Where:
    """Where cells run.

    Attributes:
        processes: of this machine that run cells at the same time.
        cluster: address of a Ray cluster whose CPUs run them instead, one for each; its hosts need
            whatever a cell imports: for a study this checkout, and Ray started with it in
            ``PYTHONPATH``.
        alone: whether a cell times the machine: it has a whole host to itself then, so this machine
            runs one after the other, and a cluster one on each host.

    Raises:
        InvalidInput: several processes would time the machine at once.
    """

    processes: int = 1
    cluster: str | None = None
    alone: bool = False

    def __post_init__(self) -> None:
        if self.alone and self.processes > 1:
            raise InvalidInput(
                f"{self.processes} processes were asked for, and each would time a machine that "
                "others are busy on; one at a time, or a cluster of several hosts (--cluster)"
            )


class Runners(ABC):
    """What runs cells, several at the same time.

    Attributes:
        losses: errors that say that the process of a cell has ended, not that the cell failed.
    """

    losses: tuple[type[Exception], ...]

    @property
    @abstractmethod
    def size(self) -> int:
        """How many cells may run at the same time now."""

    @abstractmethod
    def submit(self, run: Callable[[Any], Any], cell: Any) -> Future[Any]:
        """Begin to run a cell."""

    @abstractmethod
    def close(self) -> None:
        """Begin nothing more."""


def runners_on(where: Where) -> Runners:
    """Return what runs cells there."""
    return _Processes(where) if where.cluster is None else _Tasks(where)


class _Processes(Runners):
    """Processes of this machine."""

    losses = (BrokenProcessPool,)

    def __init__(self, where: Where) -> None:
        self._where = where
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.size, multiprocessing.get_context("spawn"))

    @property
    def size(self) -> int:
        return self._where.processes

    def submit(self, run: Callable[[Any], Any], cell: Any) -> Future[Any]:
        run = run if self._where.alone else partial(_with_one_thread, run)
        try:
            return self._pool.submit(run, cell)
        except BrokenProcessPool:
            # When one process is killed, all end, and none is replaced.
            self._pool.shutdown()
            self._pool = self._new_pool()
            return self._pool.submit(run, cell)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class _Tasks(Runners):
    """Tasks on the hosts of a Ray cluster, as many as there is room for: hosts may join and go."""

    def __init__(self, where: Where) -> None:
        require_ray()
        assert where.cluster is not None
        from ray import exceptions

        from drlpp.runtime.hosts.on_ray.connection import connect

        connect(where.cluster)
        self._alone = where.alone
        # What Ray calls the cell, and the host that it has to itself.
        self._running: dict[Future[Any], tuple[Any, str | None]] = {}
        self.losses = (
            exceptions.WorkerCrashedError,
            exceptions.NodeDiedError,
            exceptions.LocalRayletDiedError,
            exceptions.OutOfMemoryError,
            exceptions.TaskUnschedulableError,
        )

    @property
    def size(self) -> int:
        # At least one: a cluster whose hosts are on their way is waited for.
        return max(1, len(_cpus()) if self._alone else sum(_cpus().values()))

    def submit(self, run: Callable[[Any], Any], cell: Any) -> Future[Any]:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._running = {f: begun for f, begun in self._running.items() if not f.done()}
        # How often a cell is lost is counted for processes of this machine and for tasks alike.
        options: dict[str, Any] = {"max_retries": 0, "num_cpus": 1}
        node = None
        if self._alone:
            taken = {node for _, node in self._running.values()}
            node = next((node for node in _cpus() if node not in taken), None)
        if node is not None:
            options["num_cpus"] = _cpus()[node]
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        task: Any = ray.remote(_as_it_is if self._alone else _with_one_thread)
        reference = task.options(**options).remote(run, cell)
        future: Future[Any] = reference.future()
        self._running[future] = reference, node
        return future

    def close(self) -> None:
        import ray

        for reference, _ in self._running.values():
            with suppress(ray.exceptions.RayError):
                ray.cancel(reference, force=True)


def _cpus() -> dict[str, int]:
    """Return how many CPUs every host of the Ray cluster has that has any, by its identity."""
    from drlpp.runtime.hosts.on_ray.connection import nodes_of_cluster

    nodes = {node.identity: node.resources["CPU"] for node in nodes_of_cluster()}
    return {node: cpus for node, cpus in nodes.items() if cpus}


def _with_one_thread(run: Callable[[Any], Any], cell: Any) -> Any:
    torch.set_num_threads(1)
    return run(cell)


def _as_it_is(run: Callable[[Any], Any], cell: Any) -> Any:
    return run(cell)
