"""The placement file: a placement that people read and edit, and how it was found and measured."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, Self

import torch
from pydantic import PrivateAttr

from drlpp.capturing.graph import OpGraph
from drlpp.errors import InvalidPlacement, did_you_mean
from drlpp.io.documents import Document, Record, read_document
from drlpp.io.quantities import Count
from drlpp.models.model_reference import Model, ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
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
        model: where the model comes from. Its import path in a file is information: whoever builds
            the model names it again (:meth:`with_model`).
        graph_fingerprint: of the graph that the placement is for; tells whether a model that is
            given is the same.
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
    _made_for: ModelReference | None = PrivateAttr(default=None)

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
        return cls(
            model=ModelReference.of(model),
            graph_fingerprint=graph.fingerprint,
            configuration=placement.configuration,
            stages=tuple(
                NamedStage(
                    operators=tuple(graph.operators[operator].name for operator in stage.operators),
                    accelerators=stage.accelerators,
                )
                for stage in placement.stages
            ),
            method=method,
            optimizer=optimizer,
            found_by=found_by,
            cluster=cluster,
            measurement=measurement,
            versions=Versions.current(),
        )

    def with_model(self, model: Model) -> Self:
        """Return the file with the model that the user gives.

        The bare name that the file has, ``mymodels:build``, stands for that model with the file's
        options. Whether it is the model that the placement was made for is checked once it is
        captured (:meth:`plan`).
        """
        same = model == self.model.name
        given = self.model.as_named_by_user() if same else ModelReference.of(model)
        changed = self.model_copy(update={"model": given})
        changed._made_for = self._made_for or self.model
        return changed

    def resolve(self, graph: OpGraph) -> Placement:
        """Return the placement for ``graph``, checked.

        Raises:
            InvalidPlacement: if the file is for another model, names an operator that ``graph``
                does not have, or its stages cannot run on its cluster.
        """
        made_for = self._made_for or self.model
        if self.graph_fingerprint != graph.fingerprint:
            raise InvalidPlacement(
                f"the placement is for {made_for} (fingerprint {self.graph_fingerprint}, torch "
                f"{self.versions.torch}), but this model is {graph.model} ({graph.fingerprint}, "
                f"torch {torch.__version__}); name the model that it was made for"
                f"{made_for.naming_option and ':'}{made_for.naming_option}, or, if its code or "
                "torch has changed, plan it anew"
            )
        number_of = {operator.name: operator.id for operator in graph.operators}
        operators = (
            sorted(_number(name, index, number_of) for name in stage.operators)
            for index, stage in enumerate(self.stages)
        )
        placement = Placement.of(operators, (stage.accelerators for stage in self.stages))
        placement.validate_for(graph, self.cluster.accelerators)
        return placement

    def plan(self, graph: OpGraph, method: Method | None = None) -> ExecutionPlan:
        """Return the plan of the file's candidate, or of its placement with another method.

        Raises:
            InvalidPlacement: as :meth:`resolve`.
            InvalidInput: the method cannot run the placement.
        """
        candidate = Candidate(self.resolve(graph), method or self.method)
        return ExecutionPlan.of(candidate, graph, self.cluster.accelerators)


def _number(name: str, stage: int, number_of: Mapping[str, int]) -> int:
    if name in number_of:
        return number_of[name]
    hint = did_you_mean(name, number_of) or "`drlpp show` lists a graph's operators"
    raise InvalidPlacement(
        f"stage {stage} names operator {name!r}, which is not in the graph; {hint}"
    )


def read_placement(path: str | Path, *, model: Model | None = None) -> PlacementFile:
    """Read a placement file, which imports nothing.

    Args:
        path: of the file.
        model: the model that the placement is for. A model of the user's own is named again by
            whoever builds it; drlpp's and huggingface's need not be.

    Raises:
        InvalidFile: naming the file, the field, and what was expected there.
    """
    document = read_document(path, PlacementFile)
    return document if model is None else document.with_model(model)
