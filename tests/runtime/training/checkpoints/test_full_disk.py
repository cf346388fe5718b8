"""A disk that is full at a checkpoint, or that a worker cannot write to."""

import errno
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import StorageFailure
from drlpp.runtime import ClusterSession
from drlpp.runtime.ipc.tensor_file import read_checkpoint, write_checkpoint, write_state_dict
from tests.support.training.loading import train
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

DATA = "tests.support.models.small:separable"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MiB, where we may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs to mount a filesystem, which takes root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no room on the disk."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return path


def test_the_last_checkpoint_outlives_a_full_disk(small_disk: Path) -> None:
    path = small_disk / "checkpoint.safetensors"
    write_checkpoint(path, {"weight": torch.ones(1000)})
    with pytest.raises(StorageFailure, match=r"\(No space left on device\)"):
        write_checkpoint(path, {"weight": torch.ones(1_000_000)})
    with pytest.raises(StorageFailure, match=r"model\.pt: the weights could not be written"):
        write_state_dict(small_disk / "model.pt", {"weight": torch.ones(1_000_000)})
    assert [file.name for file in small_disk.iterdir()] == [path.name]
    assert torch.equal(read_checkpoint(path)["weight"], torch.ones(1000))


# TensorBoard's thread raises what the next call raises again.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_training_on_a_full_disk_stops_and_goes_on_when_there_is_room(
    captured: CapturedModel, small_disk: Path, tmp_path: Path
) -> None:
    document = file_of(captured, in_a_row(captured.graph, 0, 1))
    options = {"data": DATA, "checkpoint_every": 4}
    whole = train(document, epochs=3, out=tmp_path / "whole", **options)
    out = small_disk / "run"
    train(document, epochs=1, out=out, **options)
    before = (out / "checkpoint.safetensors").read_bytes()
    filler = fill(small_disk)
    with pytest.raises(StorageFailure, match="No space left on device"):
        train(document, epochs=3, out=out, resume=True, **options)
    assert (out / "checkpoint.safetensors").read_bytes() == before
    assert not list(out.glob(".*"))
    filler.unlink()
    rest = train(document, epochs=3, out=out, resume=True, **options)
    assert all(torch.equal(v, rest.state_dict[name]) for name, v in whole.state_dict.items())


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
        assert left <= {"stage-0.safetensors"}, "what worker 0 wrote is whole"
        session.collect(session.deploy(in_a_row(captured.graph, 0, 1)))


def _no_space(*args: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("failing", "named"),
    [
        ("drlpp.io.documents.os.fsync", "record"),
        ("drlpp.runtime.training.training_log.SummaryWriter.add_scalar", "out"),
        ("drlpp.runtime.training.training_log.SummaryWriter", "out"),
        ("drlpp.runtime.ipc.session_folder.SessionFolder.__init__", "temporary"),
        ("drlpp.runtime.hosts.local_host.LocalHost.start", "temporary"),
        ("drlpp.runtime.hosts.local_host.LocalHost.fetch", "temporary"),
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
