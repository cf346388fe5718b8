"""What runs on the hosts of ``benchmarks.in_flight together``: searches, and what they found.

    python -m benchmarks.in_flight.together_program SETTINGS FILE

The first host of a Ray cluster runs it. It writes what it has measured into the file and prints how
far it is.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from benchmarks.in_flight.program import (
    METHOD,
    OPTIMIZER,
    STAGES,
    TurnSettings,
    in_turns,
    run,
    seconds_of,
)
from drlpp.cli.command_line import run_program
from drlpp.costs.workload import Workload
from drlpp.io.documents import Document
from drlpp.placement.candidate import Candidate
from drlpp.planners import Limits, PlanningProblem, Space, Vary, best_searched
from drlpp.runtime import ClusterSession
from drlpp.simulator import simulate_depths, smallest_depth


class SearchSettings(TurnSettings):
    """What is searched and measured.

    Attributes:
        speed: of every accelerator, in cores.
        evaluations: of a search at most.
    """

    speed: float
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
        optimizer=OPTIMIZER,
        device="cpu",
        cluster="auto",
        speeds=[settings.speed] * STAGES,
    ) as session:
        profile, cluster = session.profile()
        problem = PlanningProblem(Workload.of(profile, METHOD), cluster)
        candidates, simulated = found_by(problem, settings.evaluations)
        names = tuple(map(_name, candidates))
        print("; ".join(names), flush=True)
        turns = in_turns(session, candidates, names, settings)
    return CandidateSamples(names=names, simulated=simulated, turns=seconds_of(turns))


def _name(candidate: Candidate) -> str:
    depth = candidate.method.in_flight_per_link
    each = f"+{'-'.join(map(str, depth))}" if isinstance(depth, tuple) else f"+{depth}"
    return f"{candidate.placement.configuration} {each}"


if __name__ == "__main__":
    run_program(partial(run, SearchSettings, take), "benchmarks.in_flight.together_program")
