"""What is executed, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.elsewhere.bundles import SGD, export_of, largest_difference, reference_state
from benchmarks.elsewhere.cases import SPLITS, captured, split
from benchmarks.elsewhere.ranks import Ranks
from benchmarks.elsewhere.results import SpeedRow, TrainedRow
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.errors import InvalidInput, RunFailure
from drlpp.exporting.torch_bundle import TorchExport
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.cluster import Link, local_cluster

_WEIGHTS_MINIBATCHES = 20
_PARTS = 2

FLUSHED = choose_method("sync", {"schedule": "1f1b-flush", "microbatches": _PARTS})
METHODS = {"1f1b-flush": FLUSHED, "pipeoptim": Method(), "stash": Method(policy="stash")}
"""Executed for their weights, by name."""

TIMED = ("1f1b-flush", "pipeoptim")
"""Those whose speeds are compared."""

_LINK = Link(bandwidth_bytes_per_second=1e9)


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

    def title(self, name: str) -> str:
        """Return what results call a model."""
        return f"{name}, tiny" if self.tiny else name

    def weights(self, name: str, ranks: int, method_name: str) -> TrainedRow:
        """Return what torch's runtime makes of an even cut by sizes.

        Raises:
            RunFailure: a rank failed.
        """
        self.tell(f"{self.title(name)} on {ranks} ranks, {method_name}: weights")
        model, method = captured(name, tiny=self.tiny, float64=True), METHODS[method_name]
        cluster = local_cluster(ranks, _LINK)
        placement = split("compute", model.graph, estimate_profile(model.graph), cluster, method)
        row = TrainedRow(
            model=self.title(name),
            ranks=ranks,
            method=method_name,
            configuration=placement.configuration,
        )
        try:
            export = export_of(model, Candidate(placement, method), _WEIGHTS_MINIBATCHES)
        except InvalidInput as error:
            return row.model_copy(update={"refused": str(error)})
        place = self.folder / f"w-{name}-{ranks}-{method_name}"
        file = place / "trained.pt"
        with Ranks(place, len(placement.stages), without_drlpp=True) as there:
            there.add(export, "trained")
            there.train("trained", _WEIGHTS_MINIBATCHES, file)
        found, wanted = torch.load(file), reference_state(export, _WEIGHTS_MINIBATCHES)
        if found.keys() != wanted.keys():
            raise RunFailure(f"{place}: names of weights differ: {found.keys() ^ wanted.keys()}")
        difference = largest_difference(found, wanted)
        moved = largest_difference(wanted, model.state)
        return row.model_copy(update={"difference": difference, "moved": moved})

    def speeds(self, name: str, speeds: tuple[float, ...]) -> tuple[SpeedRow, ...]:
        """Return what every cut takes in torch's runtime, and the plan in ours too, in turns.

        Raises:
            RunFailure: a rank failed.
        """
        model = captured(name, tiny=self.tiny, float64=False)
        where = f"{self.title(name)} on {len(speeds)} accelerators, the last at {speeds[-1]:g}"
        place = self.folder / f"s-{name}-{len(speeds)}-{speeds[-1]}"
        with (
            ClusterSession(model, workers=len(speeds), speeds=speeds, optimizer=SGD) as session,
            ExitStack() as stack,
        ):
            self.tell(f"{where}: profiling")
            profile, cluster = session.profile()
            rows: list[tuple[SpeedRow, TorchExport | None]] = []
            for method_name in TIMED:
                method = METHODS[method_name]
                for one in SPLITS:
                    placement = split(one, model.graph, profile, cluster, method)
                    row = SpeedRow(
                        model=self.title(name),
                        method=method_name,
                        split=one,
                        configuration=placement.configuration,
                        speeds=speeds,
                        minibatches=self.minibatches,
                    )
                    candidate = Candidate(placement, method)
                    try:
                        rows.append((row, export_of(model, candidate, self.minibatches)))
                    except InvalidInput as error:
                        rows.append((row.model_copy(update={"refused": str(error)}), None))
            exports = {export.nearest.candidate: export for _, export in rows if export is not None}
            plans = {
                export.nearest.candidate
                for row, export in rows
                if export is not None and row.split == "plan"
            }
            # All that have as many stages are in the same processes.
            groups: dict[int, Ranks] = {}
            runs: list[_Run] = []
            for number, (candidate, export) in enumerate(exports.items()):
                stages = len(candidate.placement.stages)
                if stages not in groups:
                    ranks = Ranks(place / f"{stages}", stages, without_drlpp=False)
                    groups[stages] = stack.enter_context(ranks)
                groups[stages].add(export, f"cut_{number}", speeds)
                runs.append(_Run(candidate, groups[stages], f"cut_{number}"))
            torchs: dict[Candidate, list[float]] = {candidate: [] for candidate in exports}
            ours: dict[Candidate, list[float]] = {candidate: [] for candidate in exports}
            for turn in range(self.rounds):
                self.tell(f"{where}: round {turn + 1}")
                for run in runs if turn % 2 == 0 else reversed(runs):
                    taken = run.ranks.seconds(run.bundle, self.minibatches)
                    torchs[run.candidate].append(taken)
                    if run.candidate in plans:
                        outcome = session.measure(run.candidate, self.minibatches)
                        if isinstance(outcome, Measurement):
                            ours[run.candidate].append(outcome.seconds_per_minibatch)
        return tuple(self._filled(rows, torchs, ours))

    @staticmethod
    def _filled(
        rows: list[tuple[SpeedRow, TorchExport | None]],
        torchs: dict[Candidate, list[float]],
        ours: dict[Candidate, list[float]],
    ) -> Iterator[SpeedRow]:
        """Yield the rows with what was measured."""
        for row, export in rows:
            if export is None:
                yield row
                continue
            found: dict[str, tuple[float, ...]] = {"torch": tuple(torchs[export.nearest.candidate])}
            if row.split == "plan":
                found["ours"] = tuple(ours[export.nearest.candidate])
            yield row.model_copy(update=found)


@dataclass(frozen=True)
class _Run:
    """A bundle, loaded by ranks under a name."""

    candidate: Candidate
    ranks: Ranks
    bundle: str
