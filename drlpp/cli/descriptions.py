"""Files of the project as readable tables; ``drlpp show`` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch
from pathlib import Path
from statistics import median

import yaml
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.pretty import Pretty

from drlpp.capturing.graph import OpGraph, SharedParameter, TensorSpec
from drlpp.costs.profile import Profile
from drlpp.io.documents import Document
from drlpp.io.formatting import predicted_text, seconds_text
from drlpp.placement.measurements_file import read_measurements
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.comparison import Comparison
from drlpp.racing.training_race import TrainingRace
from drlpp.report.tables import Table, describe_comparison, describe_race, measured_table
from drlpp.specs.cluster import Cluster


@singledispatch
def describe(document: Document) -> RenderableType:
    """Make a readable picture of a document for ``rich``'s console."""
    return Pretty(document)


describe.register(Comparison, describe_comparison)
describe.register(TrainingRace, describe_race)


@describe.register
def _(graph: OpGraph) -> RenderableType:
    returned = {operator for operator, _ in graph.outputs}
    rows = []
    for operator in graph.operators:
        readers = [str(reader) for reader in graph.successors[operator.id]]
        rows.append(
            [
                str(operator.id),
                operator.name,
                operator.type,
                operator.module,
                _bytes_text(operator.parameter_bytes),
                "\n".join(_tensor_text(output) for output in operator.outputs),
                ", ".join(readers + ["caller"] * (operator.id in returned)),
            ]
        )
    columns = [">id", "operator", "type", "module", ">parameters", "outputs", "read by"]
    table = Table(columns, rows)
    return Group(f"{graph.model} · graph {graph.fingerprint}", table, *report_lines(graph))


def _tensor_text(tensor: TensorSpec) -> str:
    shape = "×".join(str(size) for size in tensor.shape) or "scalar"
    return f"{shape} {tensor.dtype}"


def _bytes_text(bytes_: float | None) -> str:
    return decimal(round(bytes_)) if bytes_ else "–"


def report_lines(graph: OpGraph) -> Iterator[str]:
    """Yield what matters of a graph, on one screen whatever the model."""
    parameters = decimal(graph.parameter_bytes)
    yield f"{len(graph)} operators, {len(graph.edges)} edges, {parameters} of parameters"
    yield from shared_weights(graph)
    if len(graph) == 1:
        yield "one operator: no placement can divide it"
        return
    widths = graph.cut_widths()
    narrowest, widest = (widths.index(width) for width in (min(widths), max(widths)))
    yield (
        f"a cut sends {decimal(min(widths))} (behind {graph.operators[narrowest].name}) to "
        f"{decimal(max(widths))} (behind {graph.operators[widest].name}) for a minibatch, "
        f"{decimal(round(median(widths)))} in the median"
    )


def shared_weights(graph: OpGraph) -> Iterator[str]:
    """Say which operators share a parameter."""
    readers: dict[tuple[int, ...], list[SharedParameter]] = {}
    for shared in graph.shared_parameters:
        readers.setdefault(shared.operators, []).append(shared)
    for operators, found in readers.items():
        names = ", ".join(
            f"{one.name} ({decimal(one.bytes_)}{'' if one.trained else ', frozen'})"
            for one in found
        )
        yield f"operators {', '.join(map(str, operators))} share {names}, each stage a copy"


@describe.register
def _(cluster: Cluster) -> RenderableType:
    content = cluster.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100).rstrip()


@describe.register
def _(profile: Profile) -> RenderableType:
    graph = profile.graph
    total = sum(profile.seconds)
    rows = [
        [
            str(operator.id),
            operator.name,
            *(
                predicted_text(seconds, spread / (seconds or 1.0))
                for seconds, spread in (
                    (costs.forward_seconds, costs.forward_spread_seconds),
                    (costs.backward_seconds, costs.backward_spread_seconds),
                )
            ),
            f"{profile.seconds[operator.id] / total:.1%}" if total else "–",
            _bytes_text(operator.parameter_bytes),
            _bytes_text(operator.output_bytes),
            _bytes_text(costs.kept_bytes),
        ]
        for operator, costs in zip(graph.operators, profile.operators, strict=True)
    ]
    columns = [">id", "operator"]
    columns += [">forward", ">backward", ">share", ">parameters", ">outputs", ">kept"]
    repeating = len(graph) - (profile.timed_operators or len(graph))
    passes = profile.forward_overhead_seconds + profile.backward_overhead_seconds
    of_runs = {"in a pipeline": profile.in_pipeline, "on replicas": profile.replicated}
    return Group(
        f"{graph.model} · batch {profile.batch_size} on {profile.device}",
        Table(columns, rows),
        f"{len(graph)} operators"
        f"{f', of which {repeating} repeat others and were not timed' if repeating else ''}"
        f", {seconds_text(total)} per minibatch; a stage's passes take {seconds_text(passes)} in "
        "addition",
        *(
            f"{where} passes take {factors.passes:.2f} times as long, and the whole "
            f"{factors.seconds:.2f} (± {factors.spread:.0%}), as short runs show"
            for where, factors in of_runs.items()
            if factors is not None
        ),
        *shared_weights(graph),
        f"graph {graph.fingerprint}",
    )


@describe.register
def _(file: PlacementFile) -> RenderableType:
    rows = [
        [str(number), ", ".join(map(str, stage.accelerators)), names_text(stage.operators)]
        for number, stage in enumerate(file.stages)
    ]
    measured, versions = file.measurement, file.versions
    return Group(
        f"{file.model} · {file.configuration} · found by {file.found_by}",
        Table([">stage", "accelerators", "operators"], rows),
        "not measured"
        if measured is None
        else f"measured: {seconds_text(measured.seconds_per_minibatch)} per minibatch (standard "
        f"deviation {seconds_text(measured.standard_deviation_seconds)}, over "
        f"{measured.minibatches} minibatches)",
        f"schedule and policy: {file.method}; optimizer: {file.optimizer}",
        f"graph {file.graph_fingerprint}; drlpp {versions.drlpp}, torch {versions.torch}, "
        f"python {versions.python}",
        describe(file.cluster),
    )


def names_text(names: Sequence[str]) -> str:
    """Return how many names there are, the first and the last."""
    return f"{len(names)}: {names[0]}" + (f" … {names[-1]}" if len(names) > 1 else "")


def describe_measurements(path: Path) -> RenderableType:
    """Show every measurement of a file, the fastest first, and why others failed."""
    header, entries = read_measurements(path)
    runs = [(entry.candidate(header.method), entry.outcome) for entry in entries]
    return Group(f"{header.model}: {len(runs)} measurements", measured_table(runs))
