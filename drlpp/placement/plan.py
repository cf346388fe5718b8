"""A plan: what a planner found, what is known of it, and what it can be trained with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drlpp.capturing.graph import OpGraph
from drlpp.errors import InvalidInput
from drlpp.io.formatting import predicted_text, seconds_text
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.schedule.analysis.staleness import samples_factor
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.specs.cluster import Cluster
from drlpp.specs.optimizer_spec import OptimizerSpec

if TYPE_CHECKING:
    from drlpp.capturing.capture import CapturedModel
    from drlpp.costs.ways_of_training import PredictedWay
    from drlpp.placement.placement_file import PlacementFile

CLEARLY = 1.01
"""Times as slow as another: less is nothing to speak of."""


@dataclass(frozen=True)
class Plan:
    """A placement with its method that a planner found.

    Attributes:
        placement: of all operators, on all or some accelerators.
        method: with the in-flight depth that was chosen.
        found_by: the planner's name.
        seconds_per_minibatch: simulated in steady state; infinite if it was not simulated.
        error_bar: how far off these seconds may be, as a share of them; 0 if that is not known.
        steadiness: 1 where they are those of a period that repeats itself.
        own_seconds: seconds per minibatch by the planner's own formula, if it has one.
        note: how it was found.
        planner_seconds: that planning took.
        others: what else was proposed, the fastest first.
        ways: what training without a pipeline would take, by formula.
        graph: of the model, if it was planned for one.
        cluster: that it was planned for.
        optimizer: that its memory was counted with; None for Adam.
        model: to train; None for a plan of costs alone.
    """

    placement: Placement
    method: Method = DEFAULT_METHOD
    found_by: str = ""
    seconds_per_minibatch: float = math.inf
    error_bar: float = 0.0
    steadiness: float = 1.0
    own_seconds: float | None = None
    note: str = ""
    planner_seconds: float = field(default=0.0, compare=False)
    others: tuple[Plan, ...] = field(default=(), repr=False, compare=False)
    ways: tuple[PredictedWay, ...] = field(default=(), repr=False, compare=False)
    graph: OpGraph | None = field(default=None, repr=False, compare=False)
    cluster: Cluster | None = field(default=None, repr=False, compare=False)
    optimizer: OptimizerSpec | None = field(default=None, repr=False, compare=False)
    model: CapturedModel | None = field(default=None, repr=False, compare=False)

    @property
    def candidate(self) -> Candidate:
        """The placement and its method."""
        return Candidate(self.placement, self.method)

    @property
    def configuration(self) -> str:
        """Replicas per stage as PipeDream writes them, like ``2-1-1``."""
        return self.placement.configuration

    def __str__(self) -> str:
        """Say what it is, what training without a pipeline would take, and what to use."""
        lines = [f"{self.configuration} with {self.method}, found by {self.found_by}: {self.text}"]
        for one in self.ways:
            seconds = seconds_text(one.seconds_per_minibatch)
            unfit = "" if one.fits else ", too large"
            lines.append(f"{one.name} on {len(one.accelerators)}: {seconds}{unfit}")
        return "\n".join([*lines, self.verdict] if self.ways else lines)

    @property
    def verdict(self) -> str:
        """Which way to take, of this and ``ways``; for a plan of a graph."""
        usable = [one for one in self.ways if one.fits]
        if not usable:
            return "no other way fits into memory"
        assert self.graph is not None
        pipeline = self.placement.pipeline(self.graph)
        other = min(usable, key=lambda one: one.seconds_to_loss)
        seconds = self.seconds_per_minibatch * samples_factor(pipeline, self.method, self.optimizer)
        faster = seconds / other.seconds_to_loss if other.seconds_to_loss else 1.0
        use, than = f"use {other.way.torch} ({other.name})", "faster to the same loss than"
        if other.way.local:
            use += f", weights averaged every {other.every} minibatches"
        if (together := self.method.minibatches_together(pipeline)) > 1:
            # What larger updates delay is not known.
            than = f"faster by the minibatch, with updates of {together}, than"
        if faster > CLEARLY:
            on = len(other.accelerators)
            return f"{use} on {on}: predicted {faster:.2f}× {than} this plan"
        if faster * CLEARLY > 1:
            return f"{use}: this plan is predicted no faster"
        doubt = "" if self.error_bar else "; no short run of a pipeline confirms it"
        return f"this plan is predicted {1 / faster:.2f}× {than} {other.name}, the next{doubt}"

    @property
    def text(self) -> str:
        """The simulated seconds with their error bar."""
        return predicted_text(self.seconds_per_minibatch, self.error_bar)

    def file(self) -> PlacementFile:
        """Return the placement file of this plan, which a trainer takes and a run exports.

        Raises:
            InvalidInput: it was planned for no graph, or cannot be run.
        """
        from drlpp.models.model_reference import ModelReference
        from drlpp.placement.execution_plan import ExecutionPlan
        from drlpp.placement.placement_file import PlacementFile

        if self.graph is None or self.cluster is None:
            raise InvalidInput(
                "the plan is of a problem alone; drlpp.plan(model, workers=…) makes one that can "
                "be written and trained"
            )
        recorded = ModelReference.recorded(self.graph.model)
        ExecutionPlan.of(self.candidate, self.graph, self.cluster.accelerators)
        return PlacementFile.create(
            self.model.reference if self.model else recorded,
            self.graph,
            self.placement,
            self.cluster,
            method=self.method,
            optimizer=self.optimizer or OptimizerSpec.parse("adam"),
            found_by=self.found_by,
        )
