"""What runs on the hosts of ``benchmarks.in_flight together``: searches, and what they found.

    python -m benchmarks.in_flight.together_program SETTINGS FILE

The first host of a Ray cluster runs it. It writes what it has measured into the file and prints how
far it is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from benchmarks.in_flight.program import METHOD, STAGES
from drlpp.cli.command_line import run_program
from drlpp.costs.workload import Workload
from drlpp.errors import RunFailure
from drlpp.io.documents import Document, Record, write_document
from drlpp.io.formatting import seconds_text
from drlpp.io.trust import trusting
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement
from drlpp.planners import Limits, PlanningProblem, Space, Vary, best_searched
from drlpp.runtime import ClusterSession
from drlpp.simulator import simulate_depths, smallest_depth
from drlpp.specs.optimizer_spec import OptimizerSpec

# The default rate is too large for weights that are ten updates old.
_OPTIMIZER = OptimizerSpec(name="sgd", options={"lr": 1e-4, "momentum": 0.9})


class SearchSettings(Record):
    """What is searched and measured.

    Attributes:
        model: by name.
        speed: of every accelerator, in cores.
        minibatches: of a measurement, in addition to those that warm up.
        repetitions: of everything that was found, taken in turns.
        evaluations: of a search at most.
    """

    model: ModelReference
    speed: float
    minibatches: int
    repetitions: int
    evaluations: int


class CandidateSamples(Document):
    """What was found on one cluster, and measured there.

    Attributes:
        names: of the best at NOAM, of the same placement at the depth that is enough for it, and of
            the best with any depth.
        simulated: seconds per minibatch of these.
        turns: of every repetition their measured seconds.
    """

    kind: ClassVar[str] = "candidate-samples"

    names: tuple[str, ...]
    simulated: tuple[float, ...]
    turns: tuple[tuple[float, ...], ...]


def found_by(
    problem: PlanningProblem, evaluations: int
) -> tuple[tuple[Candidate, ...], tuple[float, ...]]:
    """Return the three candidates, and what they take simulated."""
    limits = Limits(judged=evaluations)
    at_noam, together = (
        best_searched(problem, Space(METHOD, vary), limits).found
        for vary in (frozenset[Vary](), frozenset({Vary.DEPTH}))
    )
    placement = at_noam.candidate.placement
    enough = smallest_depth(
        simulate_depths(problem.workload, problem.cluster, placement, METHOD, problem.memory)
    )
    deepened = METHOD.model_copy(update={"in_flight_per_link": enough.per_link})
    return (
        (at_noam.candidate, Candidate(placement, deepened), together.candidate),
        (at_noam.seconds, enough.seconds_per_minibatch, together.seconds),
    )


def take(settings: SearchSettings) -> CandidateSamples:
    """Profile the model, search, and measure what was found in turns.

    Raises:
        RunFailure: the workers fail.
    """
    with ClusterSession(
        settings.model,
        STAGES,
        method=METHOD,
        optimizer=_OPTIMIZER,
        device="cpu",
        cluster="auto",
        speeds=[settings.speed] * STAGES,
    ) as session:
        profile, cluster = session.profile()
        problem = PlanningProblem(Workload.of(profile, METHOD), cluster)
        candidates, simulated = found_by(problem, settings.evaluations)
        print("; ".join(map(_name, candidates)), flush=True)
        turns: list[tuple[float, ...]] = []
        for repetition in range(settings.repetitions):
            # There and back: the machine's drift hits all alike. Equal ones are measured once.
            order = list(dict.fromkeys(candidates))[:: -1 if repetition % 2 else 1]
            seconds = {
                candidate: _measure(session, candidate, settings.minibatches) for candidate in order
            }
            turns.append(tuple(seconds[candidate] for candidate in candidates))
            print(
                f"turn {repetition + 1} of {settings.repetitions}: "
                + ", ".join(map(seconds_text, turns[-1])),
                flush=True,
            )
    return CandidateSamples(
        names=tuple(map(_name, candidates)), simulated=simulated, turns=tuple(turns)
    )


def _name(candidate: Candidate) -> str:
    depth = candidate.method.in_flight_per_link
    each = f"+{'-'.join(map(str, depth))}" if isinstance(depth, tuple) else f"+{depth}"
    return f"{candidate.placement.configuration} {each}"


def _measure(session: ClusterSession, candidate: Candidate, minibatches: int) -> float:
    outcome = session.measure(candidate, minibatches)
    if isinstance(outcome, FailedMeasurement):
        raise RunFailure(f"{_name(candidate)}: {outcome.reason}")
    return outcome.seconds_per_minibatch


def main() -> None:
    """Run with the settings of the command line."""
    given, path = sys.argv[1:]
    settings = SearchSettings.model_validate_json(given)
    # The study names its model in the command that starts this.
    model = trusting(settings.model, {settings.model.name.partition(".")[0]})
    write_document(Path(path), take(settings.model_copy(update={"model": model})))


if __name__ == "__main__":
    run_program(main, "benchmarks.in_flight.together_program")
