"""Resident memory that a method needs for weights, in units of its stage's weights.

A stage holds much besides weights: gradients, the optimizer's state, the libraries. The same stage
under the naive schedule holds all of it too, and one version of the weights. So what a method's
peak is above that is what it needs for versions, predictions and corrections, and activations in
flight, which are small here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from benchmarks.methods_table.rows import METHODS, OPTIMIZERS, CellKey, Part, TableMethod
from benchmarks.methods_table.sessions import session_of_process
from drlpp.capturing.capture import capture
from drlpp.errors import InvalidInput
from drlpp.io.documents import Record
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.runtime.ipc.answers import RunResult
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

MINIBATCHES = 8
"""Enough to fill the pipeline, and for policy 2bw to make an update while a version is in use."""


def _placement(stages: Sequence[int], accelerators: Sequence[int]) -> Placement:
    """Return two blocks, each a linear layer and its tanh, for every element of ``stages``."""
    return Placement.from_assignment([k for k in stages for _ in range(4)], accelerators)


WIDE_SHAPES = {
    "straight": _placement([0, 1, 2, 3], (0, 1, 2, 3)),
    "2-1-1": _placement([0, 0, 1, 2], (0, 0, 1, 2)),
}
_DATA_PARALLEL = "data parallel"
WIDE_PLACEMENTS = {**WIDE_SHAPES, _DATA_PARALLEL: _placement([0, 0, 0, 0], (0, 0, 0, 0))}

MEASURED_WITH = "SGDM"
"""The optimizer with which the memory of methods is measured."""
WITHOUT_RULE = ("PipeOptim", "ASGD")
"""A method that predicts, and an optimizer without a rule to predict by."""


def memory_keys(part: Part) -> list[CellKey]:
    """Return what is measured of a part: nothing without the optimizer of all measurements.

    A method with two stages on a worker is left out: no naive schedule holds the same stages.
    """
    if MEASURED_WITH not in part.optimizers:
        return []
    pairs = [(name, MEASURED_WITH) for name, row in part.methods.items() if not row.is_folded]
    if WITHOUT_RULE[0] in part.methods:
        pairs.append(WITHOUT_RULE)
    return [(*pair, shape) for shape in WIDE_SHAPES for pair in pairs]


class Resident(Record):
    """What memory a method took.

    Attributes:
        method, optimizer, shape: by their names.
        versions: resident memory of weights over weights.
    """

    method: str
    optimizer: str
    shape: str
    versions: float

    @property
    def key(self) -> CellKey:
        """Which it is."""
        return self.method, self.optimizer, self.shape


class MemoryMeter:
    """Workers that hold the wide model in one placement.

    Args:
        session: holds it, with four workers.
        placement: of all methods.
    """

    def __init__(self, session: ClusterSession, placement: Placement) -> None:
        self._session = session
        self._placement = placement
        self._naive: dict[tuple[int, str], dict[int, RunResult]] = {}

    def versions(self, row: TableMethod, optimizer: OptimizerSpec) -> float:
        """Return weights and what a method holds besides, over weights.

        It is that of the worker with the most.

        Raises:
            InvalidInput: on a system that does not tell a process's peak memory.
        """
        results = self._run(row, optimizer)
        if not all(result.peak_memory_bytes for result in results.values()):
            raise InvalidInput(
                "peak memory is read from /proc/self/status, which this system does not have; "
                "measure on Linux"
            )
        naive = self._naive_results(row.method, optimizer)
        return max(
            1 + (result.peak_memory_bytes - naive[worker].peak_memory_bytes) / result.weight_bytes
            for worker, result in results.items()
        )

    def _naive_results(self, method: Method, optimizer: OptimizerSpec) -> dict[int, RunResult]:
        """Return results of the naive schedule that sums up as many gradients for an update."""
        accumulate = method.accumulate * method.microbatches
        key = (accumulate, str(optimizer))
        if key not in self._naive:
            naive = Method(schedule="gpipe", policy="sync", accumulate=accumulate)
            self._naive[key] = self._run(TableMethod(naive, "1"), optimizer)
        return self._naive[key]

    def _run(self, row: TableMethod, optimizer: OptimizerSpec) -> dict[int, RunResult]:
        deployment = self._session.deploy(self._placement, row.method, optimizer)
        together: Mapping[int, RunResult] = {}
        for minibatches, options in row.runs(MINIBATCHES):
            _, results = self._session.run(deployment, minibatches, options)
            together = {
                worker: result.after(together[worker]) if together else result
                for worker, result in results.items()
            }
        return dict(together)


@cache
def _memory_meter(placement: str) -> MemoryMeter:
    """Start workers for the wide model in a placement, by its name, once in a process.

    They have held no other: pages of the model's file that a worker once read stay resident.
    """
    captured = capture(ModelReference.named("benchmarks.methods_table.models:wide"))
    return MemoryMeter(session_of_process(captured), WIDE_PLACEMENTS[placement])


def measure_resident(key: CellKey) -> Resident:
    """Measure the memory of a method's weights."""
    method, optimizer, shape = key
    row = METHODS[method]
    # The same in all shapes.
    meter = _memory_meter(_DATA_PARALLEL if row.data_parallel else shape)
    versions = meter.versions(row, OPTIMIZERS[optimizer])
    return Resident(method=method, optimizer=optimizer, shape=shape, versions=versions)
