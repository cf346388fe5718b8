"""What is refused as a checkpoint of a training, and a disk that is full at one."""

import errno
import resource
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidFile, NotFinite, StorageFailure
from drlpp.runtime import ClusterSession
from drlpp.runtime.ipc.tensor_file import read_checkpoint, write_checkpoint
from drlpp.runtime.stage.stage_weights import check_finite
from drlpp.runtime.training.checkpoints import checked_checkpoint, export_weights, refuse_older
from tests.support.training.killing import killed_after_saving
from tests.support.training.loading import DATA, placement_file, train
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of


@pytest.fixture(scope="module")
def written(captured: CapturedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the second epoch of 12 minibatches, after 5 of them."""
    out = tmp_path_factory.mktemp("training")
    with killed_after_saving(4):
        train(placement_file(captured, 0, 1), data=DATA, out=out, checkpoint_every=5)
    return out / "checkpoint.pt"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": "first"}, r"not a checkpoint of drlpp train \(position: Input should be"),
        ({"epochs": [{"epoch": 1}]}, "epochs"),
        ({"model": {}}, "its model has other weights"),
        ({"optimizer": {"other": 1}}, "optimizer.other"),
        ({"data": (("state",), "")}, "data"),
    ],
)
def test_another_content_is_refused(
    captured: CapturedModel, written: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "checkpoint.pt"
    write_checkpoint(path, {**read_checkpoint(written), **change})
    with pytest.raises(InvalidFile, match=message):
        checked_checkpoint(path, read_checkpoint(path), captured.state)


def test_what_earlier_versions_had_in_flight_is_left_out(
    captured: CapturedModel, written: Path
) -> None:
    saved = read_checkpoint(written)
    older = {**saved, "in_flight": {0: {"inbox": []}}, "deployed": "here", "began": 0}
    assert checked_checkpoint(written, older, captured.state).position == saved["position"]


def test_an_earlier_training_is_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").touch()
    for continues in (refuse_older, lambda path: export_weights(path, tmp_path / "weights")):
        with pytest.raises(InvalidFile, match="earlier drlpp"):
            continues(tmp_path)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_buffers_have_to_stay_finite_too_but_may_hold_a_mask(value: float) -> None:
    mask, mean = torch.full((2,), -torch.inf), torch.zeros(2)
    check_finite({"mask": mask, "mean": mean}, {"mask": mask, "mean": mean})
    with pytest.raises(NotFinite, match="mean has values that are not finite"):
        check_finite({"mask": mask, "mean": mean + value}, {"mask": mask, "mean": mean})


def test_a_worker_that_cannot_write_says_so_and_leaves_nothing(captured: CapturedModel) -> None:
    """A limit on the size of its files stands for the disk: the system refuses in the same way."""
    with ClusterSession(captured, workers=2) as session:
        deployment = session.deploy(in_a_row(captured.graph, 0, 1))
        resource.prlimit(session.process_ids[1], resource.RLIMIT_FSIZE, (100, 100))
        folder = session.folder
        before = {path.name for path in folder.iterdir()}
        with pytest.raises(StorageFailure, match=r"worker 1: .* \(File too large\)"):
            session.collect(deployment)
        left = {path.name for path in folder.iterdir()} - before
        assert left <= {"worker-0.pt"}, "what worker 0 wrote is whole"
        session.collect(session.deploy(in_a_row(captured.graph, 0, 1)))


def _no_space(*args: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("failing", "named"),
    [
        ("drlpp.io.files.os.fsync", "record"),
        ("drlpp.runtime.training.training_log.SummaryWriter.add_scalar", "out"),
        ("drlpp.runtime.training.training_log.SummaryWriter", "out"),
        ("drlpp.runtime.ipc.session_folder.SessionFolder.__init__", "temporary"),
        ("drlpp.runtime.hosts.host.LocalHost.start", "temporary"),
        ("drlpp.runtime.hosts.host.LocalHost.fetch", "temporary"),
    ],
)
def test_the_folder_that_is_full_is_named(
    captured: CapturedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
    named: str,
) -> None:
    out = tmp_path / "out"
    folders = {"out": out, "record": out / "run.json", "temporary": Path(tempfile.gettempdir())}
    monkeypatch.setattr(failing, _no_space)
    with pytest.raises(StorageFailure) as raised:
        train(
            file_of(captured, in_a_row(captured.graph, 0)), data=DATA, epochs=1, out=folders["out"]
        )
    told, _, _ = str(raised.value).partition(";")
    assert told == f"{folders[named]}: cannot be written (No space left on device)"
