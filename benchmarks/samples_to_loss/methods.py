"""The methods that the study compares: one table, a row for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.learning.samples_needed import PLAIN
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SUGGESTED_CORRECTION_DECAY
from drlpp.specs.optimizer_spec import OptimizerSpec

_CLIP = 1.0
_SMALLEST_MINIBATCH = 16
"""Samples, of all tasks."""
_OPTIMIZERS: dict[str, dict[str, object]] = {
    "adamw": {"weight_decay": 0.01},
    # As AsyncPP has it.
    "nadam": {"weight_decay": 0.01, "betas": (0.99, 0.999), "decoupled_weight_decay": True},
    "muon": {"weight_decay": 0.01},
    "basisrotation": {"weight_decay": 0.01},
}


@dataclass(frozen=True)
class StudyMethod:
    """A row of the table.

    Attributes:
        build: the method for a depth and a number of minibatches.
        optimizer: name of the one that it trains with.
        plain: it has no staleness, and depth does not concern it.
    """

    build: Callable[[int, int], Method]
    optimizer: str = "adamw"
    plain: bool = False

    @property
    def keeps_rate_of_plain(self) -> bool:
        """Whether a user of the baseline may take it without another optimizer."""
        return self.optimizer == METHODS[BASELINE].optimizer

    def spec(self, learning_rate: float) -> OptimizerSpec:
        """Return its optimizer with a learning rate."""
        return OptimizerSpec.parse(self.optimizer, lr=learning_rate, **_OPTIMIZERS[self.optimizer])


def _plain(optimizer: str) -> StudyMethod:
    def build(depth: int, minibatches: int) -> Method:
        return Method(schedule="gpipe", policy="sync", clip_norm=_CLIP)

    return StudyMethod(build, optimizer, plain=True)


def _whole(
    policy: str, optimizer: str = "adamw", *, stage_momentum: float | None = None
) -> StudyMethod:
    """Return a method on whole minibatches."""

    def build(depth: int, minibatches: int) -> Method:
        return Method(policy=policy, clip_norm=_CLIP, stage_momentum=stage_momentum)

    return StudyMethod(build, optimizer)


def _divided(policy: str, optimizer: str = "adamw", *, parts_of_stage: int = 1) -> StudyMethod:
    """Return a method on minibatches of as many parts as there are stages, or a multiple."""

    def build(depth: int, minibatches: int) -> Method:
        parts = min(parts_of_stage * depth, _SMALLEST_MINIBATCH)
        return Method(policy=policy, microbatches=parts, clip_norm=_CLIP)

    return StudyMethod(build, optimizer)


def _pipemare(depth: int, minibatches: int) -> Method:
    """T1 over the first quarter, as pipemare §3.1 suggests, and T2."""
    return Method(
        policy="pipemare",
        annealing_minibatches=minibatches // 4,
        correction_decay=SUGGESTED_CORRECTION_DECAY,
        clip_norm=_CLIP,
    )


BASELINE = PLAIN
"""Whose loss is the one to reach."""

METHODS: dict[str, StudyMethod] = {
    BASELINE: _plain("adamw"),
    "plain NAdam": _plain("nadam"),
    "plain Muon": _plain("muon"),
    "vanilla": _whole("vanilla"),
    "PipeDream": _whole("stash"),
    "SpecTrain": _whole("spectrain"),
    "XPipe": _whole("xpipe"),
    "PipeMare": StudyMethod(_pipemare),
    "PipeOptim": _whole("pipeoptim"),
    "last step": _whole("last-step"),
    "NAG": _whole("stash", "nadam"),
    "NAG, momentum per stage": _whole("stash", "nadam", stage_momentum=0.995),
    "Muon, PipeDream": _whole("stash", "muon"),
    "Muon, last step": _whole("last-step", "muon"),
    "basis rotation": _whole("stash", "basisrotation"),
    "2BW": _divided("2bw"),
    "2BW with error feedback": _divided("2bw-ef"),
    "Muon, 2BW": _divided("2bw", "muon"),
    "Muon, 2BW with error feedback": _divided("2bw-ef", "muon"),
    "PACI": _divided("vanilla"),
    "PipeOptim, M = D": _divided("pipeoptim"),
    "PipeOptim, M = 2D": _divided("pipeoptim", parts_of_stage=2),
    "last step, M = D": _divided("last-step"),
    "NAG, M = D": _divided("stash", "nadam"),
    "Muon, last step, M = D": _divided("last-step", "muon"),
}
"""By the name that the report shows, in the order of its rows."""
