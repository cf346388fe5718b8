"""What the table of methods has a row, a column and a part for."""

from __future__ import annotations

from dataclasses import dataclass

from drlpp.placement.placement import Placement
from drlpp.runtime import RunOptions
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

MINIBATCHES = 50


@dataclass(frozen=True)
class TableMethod:
    """A row.

    Attributes:
        method: what is run.
        warm_up: whether the first fifth of the minibatches flush (PipeMare's W).
        data_parallel: it is a single stage, replicated on all workers.
    """

    method: Method
    warm_up: bool = False
    data_parallel: bool = False

    def runs(self, minibatches: int) -> list[tuple[int, RunOptions]]:
        """Return the runs, one after another, that make ``minibatches`` minibatches together."""
        if not self.warm_up:
            return [(minibatches, RunOptions())]
        first = minibatches // 5
        return [
            (first, RunOptions(synchronous=True)),
            (minibatches - first, RunOptions(first_minibatch=first)),
        ]


def _pipemare(annealing: int, decay: float, *, recompute: bool = False) -> Method:
    return Method(
        policy="pipemare",
        annealing_minibatches=annealing,
        correction_decay=decay,
        recompute=recompute,
    )


METHODS: dict[str, TableMethod] = {
    "naive": TableMethod(Method(schedule="gpipe", policy="sync")),
    "GPipe": TableMethod(Method(schedule="gpipe", policy="sync", microbatches=4)),
    "GPipe, recomputing": TableMethod(
        Method(schedule="gpipe", policy="sync", microbatches=4, recompute=True)
    ),
    "flushed 1F1B": TableMethod(Method(schedule="1f1b-flush", policy="sync", microbatches=4)),
    "data parallel": TableMethod(Method(policy="sync"), data_parallel=True),
    "vanilla": TableMethod(Method(policy="vanilla")),
    "PipeDream": TableMethod(Method(policy="stash")),
    "PipeDream, recomputing": TableMethod(Method(policy="stash", recompute=True)),
    "vertical sync": TableMethod(Method(policy="stash-vertical")),
    "2BW": TableMethod(Method(policy="2bw", accumulate=5)),
    "SpecTrain": TableMethod(Method(policy="spectrain")),
    "XPipe": TableMethod(Method(policy="xpipe")),
    "PipeOptim": TableMethod(Method(policy="pipeoptim")),
    "PipeOptim, updates of 3": TableMethod(Method(policy="pipeoptim", accumulate=3)),
    "PipeOptim, recomputing": TableMethod(Method(policy="pipeoptim", recompute=True)),
    "PipeMare T1": TableMethod(_pipemare(25, 0.0)),
    "PipeMare T2": TableMethod(_pipemare(0, 0.135)),
    "PipeMare T1+T2": TableMethod(_pipemare(25, 0.135)),
    "PipeMare T1+T2+W": TableMethod(_pipemare(25, 0.135), warm_up=True),
    "PipeMare T1+T2, recomputing": TableMethod(_pipemare(25, 0.135, recompute=True)),
}


def _optimizer(name: str, /, **options: float | bool) -> OptimizerSpec:
    return OptimizerSpec(name=name, options={**options}).as_named_by_user()


OPTIMIZERS: dict[str, OptimizerSpec] = {
    "SGD": _optimizer("sgd", lr=0.1, momentum=0.0, weight_decay=0.01),
    "SGDM": _optimizer("sgd", lr=0.05, momentum=0.9, weight_decay=0.01),
    "Nesterov": _optimizer("sgd", lr=0.05, momentum=0.9, nesterov=True),
    "dampened": _optimizer("sgd", lr=0.1, momentum=0.9, dampening=0.5),
    "Adam": _optimizer("adam", lr=0.005, weight_decay=0.01),
    "AdamW": _optimizer("adamw", lr=0.005),
    "NAdam": _optimizer("nadam", lr=0.005),
    "RAdam": _optimizer("radam", lr=0.005),
    "RMSprop": _optimizer("rmsprop", lr=0.001),
    "Adagrad": _optimizer("adagrad", lr=0.01),
    "Adadelta": _optimizer("adadelta", lr=0.5),
    "Adamax": _optimizer("adamax", lr=0.005),
    "ASGD": _optimizer("asgd", lr=0.1),
    "Lion": _optimizer("benchmarks.methods_table.models:Lion", lr=0.001),
}
"""Those before ASGD have a rule of prediction; ASGD and Lion are predicted by their last step."""

WORKERS = 4

# Operators of the forked model: embedding linear tanh, lstm, conv1d tanh, add linear tanh dropout,
# add mean linear tanh linear.
SHAPES: dict[str, Placement] = {
    "straight": Placement.from_assignment(
        [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3], (0, 1, 2, 3)
    ),
    "2-1-1": Placement.from_assignment([0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2], (0, 0, 1, 2)),
    "branching": Placement.from_assignment(
        [0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3], (3, 1, 0, 2)
    ),
}
DATA_PARALLEL = Placement.from_assignment([0] * 15, (0, 0, 0, 0))
