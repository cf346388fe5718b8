"""Damaged, made-up and hostile bytes for every loader, and what a loader may do with them.

A loader may return, or raise :class:`~drlpp.errors.InvalidInput` with one readable line; nothing
else, and within bounds of time.
"""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.hostile_tensors import hostile_tensors
from drlpp.agents.transfer.weights import load_weights, save_weights
from drlpp.capturing.capture import capture
from drlpp.costs.pipedream_profile import read_pipedream_profile
from drlpp.costs.profile import Profile
from drlpp.envs.measurements_file import Entry, Header, append, read_measurements
from drlpp.errors import InvalidInput
from drlpp.io.documents import read_any_document, read_document, write_document
from drlpp.io.run_folder import RunRecord
from drlpp.models.task import ModelReference
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile, read_placement
from drlpp.planners.milp.partitioning_instance import PartitioningInstance
from drlpp.runtime.ipc.tensor_file import write_checkpoint
from drlpp.runtime.training.checkpoint import read_training_checkpoint
from drlpp.runtime.training.training_reports import EpochReport
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec

MOST_SECONDS = 5.0
"""Of one file; an ordinary one takes milliseconds, and the machine may be busy."""
_LONGEST_LINE = 1000

_FRAGMENTS = (
    b"",
    b"{",
    b"[" * 3000,
    b'{"a":' * 3000,
    b"-1",
    b"1e999",
    b"NaN",
    b"9" * 5000,
    b"null",
    b"true",
    b'""',
    b"\x00",
    b"\xff\xfe",
    b"\n",
    b"\t",
    b" -- ",
    b"&a [*a]",
    b": *b\n",
    b"!!python/object/apply:os.system ['touch trapped']",
    b"*a",
    b"? ",
    b"0",
    b"1" + b"0" * 30,
    "Ω".encode(),
    struct.pack("<Q", 2**63 - 1),
    struct.pack("<Q", 2**31),
)
_BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in range(ord("b"), ord("j"))
)
HOSTILE = (
    b'{"maxFPGAs": 99999999999, "maxSizePerFPGA": 1, "edges": [], "nodes": [{"id": 0, '
    b'"fpgaLatency": 1, "supportedOnFpga": true, "isBackwardNode": false}]}',
    b"",
    _BOMB,
    b"kind: cluster\nversion: 1\n" + _BOMB,
    b"{" * 100_000,
    b'{"kind":' * 20_000,
    b"- " * 50_000 + b"\n",
    b"[" * 100_000 + b"\n",
    struct.pack("<Q", 2**40) + b"{}",
    struct.pack("<Q", 2) + b"{}",
    b"\x80\x04cos\nsystem\n(S'touch trapped'\ntR.",
    *hostile_tensors(),
)


@dataclass(frozen=True)
class Loader:
    """Something that reads files, and files that it reads."""

    read: Callable[[Path], object]
    suffix: str
    valid: tuple[bytes, ...]


def loaders(folder: Path) -> Mapping[str, Loader]:
    """Every loader by its name, with valid files that are made in ``folder``."""
    captured = capture(ModelReference.named("tests.support.models:perceptron", layers=2))
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
    pipedream = (
        b"node1 -- Input0 -- forward_compute_time=0.0, backward_compute_time=0.0, "
        b"activation_size=0.0, parameter_size=0.0\n"
        b"node2 -- Conv2d(3, 64) -- forward_compute_time=0.5, backward_compute_time=1.1, "
        b"activation_size=[64.0; 8.0], parameter_size=7168.000\n"
        b"node3 -- ReLU -- forward_compute_time=0.1, backward_compute_time=0.2, "
        b"activation_size=64.0, parameter_size=0.000\n\tnode1 -- node2\n\tnode2 -- node3\n"
    )
    instance = {
        "maxFPGAs": 2,
        "maxSizePerFPGA": 100,
        "nodes": [
            {"id": i, "fpgaLatency": 1.5, "supportedOnFpga": True, "isBackwardNode": i > 1}
            for i in range(4)
        ],
        "edges": [{"sourceId": i, "destId": i + 1, "cost": 0.5} for i in range(3)],
    }
    network = torch.nn.Linear(3, 2)
    report = EpochReport(1, 0.5, None, None, 10.0)
    tree = {
        "model": captured.state,
        "optimizer": {name: {"step": torch.ones(())} for name in captured.state},
        "in_flight": {0: {"stage": None}, 1: {"stage": {(1, 0): torch.ones(2)}}},
        "deployed": "here",
        "epochs": [asdict(report)],
        "began": 0,
        "position": 1,
        "losses": {(0, 0): 1.0},
        "data": ((torch.Generator().get_state(),), "first"),
    }

    def written(name: str, write: Callable[[Path], Any]) -> bytes:
        path = folder / name
        write(path)
        return path.read_bytes()

    def measurements(path: Path) -> None:
        header = Header(model="m", graph_fingerprint="f", accelerators=2, minibatches=30)
        append(path, header)
        append(
            path,
            Entry(placement=placement, outcome=FailedMeasurement(failure="lost", reason="why")),
        )

    def of(content: object) -> Callable[[Path], Any]:
        return lambda path: write_document(path, content)  # type: ignore[arg-type]

    profile = (Path(__file__).parent / "profiles" / "alexnet.json").read_bytes()
    return {
        "placement": Loader(
            lambda path: read_placement(path).resolve(captured.graph),
            ".json",
            (written("placement.json", of(document)),),
        ),
        "cluster": Loader(
            lambda path: read_document(path, Cluster),
            ".yaml",
            (written("cluster.yaml", of(cluster)),),
        ),
        "graph": Loader(read_any_document, ".json", (written("graph.json", of(captured.graph)),)),
        "profile": Loader(lambda path: read_document(path, Profile), ".json", (profile,)),
        "run": Loader(
            lambda path: read_document(path, RunRecord),
            ".json",
            (written("run.json", of(record)),),
        ),
        "measurements": Loader(
            lambda path: list(read_measurements(path)[1]),
            ".jsonl",
            (written("measurements.jsonl", measurements),),
        ),
        "checkpoint": Loader(
            lambda path: _read_every_tensor(path, captured.state),
            ".safetensors",
            (written("tree.safetensors", lambda path: write_checkpoint(path, tree)),),
        ),
        "weights": Loader(
            lambda path: load_weights(network, path),
            ".safetensors",
            (written("weights.safetensors", lambda path: save_weights(network, path, {})),),
        ),
        "pipedream": Loader(read_pipedream_profile, ".txt", (pipedream,)),
        "instance": Loader(
            lambda path: PartitioningInstance.read(path).problem(),
            ".json",
            (json.dumps(instance).encode(),),
        ),
    }


def _read_every_tensor(path: Path, state: Mapping[str, torch.Tensor]) -> None:
    def visit(tree: Any) -> None:
        if isinstance(tree, torch.Tensor):
            tree.clone()
        elif isinstance(tree, dict):
            for value in tree.values():
                visit(value)
        elif isinstance(tree, list | tuple):
            for value in tree:
                visit(value)

    visit(dict(read_training_checkpoint(path, state, minibatches=3)))


def mutated(valid: bytes, chance: random.Random) -> bytes:
    """A valid file with some damage; sometimes bytes that never were a file."""
    choice = chance.random()
    if choice < 0.03:
        return chance.randbytes(chance.randrange(200))
    if choice < 0.06:
        return chance.choice(HOSTILE)
    data = bytearray(valid)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        begin = chance.randrange(len(data) + 1)
        end = min(len(data), begin + int(chance.expovariate(0.2)))
        match chance.randrange(6):
            case 0 if data:
                data[begin % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                del data[begin:]
            case 2:
                del data[begin:end]
            case 3:
                data[begin:end] = chance.choice(_FRAGMENTS)
            case 4:
                data[begin:begin] = data[chance.randrange(len(data) + 1) :][:100]
            case _:
                _change_a_number(data, chance)
    return bytes(data)


def _change_a_number(data: bytearray, chance: random.Random) -> None:
    digits = [index for index, byte in enumerate(data) if chr(byte).isdigit()]
    if digits:
        index = chance.choice(digits)
        data[index : index + 1] = chance.choice((b"-1", b"0", b"99999999999", b"1e308", b"9"))


def complaint_about(loader: Loader, data: bytes, path: Path) -> str | None:
    """What is wrong with how a loader takes ``data``; None if nothing is."""
    path = path.with_suffix(loader.suffix)
    path.write_bytes(data)
    begin = time.process_time()
    try:
        loader.read(path)
    except InvalidInput as error:
        text = str(error)
        if "\n" in text or not text:
            return f"not one line: {text!r}"
        if len(text) > _LONGEST_LINE:
            return f"a line of {len(text)} characters: {text[:200]}"
    # Whatever else is raised is what is looked for.
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    seconds = time.process_time() - begin
    return f"took {seconds:.1f} s" if seconds > MOST_SECONDS else None
