"""What is executed, in turns, and the tables of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pandas import DataFrame

from benchmarks.elsewhere.bundles import (
    SGD,
    export_of,
    seconds_in_torch,
    weights_difference,
    written,
)
from benchmarks.elsewhere.cases import SPLITS, captured, split
from drlpp.capturing.capture import CapturedModel
from drlpp.costs.estimated_profile import estimate_profile
from drlpp.errors import InvalidInput
from drlpp.exporting.torch_bundle import TorchExport
from drlpp.io.formatting import seconds_text
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method, choose_method
from drlpp.specs.cluster import Link, local_cluster

_WEIGHTS_MINIBATCHES = 20
_PARTS = 2

FLUSHED = choose_method("sync", {"schedule": "1f1b-flush", "microbatches": _PARTS})
METHODS = {"1f1b-flush": FLUSHED, "pipeoptim": Method(), "stash": Method(policy="stash")}
"""Executed for their weights, by name; speeds are compared with the first and the second."""

_LINK = Link(bandwidth_bytes_per_second=1e9)


@dataclass(frozen=True)
class TrainedRow:
    """What torch's runtime made of a placement.

    Attributes:
        model, ranks, method, configuration: of what was trained.
        difference: the largest of any weight from our reference; None if there is no bundle.
        moved: the most that training has changed a weight.
        refused: why there is none.
    """

    model: str
    ranks: int
    method: str
    configuration: str
    difference: float | None = None
    moved: float = 0.0
    refused: str = ""


@dataclass
class SpeedRow:
    """What a minibatch takes by one cut.

    Attributes:
        model, method, split, configuration: of what was run.
        speeds: of the accelerators.
        torch, ours: seconds of every round, in torch's runtime and in ours.
        refused: why it cannot be run.
    """

    model: str
    method: str
    split: str
    configuration: str
    speeds: tuple[float, ...]
    torch: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    refused: str = ""


@dataclass(frozen=True)
class Study:
    """What is executed where, and how often.

    Attributes:
        folder: for bundles.
        tiny: whether models are tiny.
        rounds: of timings.
        minibatches: of a timing.
        tell: is told what begins.
    """

    folder: Path
    tiny: bool
    rounds: int
    minibatches: int
    tell: Callable[[str], object]

    def weights(self, name: str, ranks: int) -> Iterator[TrainedRow]:
        """Yield what torch's runtime makes of an even cut by sizes, with every method."""
        model = captured(name, tiny=self.tiny, float64=True)
        cluster = local_cluster(ranks, _LINK)
        for method_name, method in METHODS.items():
            self.tell(f"{name} on {ranks} ranks, {method_name}: weights")
            profile = estimate_profile(model.graph)
            placement = split("compute", model.graph, profile, cluster, method)
            row = TrainedRow(name, ranks, method_name, placement.configuration)
            try:
                export = export_of(model, Candidate(placement, method), _WEIGHTS_MINIBATCHES)
            except InvalidInput as error:
                yield TrainedRow(*_key(row), refused=str(error))
                continue
            folder = written(export, self.folder / f"w-{name}-{ranks}-{method_name}")
            yield TrainedRow(*_key(row), *weights_difference(export, folder, _WEIGHTS_MINIBATCHES))

    def speeds(self, name: str, speeds: tuple[float, ...]) -> list[SpeedRow]:
        """Return what every cut takes in torch's runtime, and the plan in ours too, in turns."""
        model = captured(name, tiny=self.tiny, float64=False)
        with ClusterSession(model, workers=len(speeds), speeds=speeds, optimizer=SGD) as session:
            self.tell(f"{name} on {len(speeds)} accelerators: profiling")
            profile, cluster = session.profile()
            rows: list[SpeedRow] = []
            runs: list[tuple[SpeedRow, TorchExport, Path]] = []
            for method_name in ("1f1b-flush", "pipeoptim"):
                method = METHODS[method_name]
                for one in SPLITS:
                    placement = split(one, model.graph, profile, cluster, method)
                    row = SpeedRow(name, method_name, one, placement.configuration, speeds)
                    rows.append(row)
                    try:
                        export = self._export(model, Candidate(placement, method))
                    except InvalidInput as error:
                        row.refused = str(error)
                        continue
                    place = f"s-{name}-{len(speeds)}-{speeds[-1]}-{method_name}-{one}"
                    runs.append((row, export, written(export, self.folder / place)))
            for number in range(self.rounds):
                self.tell(f"{name} on {len(speeds)} accelerators: round {number + 1}")
                for row, export, folder in runs if number % 2 == 0 else reversed(runs):
                    row.torch.append(seconds_in_torch(export, folder, self.minibatches, speeds))
                    if row.split == "plan":
                        outcome = session.measure(export.nearest.candidate, self.minibatches)
                        if isinstance(outcome, Measurement):
                            row.ours.append(outcome.seconds_per_minibatch)
        return rows

    def _export(self, model: CapturedModel, candidate: Candidate) -> TorchExport:
        return export_of(model, candidate, window=self.minibatches)


def _key(row: TrainedRow) -> tuple[str, int, str, str]:
    return row.model, row.ranks, row.method, row.configuration


def weights_table(rows: Sequence[TrainedRow]) -> DataFrame:
    """Return a line for each."""
    return DataFrame(
        {
            "model": row.model,
            "ranks": str(row.ranks),
            "method": row.method,
            "stages": row.configuration,
            "largest difference": "refused" if row.difference is None else f"{row.difference:.1e}",
            "largest change": "–" if row.difference is None else f"{row.moved:.1e}",
        }
        for row in rows
    )


def speed_table(rows: Sequence[SpeedRow]) -> DataFrame:
    """Return a line for each: medians, and how much longer than the plan's, within rounds."""
    plans = {(row.model, row.method, row.speeds): row for row in rows if row.split == "plan"}
    return DataFrame(
        {
            "model": row.model,
            "accelerators": str(len(row.speeds)),
            "method": row.method,
            "cut": row.split,
            "stages": row.configuration,
            "in torch": "refused" if row.refused else seconds_text(statistics.median(row.torch)),
            "over the plan": _ratio(row.torch, plans[row.model, row.method, row.speeds].torch),
            "ours": seconds_text(statistics.median(row.ours)) if row.ours else "–",
            "torch over ours": _ratio(row.torch, row.ours),
        }
        for row in rows
    )


def refusals(rows: Iterable[TrainedRow | SpeedRow]) -> list[str]:
    """Return a sentence for each reason for which a placement was refused, and whose it was."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.refused:
            found.setdefault(row.refused, []).append(f"{row.model} with {row.method}")
    return [f"{', '.join(dict.fromkeys(who))}: {why}" for why, who in found.items()]


def _ratio(seconds: Sequence[float], others: Sequence[float]) -> str:
    """Return the median of the ratios of rounds."""
    if not seconds or len(seconds) != len(others):
        return "–"
    pairs = zip(seconds, others, strict=True)
    return f"{statistics.median(one / other for one, other in pairs):.2f}×"
