"""What the tables of methods have a row, a column and a part for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from drlpp.placement.placement import Placement, Stage
from drlpp.runtime import RunOptions
from drlpp.schedule.method import Method
from drlpp.specs.class_options import OptionValue
from drlpp.specs.optimizer_spec import OptimizerSpec

MINIBATCHES = 50
WORKERS = 4

CellKey = tuple[str, str, str]
"""Method, optimizer, shape."""


@dataclass(frozen=True)
class TableMethod:
    """A row.

    Attributes:
        method: what is run.
        warm_up: whether the first fifth of the minibatches flush (PipeMare's W).
        data_parallel: it is a single stage, replicated on all workers.
        versions: of its weights that a stage holds, as the papers have it.
    """

    method: Method
    versions: str
    warm_up: bool = False
    data_parallel: bool = False

    @property
    def is_folded(self) -> bool:
        """Whether workers hold two stages each."""
        return self.method.schedule_kind.stages_held > 1

    def placement(self, shape: str) -> Placement | None:
        """Return what a shape is for this method; None if it has no such shape."""
        if self.data_parallel:
            return DATA_PARALLEL
        return (FOLDED if self.is_folded else SHAPES).get(shape)

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


def _flushing(schedule: str, microbatches: int = 4, *, recompute: bool = False) -> Method:
    return Method(schedule=schedule, policy="sync", microbatches=microbatches, recompute=recompute)


FIRST_METHODS: dict[str, TableMethod] = {
    "naive": TableMethod(_flushing("gpipe", 1), "1"),
    "GPipe": TableMethod(_flushing("gpipe"), "1"),
    "GPipe, recomputing": TableMethod(_flushing("gpipe", recompute=True), "1"),
    "flushed 1F1B": TableMethod(_flushing("1f1b-flush"), "1"),
    "data parallel": TableMethod(Method(policy="sync"), "1", data_parallel=True),
    "vanilla": TableMethod(Method(policy="vanilla"), "1"),
    "PipeDream": TableMethod(Method(policy="stash"), "1 to D"),
    "PipeDream, recomputing": TableMethod(Method(policy="stash", recompute=True), "1 to D"),
    "vertical sync": TableMethod(Method(policy="stash-vertical"), "–"),
    "2BW": TableMethod(Method(policy="2bw", accumulate=5), "2"),
    "SpecTrain": TableMethod(Method(policy="spectrain"), "2"),
    "XPipe": TableMethod(Method(policy="xpipe"), "2"),
    "PipeOptim": TableMethod(Method(policy="pipeoptim"), "1 to 2"),
    "PipeOptim, updates of 3": TableMethod(Method(policy="pipeoptim", accumulate=3), "1 to 2"),
    "PipeOptim, recomputing": TableMethod(Method(policy="pipeoptim", recompute=True), "1 to 2"),
    "PipeMare T1": TableMethod(_pipemare(25, 0.0), "1"),
    "PipeMare T2": TableMethod(_pipemare(0, 0.135), "1 + δ"),
    "PipeMare T1+T2": TableMethod(_pipemare(25, 0.135), "1 + δ"),
    "PipeMare T1+T2+W": TableMethod(_pipemare(25, 0.135), "1 + δ", warm_up=True),
    "PipeMare T1+T2, recomputing": TableMethod(_pipemare(25, 0.135, recompute=True), "1 + δ"),
}
"""Versions are those of pipeoptim Table II and pipemare Table 1, §3.2; naive to vanilla need one by
their definition."""


def _divided(policy: str, *, stage_momentum: float | None = None) -> TableMethod:
    """Return a row with minibatches of as many parts as there are workers."""
    method = Method(policy=policy, microbatches=WORKERS, stage_momentum=stage_momentum)
    return TableMethod(method, "–")


LATER_METHODS: dict[str, TableMethod] = {
    "ZB-H1": TableMethod(_flushing("zb-h1"), "1"),
    "ZB-V": TableMethod(_flushing("zb-v", 8), "1"),
    "last step": TableMethod(Method(policy="last-step"), "–"),
    "2BW with error feedback": TableMethod(Method(policy="2bw-ef", accumulate=5), "–"),
    "vanilla, M = D": _divided("vanilla"),
    "PipeDream, M = D": _divided("stash"),
    "2BW, M = D": TableMethod(Method(policy="2bw", microbatches=WORKERS), "2"),
    "2BW with error feedback, M = D": _divided("2bw-ef"),
    "SpecTrain, M = D": _divided("spectrain"),
    "XPipe, M = D": _divided("xpipe"),
    "PipeOptim, M = D": _divided("pipeoptim"),
    "last step, M = D": _divided("last-step"),
}

_HIGHEST_MOMENTUM = 0.995
METHODS_OF_OPTIMIZERS: dict[str, TableMethod] = {
    "PipeDream": FIRST_METHODS["PipeDream"],
    "PipeDream, momentum per stage": TableMethod(
        Method(policy="stash", stage_momentum=_HIGHEST_MOMENTUM), "1 to D"
    ),
    "PipeDream, M = D": LATER_METHODS["PipeDream, M = D"],
    "PipeDream, M = D, momentum per stage": _divided("stash", stage_momentum=_HIGHEST_MOMENTUM),
    "2BW": FIRST_METHODS["2BW"],
    "2BW with error feedback": LATER_METHODS["2BW with error feedback"],
    "last step": LATER_METHODS["last step"],
    "last step, M = D": LATER_METHODS["last step, M = D"],
    "PipeOptim": FIRST_METHODS["PipeOptim"],
    "PipeOptim, M = D": LATER_METHODS["PipeOptim, M = D"],
}
METHODS: dict[str, TableMethod] = {**FIRST_METHODS, **LATER_METHODS, **METHODS_OF_OPTIMIZERS}


def _optimizer(name: str, /, **options: OptionValue) -> OptimizerSpec:
    return OptimizerSpec(name=name, options={**options}).as_named_by_user()


FIRST_OPTIMIZERS: dict[str, OptimizerSpec] = {
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

LATER_OPTIMIZERS: dict[str, OptimizerSpec] = {
    "NAG": _optimizer("nadam", lr=0.002, betas=[0.99, 0.999], decoupled_weight_decay=True),
    "Muon": _optimizer("muon", lr=0.005),
    "basis rotation": _optimizer("basisrotation", lr=0.002),
}
OPTIMIZERS: dict[str, OptimizerSpec] = {**FIRST_OPTIMIZERS, **LATER_OPTIMIZERS}

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


def _folded(*stages: int) -> Placement:
    """Return stages of these numbers of operators, two on every worker, there and back."""
    ends = [sum(stages[: number + 1]) for number in range(len(stages))]
    return Placement(
        stages=tuple(
            Stage(
                operators=tuple(range(end - length, end)),
                accelerators=(min(number, len(stages) - number - 1),),
            )
            for number, (length, end) in enumerate(zip(stages, ends, strict=True))
        )
    )


# Two stages on a worker have no replicas.
FOLDED: dict[str, Placement] = {
    "straight": _folded(1, 2, 3, 2, 2, 3, 1, 1),
    "branching": _folded(3, 1, 2, 9),
}
DATA_PARALLEL = Placement.from_assignment([0] * 15, (0, 0, 0, 0))


@dataclass(frozen=True)
class Part:
    """A part of the page: methods, each of which is tried with each optimizer in every shape."""

    methods: Mapping[str, TableMethod]
    optimizers: Mapping[str, OptimizerSpec]

    @property
    def keys(self) -> list[CellKey]:
        """All cells."""
        return [
            (method, optimizer, shape)
            for method, row in self.methods.items()
            for optimizer in self.optimizers
            for shape in SHAPES
            if row.placement(shape)
        ]


PARTS: dict[str, Part] = {
    "first": Part(FIRST_METHODS, FIRST_OPTIMIZERS),
    "later": Part(LATER_METHODS, FIRST_OPTIMIZERS),
    "optimizers": Part(METHODS_OF_OPTIMIZERS, LATER_OPTIMIZERS),
}
"""By their names in the marks of the page."""
