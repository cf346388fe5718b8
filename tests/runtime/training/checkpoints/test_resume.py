"""A checkpoint goes on bit for bit in workers that never saw it, also one in parts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import InvalidFile, InvalidInput, StorageFailure
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement_file import PlacementFile
from drlpp.runtime import ClusterSession, Deployment, Minibatches, RunOptions, export_weights
from drlpp.runtime.ipc.shared_storage import storage_at
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup
from tests.support.in_turns import in_turns
from tests.support.models.forked import POLICIES, SHAPES, order, placements, samples
from tests.support.training.against_reference import assert_resumes
from tests.support.training.killing import killed_after_saving
from tests.support.training.loading import placement_file, same, train

MINIBATCHES = 12

METHODS = {
    **POLICIES,
    "pipeoptim-accumulating": Method(policy="pipeoptim", accumulate=3),
    "pipemare": Method(policy="pipemare", annealing_minibatches=10, correction_decay=0.2),
    "deeper": Method(policy="stash", in_flight_per_link=1),
    "microbatches": Method(policy="stash", microbatches=2),
    "predicted-microbatches": Method(policy="pipeoptim", microbatches=4),
    "recomputing": Method(policy="pipeoptim", recompute=True),
    "compiled": Method(policy="pipeoptim", compiled=True),
    "gpipe": Method(schedule="gpipe", policy="sync", microbatches=2, accumulate=2),
    "zb-h1": Method(schedule="zb-h1", policy="sync", microbatches=4),
}

SGD = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01})
OPTIMIZERS = {
    "sgd": SGD,
    "plain-sgd": OptimizerSpec(name="sgd", options={"lr": 0.1, "momentum": 0.0}),
    "rmsprop": OptimizerSpec(name="rmsprop", options={"lr": 0.005, "eps": 1e-2}),
}
OPTIMIZERS["groups"] = OptimizerSpec.parse(
    "adamw",
    [
        ParameterGroup.parse("*bias*", "norm.*", weight_decay=0),
        ParameterGroup.parse("lstm.*", lr=0.02, betas=[0.8, 0.99]),
        ParameterGroup.parse("conv.*", "head.*", amsgrad=True),
    ],
    lr=0.01,
    eps=1e-4,
)
OPTIMIZERS["muon"] = OptimizerSpec.parse("muon", lr=0.01, eps=1e-4)


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4) as session:
        session.use_samples(*samples())
        yield session


DATA, NAME = Minibatches(*samples()), "tests.support.models.forked:as_data"
OPTIONS = RunOptions(
    order=order(MINIBATCHES),
    rates=[0.05 / (1 + 0.1 * minibatch) for minibatch in range(MINIBATCHES)],
)


@pytest.mark.parametrize(
    ("method", "shape"),
    in_turns(
        METHODS, SHAPES[1:], slow={*METHODS} - {"stash", "pipemare", "predicted-microbatches"}
    ),
)
def test_resuming_at_any_minibatch_changes_no_bit(
    captured: CapturedModel, session: ClusterSession, tmp_path: Path, method: str, shape: str
) -> None:
    candidate = Candidate(placements(captured)[shape], METHODS[method])
    assert_resumes(session, candidate, SGD, DATA, OPTIONS, (1, 5), tmp_path)


def test_two_stages_on_an_accelerator_resume(
    captured: CapturedModel, session: ClusterSession, tmp_path: Path
) -> None:
    method = Method(schedule="zb-v", policy="sync", microbatches=2, accumulate=2)
    candidate = Candidate(placements(captured)["folded"], method)
    assert_resumes(session, candidate, SGD, DATA, OPTIONS, (4, 5), tmp_path)


PREDICTING = ["pipeoptim", "pipeoptim-accumulating", "spectrain", "xpipe"]


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        *in_turns(PREDICTING, [name for name in OPTIMIZERS if name != "sgd"], slow=["groups"]),
        ("stash", "groups"),
        pytest.param("2bw", "groups", marks=pytest.mark.slow),
    ],
)
def test_resuming_keeps_what_predictions_are_made_from(
    captured: CapturedModel, session: ClusterSession, tmp_path: Path, method: str, optimizer: str
) -> None:
    candidate = Candidate(placements(captured)["replicated"], METHODS[method])
    assert_resumes(session, candidate, OPTIMIZERS[optimizer], DATA, OPTIONS, (5, 8), tmp_path)


EVERY = 5


@pytest.fixture
def document(captured: CapturedModel) -> PlacementFile:
    # Three stages, one of two replicas: the second writes nothing.
    return placement_file(captured, 0, 1, 1, 2, method=Method(policy="stash"))


@pytest.fixture(scope="module")
def straight(captured: CapturedModel) -> PlacementFile:
    return placement_file(captured, 0, 1, method=Method(policy="stash"))


def test_parts_resume_bit_for_bit(document: PlacementFile, tmp_path: Path) -> None:
    """Behind a URL; damaged parts are in a folder."""
    location = f"file://{tmp_path / 'shared'}"
    options = {"checkpoint_every": EVERY, "data": NAME, "epochs": 1}
    whole = train(document, out=tmp_path / "whole", **options)
    options |= {"checkpoints": location, "out": tmp_path / "out"}
    with killed_after_saving(2):
        train(document, **options)
    assert same(train(document, resume=True, **options).state_dict, whole.state_dict)
    # One checkpoint is kept, and of replicas one has written its part.
    (parts,) = [path for path in (tmp_path / "shared").iterdir() if path.is_dir()]
    names = {"training.pt", *(f"worker-{worker}.pt" for worker in (0, 1, 3))}
    assert {path.name for path in parts.iterdir()} == names
    # And other projects read what it was.
    path = tmp_path / "model.safetensors"
    export_weights(location, path)
    assert same(load_file(path), whole.state_dict)
    export_weights(tmp_path / "whole", path)
    assert same(load_file(path), whole.state_dict)


def test_what_cannot_be_written_leaves_the_last_checkpoint(
    captured: CapturedModel,
    straight: PlacementFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    location = tmp_path / "shared"
    options = {"checkpoint_every": EVERY, "checkpoints": location, "data": NAME, "epochs": 1}
    write_parts = ClusterSession.write_parts

    def in_the_way(session: ClusterSession, deployment: Deployment, *where: str) -> None:
        if where[1].startswith("2-"):
            # Where worker 1 would write; worker 0 does write its part.
            (location / where[1] / "worker-1.pt").mkdir(parents=True)
        write_parts(session, deployment, *where)

    monkeypatch.setattr(ClusterSession, "write_parts", in_the_way)
    with pytest.raises(StorageFailure, match=r"shared/2-\w+/worker-1.pt: cannot be read"):
        train(straight, out=tmp_path / "out", **options)
    monkeypatch.undo()
    (orphan,) = location.glob("2-*")
    export_weights(location, tmp_path / "kept.safetensors")
    kept = load_file(tmp_path / "kept.safetensors")
    assert kept.keys() == captured.state.keys()
    assert all(torch.isfinite(value).all() for value in kept.values())
    train(straight, out=tmp_path / "out", resume=True, **options)
    assert not orphan.exists(), "what is no part of the checkpoint is removed"


def test_a_place_belongs_to_one_run(straight: PlacementFile, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    train(straight, data=NAME, epochs=1, checkpoints=shared, out=tmp_path / "one")
    with pytest.raises(InvalidInput, match="shared holds the checkpoint of another run; resume"):
        train(straight, data=NAME, epochs=1, checkpoints=shared, out=tmp_path / "other")
    with pytest.raises(InvalidInput, match=r"checkpoints = .*shared'; it cannot be resumed with"):
        train(straight, data=NAME, epochs=1, resume=True, out=tmp_path / "one")
    with pytest.raises(InvalidInput, match="nosuch://x: fsspec cannot open this"):
        train(straight, data=NAME, epochs=1, checkpoints="nosuch://x", out=tmp_path / "third")


def test_damaged_parts_are_told(straight: PlacementFile, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    train(straight, data=NAME, epochs=1, checkpoints=shared, out=tmp_path / "one")
    for file in ("1-*/worker-0.pt", "1-*/training.pt", "checkpoint.json"):
        (damaged,) = shared.glob(f"{file}*")
        whole = damaged.read_bytes()
        for damage in (lambda path: os.truncate(path, path.stat().st_size - 40), Path.unlink):
            damage(damaged)
            with pytest.raises(InvalidFile, match="shared"):
                export_weights(shared, tmp_path / "model.safetensors")
        damaged.write_bytes(whole)
    assert not (tmp_path / "model.safetensors").exists()


def test_storage_of_objects(tmp_path: Path) -> None:
    """What fsspec keeps in memory has neither files nor folders."""
    storage = storage_at("memory://bucket/run")
    path = tmp_path / "file"
    path.write_text("content")
    assert not storage.exists("1/part")
    storage.put(path, "1/part")
    assert storage.exists("1/part")
    assert storage.folders() == ["1"]
    assert storage.get("1/part", tmp_path).read_text() == "content"
    storage.remove_folder("1")
    assert not storage.exists("1/part")
    storage.remove_folder("1")
    with pytest.raises(StorageFailure, match="memory://bucket/run/1/part: cannot be read"):
        storage.get("1/part", tmp_path)
