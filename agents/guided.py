"""What the main job asks of an agent that searches; and the guided agent, which does it so.

It measures where the clock and the corrected simulator may disagree.

Each round:

1. **Correct.** Everything measured so far corrects the declared costs, and so the simulator
   (:mod:`drlpp.planners.calibration.recalibration`).
2. **Search.** Costs are drawn from what is still uncertain, and in each draw the best candidates,
   placement and method, are searched for. The paper's policy proposes one as well
   (:mod:`drlpp.agents.imagining`).
3. **Measure** the candidate by which the most is expected to be saved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from drlpp.agents.imagining import ImaginingPolicy
from drlpp.envs import PlacementEnv
from drlpp.envs.measuring.confidence import Confidence
from drlpp.envs.measuring.policy_curve import TAGS
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Outcome
from drlpp.planners.calibration.recalibration import POLICY, Options, Recalibration
from drlpp.planners.search import Space

_ONE_BY_ONE = 16
"""How many placements are measured one by one: the first measurements teach the most."""


@runtime_checkable
class Searcher(Protocol):
    """Proposes candidates and is told what was measured, as in Nevergrad and Optuna.

    All that an earlier run of the same folder measured is told to a new searcher first, so it needs
    no file of its own.
    """

    def propose(self) -> Sequence[Candidate]:
        """Return candidates to measure next, in turns with each other; none to end the search."""

    def tell(self, candidate: Candidate, outcome: Outcome) -> None:
        """Learn what came of a candidate; one that could not be run has failed."""


class GuidedSearch:
    """A searcher that plans, and corrects what it plans with by everything that it is told.

    What the environment declares of costs and accelerators may be wrong or guessed.

    Args:
        env: what is placed, and where; planners that draw at random have its seed.
        proposals: candidates of a round, after the first sixteen (default 4).
        give_up: where a measurement is several runs, a candidate that is this many times as slow as
            the fastest measured is not run again; 0 for never (default 1.5).
        options: how long the search goes on.
        policy_rollouts: of the paper's policy for a round at most; 0 for never (default 2).
    """

    def __init__(
        self,
        env: PlacementEnv,
        proposals: int = 4,
        give_up: float = 1.5,
        options: Options | None = None,
        policy_rollouts: int = 2,
    ) -> None:
        declared = env.declared
        self._env = env
        self._proposals = proposals
        self._give_up = give_up
        self._search = Recalibration(
            declared.problem,
            declared.space or Space(env.method, frozenset()),
            options,
            planned=(lambda: declared.planned) if declared.space else None,
        )
        self.policy: ImaginingPolicy | None = None
        if policy_rollouts and ImaginingPolicy.can_place(env.graph, env.memory.accelerators):
            self.policy = ImaginingPolicy(env.graph, policy_rollouts, declared.problem.seed)

    def propose(self) -> list[Candidate]:
        """Return the candidates of a round, the most promising first; none if it has settled."""
        count = 1 if len(self._search.measured) < _ONE_BY_ONE else self._proposals
        memory, search = self._env.memory, self._search
        fastest = search.best(1)
        if self.policy is not None and fastest:
            search.guest = self.policy.propose(search.surrogate, fastest[0][0].method)
        candidates = search.propose(count)
        memory.found_by |= {one.canonical: search.found_by(one) for one in candidates}
        if self._give_up and fastest:
            memory.limit_seconds = self._give_up * fastest[0][1]
        return candidates

    def tell(self, candidate: Candidate, outcome: Outcome) -> None:
        """Learn from the outcome of a candidate, whoever proposed it."""
        self._search.tell(candidate, outcome)
        if self.policy is not None:
            own = self._env.memory.found_by.get(candidate.canonical) == POLICY
            fastest = [one for one, _ in self._search.best(1)]
            self.policy.tell(gained=own and fastest == [candidate])

    def scalars(self) -> Mapping[str, float]:
        """Return what it believes of another round, for TensorBoard; empty in the first rounds."""
        search, belief = self._search, self._search.last_belief
        if belief is None:
            return {}
        values = {"placement/expected_gain": belief.gain, "placement/confidence": belief.confidence}
        if self.policy is not None and (imagined := self.policy.imagined) is not None:
            found_by = self._env.memory.found_by
            fastest = [one for one, _ in search.best(_ONE_BY_ONE)]
            others = [one for one in fastest if found_by.get(one.canonical) != POLICY]
            others += [one for one in belief.candidates if search.found_by(one) != POLICY]
            seconds = min(map(search.surrogate, others), default=math.inf)
            values |= zip(TAGS, (*imagined, seconds), strict=True)
        return values

    def confidence(self) -> Confidence | None:
        """Return how sure the search is of the fastest that was measured; None if nothing was."""
        if not (best := self._search.best(1)):
            return None
        belief = self._search.belief
        return Confidence(
            configuration=best[0][0].configuration,
            method=best[0][0].method,
            share=belief.confidence,
            expected_gain=belief.gain,
        )
