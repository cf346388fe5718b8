"""How many microbatches suit a model here: measured seconds times the samples that staleness costs.

More microbatches make gradients less late on asynchronous 1F1B, and minibatches dearer: small
passes use an accelerator worse, and there are more messages. What a user waits for is the product
of seconds per minibatch and minibatches to a good model.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from drlpp.costs.profile import Profile
from drlpp.errors import InvalidInput
from drlpp.io.documents import Document, Record, read_document, write_document
from drlpp.io.formatting import seconds_text
from drlpp.io.quantities import Count
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.planners import PlanningProblem, even_split, exact
from drlpp.runtime.session.session import ClusterSession
from drlpp.schedule.analysis.staleness import mean_staleness, samples_needed
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.cluster import Cluster

FILE_NAME = "microbatches.json"

_ROUNDS = 3
_MINIBATCHES = 10


class MicrobatchTrial(Record):
    """What one number of microbatches costs.

    Attributes:
        microbatches: of a minibatch.
        seconds: per minibatch, the median of a few runs in turns with the others.
        staleness: updates between forward and backward, in the mean of the latest stage.
        samples: how many times plain PyTorch's that costs, roughly, at its best learning rate.
    """

    microbatches: Count
    seconds: float = Field(gt=0, allow_inf_nan=False)
    staleness: float = Field(ge=0, allow_inf_nan=False)
    samples: float = Field(gt=0, allow_inf_nan=False)

    @property
    def cost(self) -> float:
        """Seconds to a good model, up to a factor that all have in common."""
        return self.seconds * self.samples


class MicrobatchChoice(Document):
    """Numbers of microbatches that were tried on one pipeline over all workers.

    Attributes:
        configuration: of the pipeline.
        trials: by number.
    """

    kind: ClassVar[str] = "microbatches"

    configuration: str
    trials: tuple[MicrobatchTrial, ...] = Field(min_length=1)

    @property
    def best(self) -> MicrobatchTrial:
        """The one that promises a good model first."""
        return min(self.trials, key=lambda trial: trial.cost)

    def __str__(self) -> str:
        tried = [
            f"{t.microbatches}: {seconds_text(t.seconds)} × {t.samples:.2f}" for t in self.trials
        ]
        return (
            f"microbatches={self.best.microbatches}, the least product of seconds per minibatch on "
            f"{self.configuration} and samples needed ({'; '.join(tried)}); "
            "--method-option microbatches=1 for whole minibatches"
        )


def choose_microbatches(
    session: ClusterSession,
    profile: Profile,
    cluster: Cluster,
    folder: Path,
    tell: Callable[[str], None] = lambda what: None,
) -> MicrobatchChoice | None:
    """Try numbers of microbatches on :func:`pipeline_to_try`; a folder's choice stays.

    Args:
        session: its method is tried with 1, … microbatches, up to twice as many as stages.
        profile, cluster: that the pipeline is planned by.
        folder: for ``microbatches.json``.
        tell: called with what is tried.

    Returns:
        None if there is nothing to choose: the schedule flushes, one worker is all there is, or the
        pipeline could not be measured.
    """
    path = folder / FILE_NAME
    if path.exists():
        return read_document(path, MicrobatchChoice)
    if session.method.flushes or min(cluster.accelerators, len(session.graph)) < 2:
        return None
    problem = PlanningProblem.profiled(profile, cluster, session.method, session.optimizer)
    placement = pipeline_to_try(problem, session.method)
    methods = {
        number: choose_method(None, {"microbatches": number}, session.method)
        for number in numbers_to_try(len(placement.stages), session.captured.task.batch_size)
    }
    seconds: dict[int, list[float]] = {number: [] for number in methods}
    for _ in range(_ROUNDS):
        for number, method in methods.items():
            parts = "whole minibatches" if number == 1 else f"{number} microbatches"
            tell(f"trying {parts} on {placement.configuration}")
            outcome = session.measure(Candidate(placement, method), _MINIBATCHES)
            if isinstance(outcome, Measurement):
                seconds[number].append(outcome.seconds_per_minibatch)
    trials = []
    for number, found in seconds.items():
        if found:
            pipeline = session.plan(placement, methods[number]).pipeline
            late = mean_staleness(pipeline, methods[number])
            trials.append(
                MicrobatchTrial(
                    microbatches=number,
                    seconds=statistics.median(found),
                    staleness=late,
                    samples=samples_needed(late, methods[number].policy),
                )
            )
    if not trials:
        return None
    choice = MicrobatchChoice(configuration=placement.configuration, trials=tuple(trials))
    write_document(path, choice)
    return choice


def pipeline_to_try(problem: PlanningProblem, method: Method) -> Placement:
    """Return the exact planner's pipeline: what is learned is more like it than like others.

    Where it has one stage or there is none, or the method has lists that are for another number of
    stages, it is an even split over all accelerators.
    """
    if not method.has_lists:
        with suppress(InvalidInput):
            planned = exact(problem).placement
            if len(planned.stages) > 1:
                return planned
    return even_split(problem, min(problem.cluster.accelerators, len(problem.workload)))


def divisors(batch_size: int) -> list[int]:
    """Return the numbers of microbatches that divide a minibatch evenly, ascending."""
    return [number for number in range(1, batch_size + 1) if batch_size % number == 0]


def numbers_to_try(stages: int, batch_size: int) -> list[int]:
    """Return numbers of microbatches, ascending, up to twice as many as stages.

    More would make gradients hardly less late than by the half of an update that is left, in the
    mean.
    """
    most = twice_as_many(stages, batch_size) or as_many_as(stages, batch_size)
    return [number for number in divisors(batch_size) if number <= most]


def as_many_as(stages: int, batch_size: int) -> int:
    """Return the fewest microbatches that leave no gradient later than one update.

    If none from ``stages`` to twice that divides a minibatch, it is the most below.
    """
    below = max(number for number in divisors(batch_size) if number <= stages)
    return _least(stages, batch_size) or below


def twice_as_many(stages: int, batch_size: int) -> int | None:
    """Return the fewest that leave gradients at most half an update late in the mean, if any do."""
    return _least(2 * stages, batch_size)


def _least(least: int, batch_size: int) -> int | None:
    """Return the least number from ``least`` to twice that which divides a minibatch evenly."""
    return next((n for n in divisors(batch_size) if least <= n <= 2 * least), None)
