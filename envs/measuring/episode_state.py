"""What an episode came to, as a file: enough to replay it and to see whether it comes out."""

from __future__ import annotations

from typing import ClassVar, Self

from drlpp.envs.measuring.measurer import Measurer
from drlpp.envs.measuring.memory import MeasurementMemory
from drlpp.errors import InvalidInput
from drlpp.io.documents import Document
from drlpp.io.quantities import Count
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method


class EpisodeState(Document):
    """A candidate that an agent has had measured, what it was measured on, and what came out.

    Attributes:
        model: that was placed.
        graph_fingerprint: of its graph.
        accelerators: that there were.
        minibatches: of the measurement.
        seed: that the environment was last reset with; None without one. It decides what an agent
            drew from ``env.np_random``; the measurement does not depend on it.
        placement: of the graph's operators on the accelerators.
        method: that it ran with.
        outcome: the measurement, or why there is none.
    """

    kind: ClassVar[str] = "episode state"

    model: str
    graph_fingerprint: str
    accelerators: Count
    minibatches: Count
    seed: int | None = None
    placement: Placement
    method: Method
    outcome: Measurement | FailedMeasurement

    @classmethod
    def of(
        cls, memory: MeasurementMemory, candidate: Candidate, outcome: Outcome, seed: int | None
    ) -> Self:
        """Describe what measuring a candidate gave."""
        return cls(
            model=memory.graph.model,
            graph_fingerprint=memory.graph.fingerprint,
            accelerators=memory.accelerators,
            minibatches=memory.minibatches_of_a_run,
            seed=seed,
            placement=candidate.placement,
            method=candidate.method,
            outcome=outcome,
        )

    @property
    def candidate(self) -> Candidate:
        """The placement and its method."""
        return Candidate(self.placement, self.method)

    def replay(self, measurer: Measurer) -> Outcome:
        """Measure the candidate again, whatever is remembered of it.

        In the simulator the same comes out. Live it varies as measurements do.

        Raises:
            InvalidInput: the measurer has another model or number of accelerators, or the candidate
                cannot be run there.
        """
        graph = measurer.graph
        if graph.fingerprint != self.graph_fingerprint:
            raise InvalidInput(
                f"the state is of {self.model} (graph {self.graph_fingerprint}), and this is "
                f"{graph.model} (graph {graph.fingerprint}); make the environment that it is of"
            )
        if measurer.accelerators != self.accelerators:
            raise InvalidInput(
                f"the state is of {self.accelerators} accelerators, and there are "
                f"{measurer.accelerators}; make the environment that it is of"
            )
        plan = ExecutionPlan.of(self.candidate, graph, self.accelerators)
        return measurer.measure(plan, self.minibatches)
