"""A decoder whose embedding is its output layer too: cut into stages, and whole.

Stages are convex, so a stage that keeps the tied weight in one place has everything between its
operators: such placements have one stage, on one accelerator or as data parallelism. The others
hold a copy on the first and on the last stage.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from drlpp.capturing.capture import capture
from drlpp.comparison.race import measure_round
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Outcome
from drlpp.placement.placement import Placement
from drlpp.planners.best_simulated import Proposal, best_simulated
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method

METHOD = Method(policy="pipeoptim")


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        layers, hidden, vocabulary: of the decoder, a GPT-2.
        workers: how many there are.
        speed: of each, relative to a core; they sleep for the rest, so they are in nobody's way.
        rounds: in which all take turns.
        minibatches: of a measurement.
    """

    layers: int = 8
    hidden: int = 128
    vocabulary: int = 4000
    workers: int = 4
    speed: float = 0.2
    rounds: int = 5
    minibatches: int = 20

    def __str__(self) -> str:
        return (
            f"GPT-2 of {self.layers} layers, width {self.hidden}, {self.vocabulary} words, "
            f"sentences of 32, minibatches of 8; {self.workers} emulated accelerators of "
            f"{self.speed:g} of a core on one host; {METHOD}; {self.rounds} rounds of "
            f"{self.minibatches} minibatches in turns"
        )

    def model(self, *, is_tied: bool) -> ModelReference:
        """Return the decoder."""
        return ModelReference.named(
            "gpt2",
            layers=self.layers,
            hidden=self.hidden,
            vocabulary=self.vocabulary,
            heads=4,
            positions=32,
            sequence_length=32,
            batch_size=8,
            tied=is_tied,
        )


SHORT = Settings(layers=2, hidden=16, vocabulary=50, workers=2, speed=0.5, rounds=1, minibatches=4)


def rows(settings: Settings) -> Iterator[dict[str, str]]:
    """Yield a row of the table for every placement of the tied decoder, and of the untied one."""
    base = None
    for is_tied in (True, False):
        for name, (simulated, seconds) in _measured(settings, is_tied=is_tied).items():
            median = statistics.median(seconds)
            base = base or median
            yield {
                "decoder": "tied" if is_tied else "untied",
                "placement": name,
                "ms per minibatch": f"{1e3 * median:.1f}",
                "of each round": ", ".join(f"{1e3 * one:.1f}" for one in seconds),
                "simulated": f"{1e3 * simulated:.1f}",
                "relative": f"{median / base:.2f}",
            }


def _measured(settings: Settings, *, is_tied: bool) -> dict[str, tuple[float, list[float]]]:
    """Return for every candidate what the simulator says and what every round took."""
    captured = capture(settings.model(is_tied=is_tied))
    speeds = [settings.speed] * settings.workers
    with ClusterSession(captured, settings.workers, method=METHOD, speeds=speeds) as session:
        profile, cluster = session.profile()
        problem = PlanningProblem(Workload.of(profile, METHOD), cluster)
        chosen = candidates(problem)
        found: list[list[float]] = [[] for _ in chosen]
        running = list(range(len(chosen)))
        several = list(chosen.values())

        def measure(index: int) -> Outcome:
            return session.measure(several[index][0], settings.minibatches)

        for number in range(settings.rounds):
            running = measure_round(number, running, measure, found)
    return {
        name: (simulated, seconds)
        for (name, (_, simulated)), seconds in zip(chosen.items(), found, strict=True)
        if seconds
    }


def candidates(problem: PlanningProblem) -> Mapping[str, tuple[Candidate, float]]:
    """Return the fastest placement in stages, and those of one stage; with simulated seconds.

    Raises:
        InvalidInput: no planner proposes any in stages.
    """
    chosen: dict[str, tuple[Candidate, float]] = {}
    # Without replicas planners propose stages where data parallelism is faster, too.
    choices = [best_simulated(problem, METHOD)]
    choices.append(best_simulated(replace(problem, replicate=False), METHOD))
    proposals = [one for choice in choices for one in choice.proposals]
    in_stages = [one for one in proposals if len(one.plan.placement.stages) > 1]
    if not in_stages:
        raise InvalidInput("no planner proposes a placement of several stages")
    best = min(in_stages, key=lambda one: one.seconds_per_minibatch)
    chosen[f"{best.plan.placement.configuration}, the best in stages"] = _of(best)
    whole = {one.plan.placement.configuration: one for one in proposals if one not in in_stages}
    for configuration, one in whole.items():
        chosen[f"{configuration}, one stage"] = _of(one)
    operators = len(problem.workload)
    alone = Placement.from_assignment([0] * operators, [0])
    chosen.setdefault("1, one stage", (Candidate(alone, METHOD), float("nan")))
    return chosen


def _of(proposal: Proposal) -> tuple[Candidate, float]:
    method = METHOD.model_copy(update={"in_flight_per_link": proposal.depth.per_link})
    return Candidate(proposal.plan.placement, method), proposal.seconds_per_minibatch
