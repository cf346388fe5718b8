"""Readable tables of any file of the project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import singledispatch
from pathlib import Path

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.pretty import Pretty
from rich.table import Table

from drlpp.capturing.graph import OpGraph, TensorSpec
from drlpp.cli.showing.comparison_table import describe_comparison
from drlpp.cli.showing.graph_report import report_lines, shared_weights
from drlpp.cli.showing.race_report import describe_race
from drlpp.costs.profile import Profile
from drlpp.envs.measuring.search_file import SearchFile
from drlpp.io.documents import Document
from drlpp.io.formatting import seconds_text
from drlpp.io.run_folder import RunRecord
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.comparison import Comparison
from drlpp.racing.microbatches import MicrobatchChoice
from drlpp.racing.training_race import TrainingRace
from drlpp.runtime.training.checkpoints.evaluation_file import EvaluationFile
from drlpp.specs.cluster import Cluster, Link

_MOST_NAMES = 200
"""Of operators of a stage that are all listed."""


@singledispatch
def describe(document: Document) -> RenderableType:
    """Make a readable picture of a document for ``rich``'s console; ``drlpp show`` prints it."""
    return Pretty(document)


@describe.register
def _(graph: OpGraph) -> RenderableType:
    table = Table()
    table.add_column("id", justify="right")
    for column in ("operator", "type", "module"):
        table.add_column(column, overflow="fold")
    table.add_column("parameters", justify="right")
    table.add_column("outputs")
    table.add_column("read by", overflow="fold")
    returned = {operator for operator, _ in graph.outputs}
    for operator in graph.operators:
        readers = [str(reader) for reader in graph.successors[operator.id]]
        if operator.id in returned:
            readers.append("caller")
        table.add_row(
            str(operator.id),
            operator.name,
            operator.type,
            operator.module,
            decimal(operator.parameter_bytes) if operator.parameter_bytes else "–",
            "\n".join(_tensor_text(output) for output in operator.outputs),
            ", ".join(readers),
        )
    return Group(f"{graph.model} · graph {graph.fingerprint}", table, *report_lines(graph))


def _tensor_text(tensor: TensorSpec) -> str:
    shape = "×".join(str(size) for size in tensor.shape) or "scalar"
    return f"{shape} {tensor.dtype}"


@describe.register
def _(cluster: Cluster) -> RenderableType:
    table = Table()
    for column in ("host", "rack", "device"):
        table.add_column(column, overflow="fold")
    for column in ("accelerators", "speed", "memory of each"):
        table.add_column(column, justify="right")
    table.add_column("network")
    first = 0
    for host in cluster.hosts:
        last = first + host.count * host.accelerators - 1
        # What counts: a host reaches others no faster than 'between_hosts', if there are any.
        joined = host.network is not None and cluster.between_hosts is not None
        table.add_row(
            host.name if host.count == 1 else f"{host.names[0]} … {host.names[-1]}",
            host.rack or "–",
            host.device,
            str(first) if first == last else f"{first} to {last}",
            f"{host.speed:g}",
            "–" if host.memory_bytes is None else decimal(round(host.memory_bytes)),
            _link_text(cluster.network(first)) if joined else "–",
        )
        first = last + 1
    hosts = len(cluster.host_names)
    lines = [
        f"{cluster.accelerators} accelerators on {hosts} host{'s' if hosts > 1 else ''}",
        f"within a host: {_link_text(cluster.within_host)}",
    ]
    if cluster.between_hosts is not None:
        lines.append(f"between hosts: {_link_text(cluster.between_hosts)}")
    if cluster.between_racks is not None:
        lines.append(f"between racks: {_link_text(cluster.between_racks)}")
    return Group(table, *lines)


def _link_text(link: Link) -> str:
    bandwidth = decimal(int(link.bandwidth_bytes_per_second))
    return f"{bandwidth}/s, latency {seconds_text(link.latency_seconds)}"


@describe.register
def _(profile: Profile) -> RenderableType:
    graph = profile.graph
    title = f"{graph.model} · batch {profile.batch_size} on {profile.device}"
    table = Table()
    table.add_column("id", justify="right")
    table.add_column("operator", overflow="fold")
    for column in ("forward", "backward", "share", "parameters", "outputs", "kept"):
        table.add_column(column, justify="right")
    total = sum(profile.seconds)
    for described, costs in zip(graph.operators, profile.operators, strict=True):
        table.add_row(
            str(described.id),
            described.name,
            _spread_text(costs.forward_seconds, costs.forward_spread_seconds),
            _spread_text(costs.backward_seconds, costs.backward_spread_seconds),
            f"{profile.seconds[described.id] / total:.1%}" if total else "–",
            decimal(described.parameter_bytes) if described.parameter_bytes else "–",
            decimal(described.output_bytes) if described.output_bytes else "–",
            decimal(costs.kept_bytes) if costs.kept_bytes else "–",
        )
    repeating = len(graph) - (profile.timed_operators or len(graph))
    return Group(
        title,
        table,
        f"{len(graph)} operators"
        f"{f', of which {repeating} repeat others and were not timed' if repeating else ''}"
        f", {seconds_text(total)} per minibatch; a stage's passes take "
        f"{seconds_text(profile.forward_overhead_seconds + profile.backward_overhead_seconds)} "
        "in addition",
        f"for each MB of parameters: update {seconds_text(profile.update_seconds_per_byte * 1e6)}, "
        f"prediction {seconds_text(profile.prediction_seconds_per_byte * 1e6)}",
        *_short_runs_text(profile),
        *shared_weights(graph),
        f"graph {graph.fingerprint}",
    )


def _short_runs_text(profile: Profile) -> Iterator[str]:
    """Tell what short runs took longer than operators alone."""
    for where, factors in (
        ("in a pipeline", profile.in_pipeline),
        ("on replicas", profile.replicated),
    ):
        if factors is not None:
            yield (
                f"{where} passes take {factors.passes:.2f} times as long, and the whole "
                f"{factors.seconds:.2f} (± {factors.spread:.0%}), as short runs show"
            )


def _spread_text(seconds: float, spread: float) -> str:
    """Return median and spread, like ``1.20 ms ± 3%``."""
    text = seconds_text(seconds)
    return f"{text} ± {spread / seconds:.0%}" if spread and seconds else text


def _names_text(names: Sequence[str]) -> str:
    """Return all names, or where they are many the first and the last."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{len(names)}: {names[0]}, {names[1]}, … {names[-1]}"


@describe.register
def _(file: PlacementFile) -> RenderableType:
    title = f"{file.model} · {file.configuration} · found by {file.found_by}"
    table = Table()
    table.add_column("stage", justify="right")
    table.add_column("accelerators")
    table.add_column("operators", overflow="fold")
    for number, stage in enumerate(file.stages):
        accelerators = ", ".join(str(accelerator) for accelerator in stage.accelerators)
        table.add_row(str(number), accelerators, _names_text(stage.operators))
    versions = file.versions
    return Group(
        title,
        table,
        _measurement_text(file.measurement),
        f"schedule and policy: {file.method}; optimizer: {file.optimizer}",
        f"graph {file.graph_fingerprint}; drlpp {versions.drlpp}, torch {versions.torch}, "
        f"python {versions.python}",
        describe(file.cluster),
    )


@describe.register
def _(choice: MicrobatchChoice) -> RenderableType:
    return str(choice)


@describe.register
def _(search: SearchFile) -> RenderableType:
    return Group(*search.lines)


@describe.register
def _(race: TrainingRace) -> RenderableType:
    return describe_race(race)


@describe.register
def _(record: RunRecord) -> RenderableType:
    table = Table(title=f"run of {record.command}", title_justify="left")
    table.add_column("setting")
    table.add_column("value", overflow="fold")
    for name, value in record.settings.items():
        table.add_row(name, Pretty(value))
    return table


@describe.register
def _(found: EvaluationFile) -> RenderableType:
    parts = [f"loss {found.loss:.6g}"]
    if found.held_out_loss is not None:
        parts.append(f"held-out loss {found.held_out_loss:.6g}")
    if found.score is not None:
        parts.append(f"score {found.score:.6g}")
    parts.append(f"{found.minibatches_per_second:.6g} minibatches a second")
    return f"epoch {found.epoch}: {', '.join(parts)}"


def describe_options(options: Mapping[str, object], file: Path) -> RenderableType:
    """Make a table of the options of a run; the command itself is in the run's record."""
    table = Table()
    table.add_column("option")
    table.add_column("value", overflow="fold")
    for name, value in options.items():
        table.add_row(name, str(value))
    return Group(table, f"the same command with --config {file} runs it again")


def _measurement_text(measurement: Measurement | None) -> str:
    if measurement is None:
        return "not measured"
    return (
        f"measured: {seconds_text(measurement.seconds_per_minibatch)} per minibatch (median "
        f"{seconds_text(measurement.median_seconds)}, standard deviation "
        f"{seconds_text(measurement.standard_deviation_seconds)}, over "
        f"{measurement.minibatches} minibatches)"
    )


describe.register(Comparison, describe_comparison)
