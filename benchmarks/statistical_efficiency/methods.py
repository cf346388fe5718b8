"""The methods that the study compares: one table, a row for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SUGGESTED_CORRECTION_DECAY


@dataclass(frozen=True)
class StudyMethod:
    """A row of the table.

    Attributes:
        build: the method for a run of a given number of minibatches.
        stages: of the pipeline that stands for all depths, where depth changes nothing; None for
            methods whose weights depend on it.
    """

    build: Callable[[int], Method]
    stages: int | None = None


METHODS: dict[str, StudyMethod] = {
    # T = 1 as in the paper, which makes GPipe the naive pipeline, without any staleness.
    "GPipe": StudyMethod(lambda minibatches: Method(schedule="gpipe", policy="sync"), stages=1),
    "vanilla": StudyMethod(lambda minibatches: Method(policy="vanilla")),
    "PipeDream": StudyMethod(lambda minibatches: Method(policy="stash")),
    # Whatever the depth, every stage's gradients are of the weights one update before: as with
    # vertical sync on two stages, without dividing minibatches (a test shows that they are equal).
    "2BW": StudyMethod(lambda minibatches: Method(policy="stash-vertical"), stages=2),
    "SpecTrain": StudyMethod(lambda minibatches: Method(policy="spectrain")),
    "XPipe": StudyMethod(lambda minibatches: Method(policy="xpipe")),
    # T1 and T2, annealed over the first quarter of the training as pipemare §3.1 suggests, with D
    # as its appendix B.4 derives.
    "PipeMare": StudyMethod(
        lambda minibatches: Method(
            policy="pipemare",
            annealing_minibatches=minibatches // 4,
            correction_decay=SUGGESTED_CORRECTION_DECAY,
        )
    ),
    "PipeOptim": StudyMethod(lambda minibatches: Method(policy="pipeoptim")),
}
"""By the name that the report shows, in the order of its columns."""
