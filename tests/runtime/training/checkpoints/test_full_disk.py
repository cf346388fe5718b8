"""A disk that is full at a checkpoint, or that a worker cannot write to."""

import errno
import resource
import tempfile
from pathlib import Path

import pytest

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import StorageFailure
from drlpp.runtime import ClusterSession
from tests.support.training.loading import train
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

DATA = "tests.support.models.small:separable"


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
        assert left <= {"worker-0.safetensors"}, "what worker 0 wrote is whole"
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
