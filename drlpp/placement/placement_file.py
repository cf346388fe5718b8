"""The placement file: a placement that people read and edit, and how it was found and measured."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import torch

from drlpp.capturing.graph import OpGraph
from drlpp.errors import InvalidPlacement
from drlpp.io.documents import Document, Record, read_document
from drlpp.io.quantities import Count
from drlpp.io.trust import trusted_packages, trusting
from drlpp.io.trust_memory import remembered_trust
from drlpp.models.model_reference import Model, ModelReference
from drlpp.near_names import did_you_mean
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement, Stage
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster
from drlpp.specs.optimizer_spec import OptimizerSpec


class NamedStage(Record):
    """A stage as people write it: the names of its operators, the numbers of its accelerators."""

    operators: tuple[str, ...]
    accelerators: tuple[Count, ...]


class Versions(Record):
    """The software that a placement was measured with."""

    drlpp: str
    torch: str
    python: str

    @classmethod
    def current(cls) -> Versions:
        """Return the versions that are running."""
        return cls(
            drlpp=version("drlpp"), torch=str(torch.__version__), python=platform.python_version()
        )


class PlacementFile(Document):
    """What an agent or a planner exports and the runtime loads.

    Attributes:
        model: where the model comes from.
        graph_fingerprint: of the graph that the placement is for.
        configuration: replicas per stage, for readers; the stages below decide.
        stages: in the order of the pipeline.
        method: the schedule and weight policy that it was measured with.
        optimizer: the optimizer that it was measured with.
        found_by: the agent, planner or person that it comes from.
        cluster: the accelerators that it was measured on.
        measurement: the result, if it was measured.
        versions: the software that measured it.
    """

    kind: ClassVar[str] = "placement"

    model: ModelReference
    graph_fingerprint: str
    configuration: str
    stages: tuple[NamedStage, ...]
    method: Method
    optimizer: OptimizerSpec
    found_by: str
    cluster: Cluster
    measurement: Measurement | None = None
    versions: Versions

    @classmethod
    def create(
        cls,
        model: Model,
        graph: OpGraph,
        placement: Placement,
        cluster: Cluster,
        *,
        method: Method,
        optimizer: OptimizerSpec,
        found_by: str,
        measurement: Measurement | None = None,
    ) -> PlacementFile:
        """Describe ``placement`` of ``graph`` by the names of its operators.

        Raises:
            InvalidPlacement: if it cannot run ``graph`` on ``cluster``.
        """
        placement.validate_for(graph, cluster.accelerators)
        candidate = Candidate(placement, method)
        return cls._describing(candidate, model, graph, cluster, optimizer, found_by, measurement)

    @classmethod
    def of(
        cls,
        plan: ExecutionPlan,
        model: Model,
        graph: OpGraph,
        cluster: Cluster,
        *,
        optimizer: OptimizerSpec,
        found_by: str,
        measurement: Measurement | None = None,
    ) -> PlacementFile:
        """Describe the candidate of a plan for ``graph`` on ``cluster``."""
        return cls._describing(
            plan.candidate, model, graph, cluster, optimizer, found_by, measurement
        )

    @classmethod
    def _describing(
        cls,
        candidate: Candidate,
        model: Model,
        graph: OpGraph,
        cluster: Cluster,
        optimizer: OptimizerSpec,
        found_by: str,
        measurement: Measurement | None,
    ) -> PlacementFile:
        return cls(
            model=ModelReference.of(model),
            graph_fingerprint=graph.fingerprint,
            configuration=candidate.configuration,
            stages=tuple(
                NamedStage(
                    operators=tuple(graph.operators[operator].name for operator in stage.operators),
                    accelerators=stage.accelerators,
                )
                for stage in candidate.placement.stages
            ),
            method=candidate.method,
            optimizer=optimizer,
            found_by=found_by,
            cluster=cluster,
            measurement=measurement,
            versions=Versions.current(),
        )

    def resolve(self, graph: OpGraph) -> Placement:
        """Return the placement for ``graph``, checked.

        Raises:
            InvalidPlacement: if the file is for another model, names an operator that ``graph``
                does not have, or its stages cannot run on its cluster.
        """
        placement = self._placement(graph)
        placement.validate_for(graph, self.cluster.accelerators)
        self._check_configuration(placement)
        return placement

    def plan(self, graph: OpGraph, method: Method | None = None) -> ExecutionPlan:
        """Return the plan of the file's candidate, or of its placement with another method.

        Raises:
            InvalidPlacement: as :meth:`resolve`.
            InvalidInput: the method cannot run the placement.
        """
        candidate = Candidate(self._placement(graph), method or self.method)
        plan = ExecutionPlan.of(candidate, graph, self.cluster.accelerators)
        self._check_configuration(plan.placement)
        return plan

    def _placement(self, graph: OpGraph) -> Placement:
        """Return the placement by the names of operators, not checked."""
        if self.graph_fingerprint != graph.fingerprint and str(self.model) == graph.model:
            raise InvalidPlacement(
                f"field 'graph_fingerprint' is {self.graph_fingerprint}, but {self.model} is "
                f"captured to {graph.fingerprint}: this is the placement of another model, or the "
                f"model's code has changed, or torch has (made with torch {self.versions.torch}, "
                f"this is {torch.__version__}); learn a new placement"
            )
        if self.graph_fingerprint != graph.fingerprint:
            raise InvalidPlacement(
                f"the placement is for {self.model} (fingerprint {self.graph_fingerprint}), but "
                f"this model is {graph.model} ({graph.fingerprint}); load the model that the "
                "placement was made for, or plan this one anew"
            )
        number_of = {operator.name: operator.id for operator in graph.operators}
        return Placement(
            stages=tuple(
                Stage(
                    operators=tuple(
                        sorted(_number(name, index, number_of) for name in stage.operators)
                    ),
                    accelerators=stage.accelerators,
                )
                for index, stage in enumerate(self.stages)
            )
        )

    def _check_configuration(self, placement: Placement) -> None:
        if placement.configuration != self.configuration:
            raise InvalidPlacement(
                f"field 'configuration' is {self.configuration}, but the stages are "
                f"{placement.configuration}; correct the one that is wrong"
            )


def _number(name: str, stage: int, number_of: Mapping[str, int]) -> int:
    if name in number_of:
        return number_of[name]
    hint = did_you_mean(name, number_of) or "`drlpp show` lists a graph's operators"
    raise InvalidPlacement(
        f"stage {stage} names operator {name!r}, which is not in the graph; {hint}"
    )


def read_placement(path: str | Path, *, trust: str | Iterable[str] = ()) -> PlacementFile:
    """Read a placement file, which imports nothing.

    Args:
        path: of the file.
        trust: top-level packages, such as ``mymodels``, of which the model and the optimizer may be
            imported later, as far as they are not drlpp's or torch's. Packages that the user has
            trusted for the run that left the file need not be given again
            (:mod:`drlpp.io.trust_memory`).

    Raises:
        InvalidFile: naming the file, the field, and what was expected there.
    """
    known = trusted_packages(trust) | remembered_trust(Path(path).parent)
    return trusting(read_document(path, PlacementFile), known)
