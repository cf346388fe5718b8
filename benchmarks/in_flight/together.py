"""Depth searched together with the placement, against the best placement at NOAM: measured.

    python -m benchmarks.in_flight together --document benchmarks/in_flight/README.md  # needs root
    python -m benchmarks.in_flight together --short --models vgg16 --rates 1000  # to see it work

For every model and speed of links, four emulated hosts with one accelerator each
(``emulated_cluster/``, dilated) profile the model, search with what they measured, and train in
turns with what was found.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from pandas import DataFrame

from benchmarks.emulated_cluster import ended_by_signals
from benchmarks.in_flight.links import RatesOption, SpeedOption, cluster_of, rates_of, samples_on
from benchmarks.in_flight.simulated import speed_text
from benchmarks.in_flight.together_program import CandidateSamples, SearchSettings
from benchmarks.machine import this_machine
from benchmarks.options import DocumentOption, JsonOption
from benchmarks.report import markdown, terminal, write_between
from drlpp.cli.command_line import build_console
from drlpp.io.formatting import seconds_text
from drlpp.models.model_reference import ModelReference
from drlpp.specs.cluster import Cluster

BEGIN = "<!-- depth and placement together: written by benchmarks.in_flight -->"
END = "<!-- end of depth and placement together -->"

_MODELS = "vgg16,gnmt8,benchmarks.models:convolutions"


@dataclass(frozen=True)
class Row:
    """A model on links of one speed: what was found at NOAM, deepened, and together.

    Attributes:
        model: its name.
        bits_per_second: of every link between hosts, each way, as asked for.
        names: of what was found, placement and depth.
        simulated: seconds per minibatch, with the links that were measured.
        turns: of every repetition the measured seconds; equal candidates have equal ones.
    """

    model: str
    bits_per_second: float
    names: tuple[str, ...]
    simulated: tuple[float, ...]
    turns: tuple[tuple[float, ...], ...]

    @property
    def seconds(self) -> tuple[float, ...]:
        """Per minibatch, measured: medians."""
        return tuple(map(statistics.median, zip(*self.turns, strict=True)))

    def saved(self, of: int, than: int) -> float:
        """Return how much less time one takes than another: the median of all turns, as a part."""
        return statistics.median(1 - turn[of] / turn[than] for turn in self.turns)

    def spread(self, of: int, than: int) -> float:
        """Return the half of what turns differ by in it."""
        parts = [1 - turn[of] / turn[than] for turn in self.turns]
        return (max(parts) - min(parts)) / 2


def main(
    models: Annotated[str, typer.Option(help="Which, with commas.")] = _MODELS,
    rates: RatesOption = "100,300,1000",
    speed: SpeedOption = 0.3,
    repetitions: Annotated[int, typer.Option(min=1, help="Of everything found, in turns.")] = 3,
    minibatches: Annotated[int, typer.Option(min=1, help="Of a measurement.")] = 30,
    short: Annotated[
        bool, typer.Option("--short", help="Short searches, one repetition: to see it work.")
    ] = False,
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search depth and placement together, and one after the other, and measure what was found."""
    settings = SearchSettings(
        model=ModelReference.named(models.partition(",")[0]),
        speed=speed,
        minibatches=1 if short else minibatches,
        repetitions=1 if short else repetitions,
        evaluations=20 if short else 20_000,
    )
    with ended_by_signals():
        rows = [
            measure(
                cluster_of(bits, speed),
                settings.model_copy(update={"model": ModelReference.named(model)}),
            )
            for model in models.split(",")
            for bits in rates_of(rates)
        ]
    conditions = (
        f"{this_machine()}; four hosts with an accelerator of {speed:g} cores each, by dilation, "
        f"and links by network namespaces; everything {settings.repetitions} × "
        f"{settings.minibatches} minibatches, in turns."
    )
    if as_json:
        print(json.dumps({"conditions": conditions, "rows": list(map(asdict, rows))}, indent=1))
    else:
        console = build_console()
        console.print(terminal(table_of(rows)))
        console.print(summary(rows))
        console.print(conditions)
    if document is not None:
        text = f"{markdown(table_of(rows))}\n\n{summary(rows)}\n\n{conditions}"
        write_between(document, BEGIN, END, text)


def measure(cluster: Cluster, settings: SearchSettings) -> Row:
    """Emulate a cluster, search and measure on it; progress goes to stderr.

    Raises:
        InvalidCluster: this machine has not the cores.
        RunFailure: the kernel refuses, or the measurements fail.
    """
    assert cluster.between_hosts is not None
    program = "benchmarks.in_flight.together_program"
    samples = samples_on(cluster, program, settings, CandidateSamples, quotas=False)
    return Row(
        model=settings.model.name.rpartition(":")[2],
        bits_per_second=8 * cluster.between_hosts.bandwidth_bytes_per_second,
        names=samples.names,
        simulated=samples.simulated,
        turns=samples.turns,
    )


def table_of(rows: Sequence[Row]) -> DataFrame:
    """Return the rows as text."""
    return DataFrame(map(_texts, rows))


def _texts(row: Row) -> dict[str, str]:
    noam, deepened, together = zip(row.names, row.seconds, row.simulated, strict=True)
    return {
        "model": row.model,
        "links": speed_text(row.bits_per_second),
        **{
            title: f"{name}: {seconds_text(measured)} ({seconds_text(simulated)})"
            for title, (name, measured, simulated) in {
                "at NOAM (simulated)": noam,
                "its depth afterwards (simulated)": deepened,
                "together (simulated)": together,
            }.items()
        },
        "together saves of NOAM (simulated)": _saved(row, 0),
        "of the depth afterwards (simulated)": _saved(row, 1),
    }


def _saved(row: Row, than: int) -> str:
    if row.names[2] == row.names[than]:
        return "the same"
    simulated = 1 - row.simulated[2] / row.simulated[than]
    return f"{row.saved(2, than):.0%} ± {row.spread(2, than):.0%} ({simulated:.0%})"


def summary(rows: Sequence[Row]) -> str:
    """Say what searching together saves in the median of the rows."""
    parts = []
    for than, what in enumerate(("the best placement at NOAM", "its depth chosen afterwards")):
        measured = [row.saved(2, than) for row in rows]
        simulated = [1 - row.simulated[2] / row.simulated[than] for row in rows]
        parts.append(
            f"against {what} {statistics.median(measured):.0%} of the time in the median, "
            f"{min(measured):.0%} to {max(measured):.0%} (simulated "
            f"{statistics.median(simulated):.0%}, {min(simulated):.0%} to {max(simulated):.0%})"
        )
    return f"Searching together saves {'; '.join(parts)}."
