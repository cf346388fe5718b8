"""What a kind of schedule is: an order of computations, and what the kind can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from drlpp.errors import InvalidInput
from drlpp.schedule.actions import Computation, MicrobatchId, Update
from drlpp.schedule.pipeline import Pipeline


@dataclass(frozen=True)
class Share:
    """What falls to one worker in a run.

    Attributes:
        replica: its number among the ``replicas`` of its stage.
        stage: which of the ``stages`` it holds, the first of ``stages_held``.
        in_flight: parts that it may have in flight where the pipeline is not emptied.
        most_in_flight: those of the stage that may have the most.
        minibatches: of the run, each of ``microbatches`` parts.
        together: minibatches whose gradients make one update of the stage.
    """

    replica: int
    replicas: int
    stage: int
    stages: int
    stages_held: int
    in_flight: int
    most_in_flight: int
    minibatches: int
    microbatches: int
    together: int

    def parts(self, first: int = 0, through: int | None = None) -> list[MicrobatchId]:
        """Return the worker's parts of the minibatches from ``first`` until ``through``.

        Replicas take turns (:func:`replica_of`), so that nobody has to coordinate.
        """
        through = self.minibatches if through is None else through
        begin = first * self.microbatches
        begin += (self.replica - begin) % self.replicas
        numbers = range(begin, through * self.microbatches, self.replicas)
        return [divmod(number, self.microbatches) for number in numbers]

    def updates(self) -> Iterator[tuple[list[MicrobatchId], Update]]:
        """Yield every update of the stage, with the worker's own parts of it.

        In the last round a replica may have no part; it still joins in the update.
        """
        for version, first in enumerate(range(0, self.minibatches, self.together), start=1):
            through = min(first + self.together, self.minibatches)
            contributions = (through - first) * self.microbatches
            yield self.parts(first, through), Update(version, contributions, through)


def replica_of(part: MicrobatchId, microbatches: int, replicas: int) -> int:
    """Return the replica that takes a part, by round-robin."""
    minibatch, microbatch = part
    return (minibatch * microbatches + microbatch) % replicas


@dataclass(frozen=True)
class ScheduleKind:
    """A kind of schedule.

    Attributes:
        name: as users write it.
        order: the computations of a worker, in order. A forward comes before its backward, and an
            update behind the backwards that contribute to it. Recomputation is added elsewhere, and
            halves of a backward are put together on stages that send no gradients.
        flushes: whether the pipeline is empty at every update, so that all passes of it meet the
            same weights. Otherwise a worker performs, once ``in_flight`` of its parts are on their
            way, one backward for each forward, and a user may choose how many are in flight.
        splits_backward: whether backwards come in two halves. Both halves need the same weights, so
            such a kind flushes.
        stages_held: how many stages a worker holds: one, or two of a folded pipeline.
        trains: whether there are backwards and updates.
    """

    name: str
    order: Callable[[Share], Iterator[Computation]]
    flushes: bool
    splits_backward: bool = False
    stages_held: int = 1
    trains: bool = True

    def check_stages_held(self, pipeline: Pipeline) -> None:
        """Check that workers hold as many stages as the kind gives passes of.

        Evaluations pass whatever there is.

        Raises:
            InvalidInput: saying what would be right.
        """
        if not self.trains or (self.stages_held == 2) == pipeline.is_folded:
            return
        if self.stages_held == 2:
            raise InvalidInput(
                f"schedule {self.name} needs a placement whose accelerators hold two stages each, "
                "the first and the last, the second and the last but one, and so on; here they "
                "hold one"
            )
        raise InvalidInput(
            f"a {self.name} schedule is for one stage on each accelerator; here they hold two"
        )

    def minibatches_of_update(self, replicas: Any, accumulate: int, microbatches: int = 1) -> Any:
        """Return the number of minibatches whose gradients make one update of a stage, or of some.

        All stages update together where the pipeline is emptied. Otherwise it is the fewest whole
        multiples of ``accumulate`` that give each replica one part.
        """
        if self.flushes:
            return accumulate + 0 * replicas
        return -(-replicas // (accumulate * microbatches)) * accumulate
