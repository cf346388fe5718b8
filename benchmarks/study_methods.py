"""The methods that the study compares: one table, a row for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drlpp.training_options import Method


@dataclass(frozen=True)
class StudyMethod:
    """A row of the table.

    Attributes:
        build: the method for a pipeline of so many stages and a run of so many minibatches.
        synchronous: all weights are up to date, so the depth of the pipeline changes nothing,
            and one run stands for all depths.
        divided: a minibatch is run in as many parts as there are stages, with one update for all
            of them (2BW); the others run it whole.
    """

    build: Callable[[int, int], Method]
    synchronous: bool = False
    divided: bool = False

    def parts(self, depth: int) -> int:
        """In how many parts a minibatch is run in a pipeline of ``depth`` stages."""
        return depth if self.divided else 1


METHODS: dict[str, StudyMethod] = {
    # T = 1 as in the paper, which makes GPipe the naive pipeline, without any staleness.
    "GPipe": StudyMethod(
        lambda depth, minibatches: Method(schedule="gpipe", policy="sync"), synchronous=True
    ),
    "vanilla": StudyMethod(lambda depth, minibatches: Method(policy="vanilla")),
    "PipeDream": StudyMethod(lambda depth, minibatches: Method(policy="stash")),
    "PipeOptim": StudyMethod(lambda depth, minibatches: Method(policy="pipeoptim")),
}
"""By the name that the report shows, in the order of its columns."""
