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
from drlpp.placement.placement import Placement
from drlpp.planners import PlanningProblem, even_split, exact
from drlpp.racing.race import cost_of, measure_round
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
        session: its method is tried with 1, … microbatches, up to twice as many as stages: more
            would make gradients hardly less late than by the half of an update that is left.
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
    most = suiting(len(placement.stages), session.captured.task.batch_size)[-1]
    numbers = [n for n in divisors(session.captured.task.batch_size) if n <= most]
    methods = [choose_method(None, {"microbatches": n}, session.method) for n in numbers]
    seconds: list[list[float]] = [[] for _ in numbers]

    def measure(index: int) -> float | None:
        parts = "whole minibatches" if numbers[index] == 1 else f"{numbers[index]} microbatches"
        tell(f"trying {parts} on {placement.configuration}")
        return cost_of(session.measure(Candidate(placement, methods[index]), _MINIBATCHES))

    running = list(range(len(numbers)))
    for number in range(_ROUNDS):
        running = measure_round(number, running, measure, seconds)
    trials = []
    for index in running:
        method = methods[index]
        late = mean_staleness(session.plan(placement, method).pipeline, method)
        trials.append(
            MicrobatchTrial(
                microbatches=method.microbatches,
                seconds=statistics.median(seconds[index]),
                staleness=late,
                samples=samples_needed(late, method.policy),
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


def suiting(stages: int, batch_size: int) -> list[int]:
    """Return the fewest microbatches that leave gradients at most one update late, and half of one.

    In the mean: those that divide a minibatch evenly, from as many as stages to twice that, and
    from there to twice that. Without the former it is the most below; the latter may be missing.
    """
    found = [
        next((number for number in divisors(batch_size) if least <= number <= 2 * least), None)
        for least in (stages, 2 * stages)
    ]
    below = max(number for number in divisors(batch_size) if number <= stages)
    return [number for number in (found[0] or below, found[1]) if number is not None]
