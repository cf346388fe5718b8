"""What runs on the hosts of ``benchmarks.in_flight links``: a pipeline with every depth, in turns.

    python -m benchmarks.in_flight.program SETTINGS FILE

The first host of a Ray cluster runs it. It writes what it has measured into the file and prints how
far it is.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

from benchmarks.models import placement_of
from drlpp.cli.command_line import run_program
from drlpp.costs.profile import Profile
from drlpp.errors import RunFailure
from drlpp.io.documents import Document, Record, write_document
from drlpp.io.formatting import seconds_text
from drlpp.io.trust import trusting
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

STAGES = 4
BLOCKS = (2, 2, 2, 2)
"""Of the model in every stage."""

METHOD = Method(policy="pipeoptim")

# The default rate is too large for weights that are ten updates old.
OPTIMIZER = OptimizerSpec(name="sgd", options={"lr": 1e-4, "momentum": 0.9})


class TurnSettings(Record):
    """What is measured in turns.

    Attributes:
        model: by name.
        minibatches: of a measurement, in addition to those that warm up.
        repetitions: of everything, taken in turns.
    """

    model: ModelReference
    minibatches: int
    repetitions: int


class Settings(TurnSettings):
    """The same, of depths.

    Attributes:
        most_per_link: minibatches in flight beyond NOAM, for each link, of the deepest.
        profile_repeats: timed passes of the profile.
    """

    most_per_link: int
    profile_repeats: int


class DepthSamples(Document):
    """What was measured on one cluster.

    Attributes:
        profile: of the model, on these workers.
        message_bytes: of the largest message between two stages.
        message_seconds: that it takes with nothing else on the link: the median of all ways.
        turns: of every repetition the seconds per minibatch with NOAM, with one more in flight for
            each link, and so on.
    """

    kind: ClassVar[str] = "depth-samples"

    profile: Profile
    message_bytes: int
    message_seconds: float
    turns: tuple[tuple[float, ...], ...]


def even_placement(profile: Profile) -> Placement:
    """Return equal stages, one on each accelerator."""
    return placement_of(profile.graph, BLOCKS, (1,) * STAGES)


def take(settings: Settings) -> DepthSamples:
    """Profile the model, and measure it with every depth in turns.

    Raises:
        RunFailure: the workers fail.
    """
    with ClusterSession(
        settings.model,
        STAGES,
        method=METHOD,
        optimizer=OPTIMIZER,
        device="cpu",
        cluster="auto",
    ) as session:
        profile, _ = session.profile(settings.profile_repeats)
        placement = even_placement(profile)
        print("profiled", flush=True)
        depths = range(settings.most_per_link + 1)
        turns = in_turns(
            session,
            [
                Candidate(placement, METHOD.model_copy(update={"in_flight_per_link": per_link}))
                for per_link in depths
            ],
            [f"{per_link} more in flight for each link" for per_link in depths],
            settings,
        )
    messages = [link for turn in turns for found in turn for link in found.links]
    return DepthSamples(
        profile=profile,
        message_bytes=max(message.bytes_ for message in messages),
        message_seconds=statistics.median(message.seconds for message in messages),
        turns=seconds_of(turns),
    )


def in_turns(
    session: ClusterSession,
    candidates: Sequence[Candidate],
    names: Sequence[str],
    settings: TurnSettings,
) -> list[tuple[Measurement, ...]]:
    """Measure candidates in turns, equal ones once in each, and print what every turn came to.

    Raises:
        RunFailure: the workers fail.
    """
    named = dict(zip(candidates, names, strict=True))
    distinct = list(named)
    turns = []
    for repetition, order in enumerate(orders(settings.repetitions, len(distinct) - 1)):
        found = {}
        for candidate in (distinct[number] for number in order):
            outcome = session.measure(candidate, settings.minibatches)
            if isinstance(outcome, FailedMeasurement):
                raise RunFailure(f"{named[candidate]}: {outcome.reason}")
            found[candidate] = outcome
        turns.append(tuple(found[candidate] for candidate in candidates))
        print(
            f"turn {repetition + 1} of {settings.repetitions}: "
            + ", ".join(map(seconds_text, seconds_of(turns)[-1])),
            flush=True,
        )
    return turns


def seconds_of(turns: Sequence[Sequence[Measurement]]) -> tuple[tuple[float, ...], ...]:
    """Return the seconds per minibatch of every turn."""
    return tuple(tuple(found.seconds_per_minibatch for found in turn) for turn in turns)


def orders(repetitions: int, last: int) -> Iterator[list[int]]:
    """Yield the numbers of every repetition, there and back: the machine's drift hits all alike."""
    there = list(range(last + 1))
    for repetition in range(repetitions):
        yield there if repetition % 2 == 0 else there[::-1]


_Settings = TypeVar("_Settings", bound=TurnSettings)


def run(settings_of: type[_Settings], take: Callable[[_Settings], Document]) -> None:
    """Run with the settings of the command line, and write what was taken into its file."""
    given, path = sys.argv[1:]
    settings = settings_of.model_validate_json(given)
    # The study names its model in the command that starts this.
    model = trusting(settings.model, {settings.model.name.partition(".")[0]})
    write_document(Path(path), take(settings.model_copy(update={"model": model})))


if __name__ == "__main__":
    run_program(partial(run, Settings, take), "benchmarks.in_flight.program")
