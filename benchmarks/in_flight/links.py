"""What more minibatches in flight give on links of several speeds, measured and simulated.

    python -m benchmarks.in_flight links --document benchmarks/in_flight/README.md  # needs root
    python -m benchmarks.in_flight links --short --rates 1000            # to see it work

For every speed, four emulated hosts with one accelerator each (``emulated_cluster/``) train an even
straight pipeline, with NOAM and with one to three more in flight for each link,
in turns. The simulator plays the same placement with the profile that these workers took and the
links that were asked for. There, messages take no worker's time; on emulated accelerators, sending
and receiving take of their quotas.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from benchmarks.emulated_cluster import LEAST_SPEED, EmulatedCluster, ended_by_signals
from benchmarks.in_flight.program import (
    METHOD,
    STAGES,
    DepthSamples,
    Settings,
    TurnSettings,
    even_placement,
)
from benchmarks.in_flight.report import Row, as_plain, table_of
from benchmarks.in_flight.simulated import BITS_PER_SECOND, MOST_PER_LINK
from benchmarks.machine import this_machine
from benchmarks.models import MODELS, SMALL_MODELS, reference
from benchmarks.options import DocumentOption, JsonOption
from benchmarks.report import markdown, terminal, write_between
from drlpp.cli.command_line import build_console
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.io.documents import Document, read_document
from drlpp.simulator import simulate_depths
from drlpp.specs.cluster import Cluster, Host, Link

BEGIN = "<!-- in-flight depth on links: written by benchmarks.in_flight -->"
END = "<!-- end of in-flight depth on links -->"

_MODEL = "convolutions"
_RATES = ",".join(f"{bits / 1e6:g}" for bits in BITS_PER_SECOND)
RatesOption = Annotated[
    str, typer.Option(help="Of the links between hosts, in Mbit/s, with commas.")
]
SpeedOption = Annotated[
    float, typer.Option(min=LEAST_SPEED, max=1, help="Of an accelerator, in cores.")
]
_WITHIN_HOST = Link(bandwidth_bytes_per_second=1.25e9)


def main(
    rates: RatesOption = _RATES,
    speed: SpeedOption = 0.2,
    repetitions: Annotated[int, typer.Option(min=1, help="Of every depth, in turns.")] = 3,
    minibatches: Annotated[int, typer.Option(min=1, help="Of a measurement.")] = 12,
    short: Annotated[
        bool, typer.Option("--short", help="A small model, one repetition: to see it work.")
    ] = False,
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a pipeline with several in-flight depths on emulated links of several speeds."""
    settings = Settings(
        model=reference(_MODEL, (SMALL_MODELS if short else MODELS)[_MODEL]),
        minibatches=1 if short else minibatches,
        repetitions=1 if short else repetitions,
        most_per_link=MOST_PER_LINK,
        profile_repeats=1 if short else 5,
    )
    with ended_by_signals():
        rows = [measure(cluster_of(bits, speed), settings) for bits in rates_of(rates)]
    conditions = (
        f"{this_machine()}; {STAGES} hosts with an accelerator of {speed:g} cores each, by control "
        f"groups, and links by network namespaces; {settings.model}, {METHOD}; every depth "
        f"{settings.repetitions} × {settings.minibatches} minibatches, in turns."
    )
    if as_json:
        plain = {"conditions": conditions, "settings": settings.model_dump(mode="json")}
        print(json.dumps({**plain, "rows": as_plain(rows)}, indent=1))
    else:
        console = build_console()
        console.print(terminal(table_of(rows)))
        console.print(conditions)
    if document is not None:
        write_between(document, BEGIN, END, f"{markdown(table_of(rows))}\n\n{conditions}")


def rates_of(text: str) -> list[float]:
    """Return bits per second of links whose speeds are given in Mbit/s, with commas.

    Raises:
        InvalidInput: something else is given.
    """
    try:
        rates = [float(rate) * 1e6 for rate in text.split(",")]
    except ValueError:
        rates = [0.0]
    if not all(0 < rate < float("inf") for rate in rates):
        raise InvalidInput(f"rates {text!r}: expected numbers of Mbit/s, such as 100,1000")
    return rates


def cluster_of(bits_per_second: float, speed: float) -> Cluster:
    """Return hosts with one accelerator each, so that all messages between stages take a link."""
    return Cluster(
        hosts=(Host(name="host", count=STAGES, accelerators=1, speed=speed),),
        within_host=_WITHIN_HOST,
        between_hosts=Link(bandwidth_bytes_per_second=bits_per_second / 8),
    )


def measure(cluster: Cluster, settings: Settings) -> Row:
    """Emulate a cluster, and measure and simulate every depth on it; progress goes to stderr.

    Raises:
        InvalidCluster: this machine has not the cores.
        RunFailure: the kernel refuses, or the measurements fail.
    """
    samples = samples_on(cluster, "benchmarks.in_flight.program", settings, DepthSamples)
    return row_of(cluster, samples)


_Samples = TypeVar("_Samples", bound=Document)


def samples_on(
    cluster: Cluster,
    program: str,
    settings: TurnSettings,
    kind: type[_Samples],
    *,
    quotas: bool = True,
) -> _Samples:
    """Emulate a cluster, run a program on it, and return what it writes; progress goes to stderr.

    Raises:
        InvalidCluster: this machine has not the cores.
        RunFailure: the kernel refuses, or the program fails.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        EmulatedCluster(cluster, quotas=quotas) as emulated,
    ):
        _tell(f"{emulated.description}\n")
        path = Path(folder) / "samples.json"
        command = [sys.executable, "-m", program, settings.model_dump_json(), str(path)]
        emulated.run(command, on_output=_tell)
        return read_document(path, kind)


def row_of(cluster: Cluster, samples: DepthSamples) -> Row:
    """Return what was measured on a cluster, with what is simulated of it."""
    assert cluster.between_hosts is not None
    return Row(
        bits_per_second=8 * cluster.between_hosts.bandwidth_bytes_per_second,
        message_bytes=samples.message_bytes,
        message_seconds=samples.message_seconds,
        turns=samples.turns,
        simulated=simulate_depths(
            Workload.of(samples.profile, METHOD), cluster, even_placement(samples.profile), METHOD
        ),
    )


def _tell(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
