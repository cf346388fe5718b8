"""An execution plan: what a candidate comes to on a graph, derived once and passed down.

A plan is built where a candidate comes in: by a memory of measurements, a session, a training, a
command. Everything behind that door takes the plan, derives nothing again and checks nothing again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from drlpp.capturing.graph import OpGraph
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.analysis.weight_versions import stage_delays, tied_delay, weight_uses
from drlpp.schedule.analysis.window import Window
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.ties import Tie
from drlpp.schedule.weight_policies import WeightUse


@dataclass(frozen=True)
class ExecutionPlan:
    """A candidate that can be run; of one that cannot there is no plan.

    Attributes:
        candidate: the placement and its method.
        pipeline: the shape of the placement.
        graph: that the placement was checked against; None for a shape without a graph.
        accelerators: that it was checked against.
        delays: s of every stage in steady state (pipeoptim eq. 4).

    Raises:
        InvalidInput: the method cannot run on such a pipeline, or on one whose stages share
            parameters.
    """

    candidate: Candidate
    pipeline: Pipeline
    graph: OpGraph | None = field(default=None, repr=False, compare=False)
    accelerators: int = 0
    delays: tuple[int, ...] = field(init=False)
    _kept: dict[int, dict[Any, Any]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "delays", tuple(stage_delays(self.pipeline, self.method)))
        if self.ties and not self.method.flushes:
            # Until the pipeline is full, and two rounds of updates more.
            method = self.method.model_copy(update={"accumulate": 1})
            rounds = 2 * method.minibatches_together(self.pipeline)
            method.schedule_for(self.pipeline, method.minibatches_in_flight(self.pipeline) + rounds)

    @classmethod
    def of(cls, candidate: Candidate, graph: OpGraph, accelerators: int) -> ExecutionPlan:
        """Return the plan of a candidate on accelerators 0 … ``accelerators`` − 1.

        Raises:
            InvalidPlacement: its placement cannot run ``graph`` there.
            InvalidInput: its method cannot run that placement.
        """
        candidate.placement.validate_for(graph, accelerators)
        return cls(candidate, candidate.placement.pipeline(graph), graph, accelerators)

    @classmethod
    def taken(
        cls,
        given: Placement | Candidate | ExecutionPlan,
        graph: OpGraph,
        accelerators: int,
        method: Method,
    ) -> ExecutionPlan:
        """Return the plan of whatever a caller has; ``method`` is that of a bare placement.

        Raises:
            InvalidPlacement: the placement cannot run ``graph`` there.
            InvalidInput: the method cannot run that placement, or a plan is of another graph or
                number of accelerators.
        """
        if isinstance(given, Placement):
            given = Candidate(given, method)
        if isinstance(given, Candidate):
            return cls.of(given, graph, accelerators)
        known = given.graph
        same_graph = known is not None and known.fingerprint == graph.fingerprint
        if not same_graph or given.accelerators != accelerators:
            raise InvalidInput(
                f"the plan is of {known.model if known else 'no graph'} on {given.accelerators} "
                f"accelerators, but this is {graph.model} on {accelerators}; build it with "
                "ExecutionPlan.of for these"
            )
        return given

    @property
    def placement(self) -> Placement:
        """The placement of the candidate."""
        return self.candidate.placement

    @property
    def method(self) -> Method:
        """The method of the candidate."""
        return self.candidate.method

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """For every stage the parts that a replica has in flight in steady state."""
        return self.method.in_flight(self.pipeline)

    @cached_property
    def ties(self) -> tuple[Tie, ...]:
        """The weights that several stages hold copies of, in the order of the pipeline's ties."""
        return self.method.ties(self.pipeline)

    @cached_property
    def tied_delays(self) -> tuple[int, ...]:
        """For every tie the s of its weights in steady state."""
        return tuple(tied_delay(self.pipeline, tie, self.method) for tie in self.ties)

    @cached_property
    def synchronous(self) -> ExecutionPlan:
        """The same with a flush before every update (:meth:`Method.synchronous`)."""
        method = self.method.synchronous(self.pipeline)
        return replace(self, candidate=Candidate(self.placement, method))

    def refuse_staler_than(self, most: int | None) -> None:
        """Refuse a plan with a stage whose s is larger than ``most``; None allows any.

        Raises:
            InvalidInput: there is such a stage.
        """
        stalest = max(self.delays)
        if most is not None and stalest > most:
            raise InvalidInput(f"a stage has a staleness of {stalest}, of at most {most}")

    def window(self, minibatches: int) -> Window:
        """Return the run in which at least ``minibatches`` minibatches are measured."""
        return Window.plan(self.pipeline, minibatches, self.method)

    def schedule(self, minibatches: int) -> Schedule:
        """Return the actions of every worker; those of the last run are kept."""
        kept = self._of_run(minibatches)
        if "schedule" not in kept:
            kept["schedule"] = self.method.schedule_for(self.pipeline, minibatches)
        schedule: Schedule = kept["schedule"]
        return schedule

    def weight_uses(
        self, minibatches: int, tie: Tie | None = None
    ) -> Mapping[int, Mapping[MicrobatchId, WeightUse]]:
        """Return what every worker's policy uses for every part; those of the last run are kept.

        Args:
            minibatches: of the run.
            tie: whose weights; None for those that only one stage holds.

        Raises:
            InvalidInput: the schedule cannot provide what the policy needs.
        """
        kept = self._of_run(minibatches)
        if tie not in kept:
            kept[tie] = weight_uses(self.schedule(minibatches), self.method, tie)
        uses: Mapping[int, Mapping[MicrobatchId, WeightUse]] = kept[tie]
        return uses

    def _of_run(self, minibatches: int) -> dict[Any, Any]:
        """Return what is known of a run, which takes the place of the one before."""
        if minibatches not in self._kept:
            self._kept.clear()
        return self._kept.setdefault(minibatches, {})
