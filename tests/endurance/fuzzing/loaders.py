"""Everything that reads files, and whether it survives any bytes.

A loader may return, or raise :class:`~drlpp.errors.InvalidInput` with one readable line; nothing
else, and within bounds of time.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hypothesis
import torch
from torch.utils import _pytree as pytree

from benchmarks import PROFILES
from drlpp.capturing.capture import capture
from drlpp.costs.cost_table import read_profile
from drlpp.costs.profile import Profile
from drlpp.errors import InvalidInput
from drlpp.io.documents import read_any_document, read_document, write_document
from drlpp.io.files import append
from drlpp.io.run_folder import RunRecord
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.measurements_file import (
    Entry,
    Header,
    open_measurements,
    read_measurements,
)
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile, read_placement
from drlpp.runtime.ipc.tensor_file import read_checkpoint, write_checkpoint
from drlpp.runtime.training.checkpoints import checked_checkpoint
from drlpp.runtime.training.training_plan import EpochReport
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.endurance.fuzzing.damage import damaged

MOST_SECONDS = 5.0
"""Of one file; an ordinary one takes milliseconds, and the machine may be busy."""
_LONGEST_LINE = 1000


@dataclass(frozen=True)
class Loader:
    """Something that reads files, and a file that it reads."""

    read: Callable[[Path], object]
    suffix: str
    valid: bytes


def loaders(folder: Path) -> Mapping[str, Loader]:
    """Return every loader by its name, with valid files that are made in ``folder``."""
    captured = capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))
    cluster = local_cluster(2, Link(bandwidth_bytes_per_second=1e9))
    half = len(captured.graph) // 2
    placement = Placement.from_assignment(
        [int(operator >= half) for operator in range(len(captured.graph))], (0, 1)
    )
    document = PlacementFile.create(
        captured.reference,
        captured.graph,
        placement,
        cluster,
        method=Method(),
        optimizer=OptimizerSpec(),
        found_by="fuzzing",
    )
    record = RunRecord(command="drlpp train", settings={"seed": 0})
    report = EpochReport(1, 0.5, None, None, 10.0)
    tree = {
        "model": captured.state,
        "optimizer": {name: {"step": torch.ones(())} for name in captured.state},
        "epochs": [asdict(report)],
        "position": 1,
        "losses": {(0, 0): 1.0},
        "data": ((torch.Generator().get_state(),), "first"),
    }

    def written(name: str, write: Callable[[Path], Any]) -> bytes:
        path = folder / name
        write(path)
        return path.read_bytes()

    def measurements(path: Path) -> None:
        header = Header(
            model="m", graph_fingerprint="f", accelerators=2, minibatches=30, method=Method()
        )
        open_measurements(path, header)
        append(
            path,
            Entry(placement=placement, outcome=FailedMeasurement(failure="lost", reason="why")),
        )

    def of(content: object) -> Callable[[Path], Any]:
        return lambda path: write_document(path, content)  # type: ignore[arg-type]

    profile = (PROFILES / "alexnet.json").read_bytes()
    return {
        "placement": Loader(
            lambda path: read_placement(path).resolve(captured.graph),
            ".json",
            written("placement.json", of(document)),
        ),
        "cluster": Loader(
            lambda path: read_document(path, Cluster), ".yaml", written("cluster.yaml", of(cluster))
        ),
        "graph": Loader(read_any_document, ".json", written("graph.json", of(captured.graph))),
        "profile": Loader(lambda path: read_document(path, Profile), ".json", profile),
        "costs": Loader(read_profile, ".csv", b"name,forward_ms,backward_ms\nbody,3,6\nhead,1,2\n"),
        "run": Loader(
            lambda path: read_document(path, RunRecord), ".json", written("run.json", of(record))
        ),
        "measurements": Loader(
            lambda path: list(read_measurements(path)[1]),
            ".jsonl",
            written("measurements.jsonl", measurements),
        ),
        "checkpoint": Loader(
            lambda path: _read_every_tensor(path, captured.state),
            ".pt",
            written("tree.pt", lambda path: write_checkpoint(path, tree)),
        ),
    }


def _read_every_tensor(path: Path, state: Mapping[str, torch.Tensor]) -> None:
    tree = dict(checked_checkpoint(path, read_checkpoint(path), state))
    pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, tree)


def read_damaged(loader: Loader, data: bytes, path: Path) -> None:
    """Let a loader take ``data``.

    Raises:
        Exception: whatever it raises but one readable line; ValueError if its line is not readable,
            or comes too late.
    """
    path = path.with_suffix(loader.suffix)
    path.write_bytes(data)
    begin = time.process_time()
    try:
        loader.read(path)
    except InvalidInput as error:
        check_line(error)
    if (seconds := time.process_time() - begin) > MOST_SECONDS:
        raise ValueError(f"took {seconds:.1f} s")


def check_line(error: InvalidInput) -> None:
    """Raise ValueError if an error is not one readable line."""
    text = str(error)
    if "\n" in text or not text or len(text) > _LONGEST_LINE:
        raise ValueError(f"not one readable line: {text[:300]!r}") from None


def complaint_about(loader: Loader, path: Path, inputs: int, seed: int) -> str | None:
    """Return what is wrong with a loader, with the smallest input that hypothesis finds for it."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(damaged(loader.valid))
    def survive(data: bytes) -> None:
        read_damaged(loader, data, path)

    try:
        survive()
    except Exception as error:
        return "".join(traceback.format_exception(error, limit=0))
    return None
