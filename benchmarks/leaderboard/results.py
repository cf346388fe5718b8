"""What agents found, as lines that anybody can replay."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from pandas import DataFrame

from benchmarks.leaderboard.agents import find_agent
from benchmarks.leaderboard.problems import PROBLEMS, VERSION, Problem
from drlpp.envs import EpisodeState
from drlpp.errors import InvalidInput
from drlpp.io.documents import Record
from drlpp.placement.measurement import Measurement


class Result(Record):
    """The best that an agent found on a problem with a budget of distinct placements.

    Attributes:
        version: of the set of problems.
        agent: its name.
        problem: its name.
        seed: of the agent.
        budget: distinct placements that it might measure.
        measured: that it did.
        best: the state of the fastest; None if none could be run.
        reference_seconds: what ``drlpp plan`` finds if it knows all costs.
    """

    version: int = VERSION
    agent: str
    problem: str
    seed: int
    budget: int
    measured: int
    reference_seconds: float
    best: EpisodeState | None = None

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What no second result is of."""
        return self.agent, self.problem, self.seed, self.budget

    @property
    def ratio(self) -> float:
        """Seconds of the best over those of the reference."""
        if self.best is None or not isinstance(self.best.outcome, Measurement):
            return float("inf")
        return self.best.outcome.seconds_per_minibatch / self.reference_seconds


def run(agent: str, problem: Problem, seed: int, budget: int) -> Result:
    """Let an agent look for the fastest placement of a problem."""
    memory = problem.memory()
    find_agent(agent)(memory, problem.declared, budget, seed)
    # Measured ahead in a rollout, or by somebody's own agent: the first ones count.
    within = [
        (outcome.seconds_per_minibatch, number, candidate, outcome)
        for number, (candidate, outcome) in enumerate([*memory.outcomes.items()][:budget])
        if isinstance(outcome, Measurement)
    ]
    best = None
    if within:
        _, _, candidate, outcome = min(within, key=lambda found: found[:2])
        best = EpisodeState.of(memory, candidate, outcome, seed)
    return Result(
        agent=agent,
        problem=problem.name,
        seed=seed,
        budget=budget,
        measured=min(memory.distinct, budget),
        best=best,
        reference_seconds=problem.reference_seconds,
    )


def check(result: Result) -> None:
    """Replay what a result says.

    Raises:
        InvalidInput: it comes out otherwise, or is of another set of problems.
    """
    where = f"{result.agent} on {result.problem}, seed {result.seed}"
    problem = next((one for one in PROBLEMS if one.name == result.problem), None)
    if problem is None or result.version != VERSION:
        raise InvalidInput(f"{where}: no problem of this set (version {VERSION})")
    if result.reference_seconds != problem.reference_seconds:
        raise InvalidInput(
            f"{where}: the reference is {problem.reference_seconds} s, not "
            f"{result.reference_seconds} s"
        )
    if result.best is not None:
        outcome = result.best.replay(problem.measurer)
        if outcome != result.best.outcome:
            raise InvalidInput(f"{where}: replaying the best placement gives another measurement")


def table_of(results: Sequence[Result]) -> DataFrame:
    """Return a row for each agent and budget, the best first; ratios are over the reference."""
    groups: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        groups.setdefault((result.agent, result.budget), []).append(result)
    order = sorted(groups, key=lambda key: (key[1], _median(groups[key])))
    return DataFrame(
        {
            "agent": agent,
            "budget": str(budget),
            "measured": f"{statistics.median(r.measured for r in groups[agent, budget]):g}",
            "problems": str(len({r.problem for r in groups[agent, budget]})),
            "seeds": str(len({r.seed for r in groups[agent, budget]})),
            "median": f"{_median(groups[agent, budget]):.3f}",
            "worst": f"{max(r.ratio for r in groups[agent, budget]):.3f}",
            "within 1%": f"{_share(groups[agent, budget]):.0%}",
        }
        for agent, budget in order
    )


def _median(results: Iterable[Result]) -> float:
    return statistics.median(result.ratio for result in results)


def _share(results: Sequence[Result]) -> float:
    """Return the part of results that are as good as the reference, within 1%."""
    return sum(result.ratio <= 1.01 for result in results) / len(results)
