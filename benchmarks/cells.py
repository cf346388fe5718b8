"""Every case of a study once, by processes of this machine or as tasks on a Ray cluster.

What comes out is a line in a file, written as soon as it is there, so a study may be interrupted,
and its file says what is left to do.
"""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import ValidationError

from drlpp.errors import InvalidFile, InvalidInput, WorkerLost
from drlpp.io.documents import Record, first_problem
from drlpp.io.json_lines import append, cut_off, read_lines
from drlpp.runtime.hosts.session_hosts import require_ray

_MOST_RUNS = 4
"""Of a cell whose process is killed every time."""

Cell = TypeVar("Cell", bound=Hashable)
Result = TypeVar("Result", bound=Record)


def run_cells(
    run: Callable[[Cell], Result],
    wanted: Callable[[Sequence[Result]], Iterable[Cell]],
    path: Path,
    read: Callable[[Path], list[Result]],
    where: Where,
    tell: Callable[[Result], object] = lambda result: None,
) -> list[Result]:
    """Run cells until none is wanted, and append every result to ``path`` as it comes.

    A cell whose process is killed runs again, up to three times. One that raises ends the study.

    Args:
        run: runs a cell; found by its name in a module. It has one thread, unless cells run alone.
        wanted: gives the cells that are still to be run, from all results so far, in the order in
            which they begin.
        path: results, one in a line; made if there is none.
        read: returns the results in it.
        where: to run them.
        tell: called with every new result.

    Returns:
        All results, those that were there before first.

    Raises:
        WorkerLost: a cell's process was killed four times.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    results = read(path)
    running: dict[Future[Result], Cell] = {}
    lost: Counter[Cell] = Counter()
    runners = runners_on(where)
    try:
        while True:
            size = runners.size
            for cell in wanted(results):
                if len(running) >= size:
                    break
                if cell not in running.values():
                    running[runners.submit(run, cell)] = cell
            if not running:
                return results
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                try:
                    result = future.result()
                except runners.losses as error:
                    lost[cell] += 1
                    if lost[cell] == _MOST_RUNS:
                        raise WorkerLost(
                            f"the process that ran {cell} was killed {_MOST_RUNS} times: memory "
                            "may be short for so many at the same time"
                        ) from error
                    continue
                append(path, result)
                tell(result)
                results.append(result)
    finally:
        runners.close()


def read_results_of(study: str, kind: type[Result], path: Path) -> list[Result]:
    """Return all results in ``path``, none if there is no such file.

    A last line that was cut off while it was written is removed from the file.

    Args:
        study: the module that wrote them.
        kind: of a line.
        path: of the file.

    Raises:
        InvalidFile: if a line is no result.
    """
    lines, rest = read_lines(path)
    cut_off(path, rest)
    results = []
    for number, line in enumerate(lines, start=1):
        try:
            results.append(kind.model_validate_json(line))
        except ValidationError as error:
            raise InvalidFile(
                f"{path}, line {number}: {first_problem(error)}; expected a result that {study} "
                "wrote"
            ) from None
    return results


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
