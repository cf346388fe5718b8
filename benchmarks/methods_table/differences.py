"""How far the workers' weights are from the reference executor's, and the versions they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.methods_table.models import CLASSES, LENGTH, TOKENS
from benchmarks.methods_table.rows import METHODS, MINIBATCHES, OPTIMIZERS, SHAPES, CellKey
from benchmarks.methods_table.sessions import session_of_process
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.io.documents import Record
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession, Minibatches, RunOptions
from drlpp.runtime.reference.reference import ReferenceExecutor

BATCH_SIZE, SAMPLES = 8, 40


class Precise(NamedTuple):
    """A cell and the dtype of its weights."""

    key: CellKey
    dtype: str


class Cell(Record):
    """What a run of a method with an optimizer on a shape showed.

    Attributes:
        method, optimizer, shape: by their names.
        dtype: of the weights.
        difference: :func:`largest_difference` of the workers' weights to the reference's.
        versions: of its weights that a worker held at most, for the worker with the most.
    """

    method: str
    optimizer: str
    shape: str
    dtype: str
    difference: float
    versions: float

    @property
    def key(self) -> CellKey:
        """Which it is, in one of the two precisions."""
        return self.method, self.optimizer, self.shape


class Comparison:
    """Workers that hold the forked model, to be compared with the reference executor.

    Args:
        captured: the forked model.
        session: holds it, with four workers.
        dtype: of its weights.
    """

    def __init__(self, captured: CapturedModel, session: ClusterSession, dtype: str) -> None:
        self._captured = captured
        self._dtype = dtype
        self._session = session
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(0, TOKENS, (SAMPLES, LENGTH), generator=generator)
        targets = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
        self._order = torch.randint(0, SAMPLES, (MINIBATCHES, BATCH_SIZE), generator=generator)
        self._minibatches = Minibatches([tokens], targets)
        session.use_samples([tokens], targets)

    def cell(self, key: CellKey) -> Cell:
        """Train 50 minibatches on the workers and in the reference executor."""
        row, optimizer = METHODS[key[0]], OPTIMIZERS[key[1]]
        placement = row.placement(key[2])
        assert placement is not None
        reference = ReferenceExecutor(
            self._captured, placement, self._minibatches, row.method, optimizer
        )
        deployment = self._session.deploy(placement, row.method, optimizer)
        versions = 0.0
        for minibatches, options in row.runs(MINIBATCHES):
            with_order = self._with_samples(options)
            reference.run(minibatches, with_order)
            _, results = self._session.run(deployment, minibatches, with_order)
            held = (r.peak_weight_bytes / r.weight_bytes for r in results.values())
            versions = max(versions, *held)
        state, _ = self._session.collect(deployment)
        return Cell(
            method=key[0],
            optimizer=key[1],
            shape=key[2],
            dtype=self._dtype,
            difference=largest_difference(state, reference.state()),
            versions=versions,
        )

    def _with_samples(self, options: RunOptions) -> RunOptions:
        return replace(options, order=self._order[options.first_minibatch :])


@cache
def _comparison(dtype: str) -> Comparison:
    """Start workers for the forked model with weights of ``dtype``, once in a process."""
    reference = ModelReference.named(
        "benchmarks.methods_table.models:forked", batch_size=BATCH_SIZE, dtype=dtype
    )
    captured = capture(reference)
    return Comparison(captured, session_of_process(captured), dtype)


def run_cell(cell: Precise) -> Cell:
    """Run a cell; data parallelism, which is the same in all shapes, once in a process."""
    method, optimizer, shape = cell.key
    if not METHODS[method].data_parallel:
        return _comparison(cell.dtype).cell(cell.key)
    return _data_parallel(method, optimizer, cell.dtype).model_copy(update={"shape": shape})


@cache
def _data_parallel(method: str, optimizer: str, dtype: str) -> Cell:
    return _comparison(dtype).cell((method, optimizer, next(iter(SHAPES))))


def largest_difference(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Return the largest max |found − wanted| / max |wanted| over all tensors."""
    return max(
        ((found[name] - value).abs().max() / value.abs().max()).item()
        for name, value in wanted.items()
    )
