"""A controller that is killed leaves no process and no file, even if a worker is frozen or dead."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import util
from pathlib import Path

import pytest

from drlpp.errors import InvalidInput
from drlpp.runtime.ipc import session_folder
from drlpp.runtime.ipc.session_folder import (
    SessionFolder,
    keep_socket_folder,
    remove_abandoned,
    remove_files_of_dead_controller,
)
from tests.support.processes import descendants, temporary_files_in, wait_until_gone, workers_of

ROOT = Path(__file__).parents[3]
PROGRAM = """
from drlpp.runtime import ClusterSession
from tests.support.training.pipelines import in_a_row
session = ClusterSession("tests.support.models.small:perceptron", workers=2)
deployment = session.deploy(in_a_row(session.graph, 0, 1))
print("begins", flush=True)
session.run(deployment, 100_000)
"""
LOADER = """
import time, torch
from torch.utils.data import DataLoader, TensorDataset
from drlpp.runtime.loading.loaders import iterate
batches = iterate(DataLoader(TensorDataset(torch.zeros(800, 2)), 8, num_workers=2), seed=0)
next(batches)
print("begins", flush=True)
time.sleep(60)
"""
SERVER = """
import time
from drlpp.runtime.hosts.local_host import warm_up
warm_up()
print("begins", flush=True)
time.sleep(60)
"""


def test_folders_of_the_living_are_kept_and_those_of_the_dead_removed(tmp_path: Path) -> None:
    with temporary_files_in(tmp_path):
        first, second = SessionFolder(), SessionFolder()
        remove_abandoned(tmp_path)
        assert Path(first.name).exists()
        # What a killed controller leaves: the folder, and nobody who holds the lock.
        os.close(first._lock)
        first._lock = -1
        third = SessionFolder()
        assert {str(path) for path in tmp_path.iterdir()} == {second.name, third.name}
        for folder in (first, second, third):
            folder.cleanup()
            folder.cleanup()
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["link", "folder of all"])
def test_a_folder_for_sockets_that_others_have_planted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its name is known, and it may have been removed as an old temporary file."""
    folder, elsewhere = tmp_path / "sockets", tmp_path / "elsewhere"
    monkeypatch.setattr(util, "get_temp_dir", lambda: str(folder))
    elsewhere.mkdir()
    if kind == "link":
        folder.symlink_to(elsewhere)
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(InvalidInput, match=f"{folder}, which this program had for its sockets"):
        keep_socket_folder()
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("prefix", session_folder._PREFIXES)
def test_links_in_the_folder_of_temporary_files_are_left_alone(tmp_path: Path, prefix: str) -> None:
    """Where they lead there may be a file that is called as our locks are."""
    lock = session_folder._LOCK
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / lock).touch()
    (tmp_path / "mine" / "file").touch()
    (tmp_path / f"{prefix}planted").symlink_to(tmp_path / "mine")
    (tmp_path / f"{prefix}linked").mkdir()
    (tmp_path / f"{prefix}linked" / lock).symlink_to(tmp_path / "mine" / lock)
    # That the names are those which it looks for.
    (tmp_path / f"{prefix}abandoned").mkdir()
    (tmp_path / f"{prefix}abandoned" / lock).touch()
    remove_abandoned(tmp_path)
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {lock, "file"}
    assert {path.name for path in tmp_path.iterdir()} == {
        "mine",
        f"{prefix}planted",
        f"{prefix}linked",
    }


def test_workers_wait_until_a_dying_controller_gives_up_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(util, "get_temp_dir", lambda: str(tmp_path / "socket"))
    folder = SessionFolder()
    dying = threading.Timer(0.2, lambda: os.close(folder._lock))
    dying.start()
    try:
        remove_files_of_dead_controller(Path(folder.name), 2.0)
    finally:
        dying.join()
        folder._lock = -1
    assert not Path(folder.name).exists()
    folder.cleanup()


def test_what_appears_while_a_folder_is_removed_is_removed_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pymp-abandoned"
    (folder / "below").mkdir(parents=True)
    (folder / session_folder._LOCK).touch()
    rmtree = shutil.rmtree

    def slowly(path: Path, ignore_errors: bool) -> None:
        (folder / "listener").touch()
        rmtree(path, ignore_errors=ignore_errors)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", slowly)
        remove_abandoned(tmp_path)
    assert {path.name for path in folder.iterdir()} == {"listener", session_folder._LOCK}
    remove_abandoned(tmp_path)
    assert not folder.exists()


@contextmanager
def controller(program: str, temporary: Path) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """A program that has begun, and all its processes."""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        # Some versions of Gloo write to the same file.
        assert any("begins" in line for line in process.stdout)
        family = descendants(process.pid)
        try:
            yield process, family
        finally:
            for one in (process.pid, *family):
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)


@pytest.mark.system
@pytest.mark.parametrize("workers_are", ["running", "frozen"])
def test_nothing_outlives_a_killed_controller(tmp_path: Path, workers_are: str) -> None:
    with controller(PROGRAM, tmp_path) as (process, family):
        assert list(tmp_path.glob("drlpp-session-*"))
        if workers_are == "frozen":
            for worker in workers_of(process.pid):
                os.kill(worker, signal.SIGSTOP)
        process.kill()
        process.wait()
        assert not wait_until_gone(family, tmp_path, 60)


@pytest.mark.parametrize(
    "program", [pytest.param(PROGRAM, marks=pytest.mark.system), LOADER], ids=["session", "loader"]
)
def test_where_all_were_killed_the_next_session_removes_what_is_left(
    tmp_path: Path, program: str
) -> None:
    """Also the sockets of a loader's processes, which may begin before any session does."""
    (tmp_path / "empty").mkdir()
    with controller(program, tmp_path) as (process, family):
        # So that nobody notices that others are gone.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for one in (process.pid, *family):
                os.kill(one, number)
    assert list(tmp_path.glob("pymp-*/*"))
    assert not wait_until_gone(family, tmp_path / "empty", 60)
    (tmp_path / "empty").rmdir()
    with temporary_files_in(tmp_path):
        SessionFolder().cleanup()
    assert not wait_until_gone((), tmp_path, 0)


@pytest.mark.system
def test_folders_for_sockets_of_others_and_of_the_living_are_kept(tmp_path: Path) -> None:
    """Whatever is in them: that of another program has no lock of ours."""
    theirs = tmp_path / "pymp-theirs"
    theirs.mkdir()
    (theirs / "listener-a1b2").touch()
    with controller(SERVER, tmp_path):
        before = sorted(tmp_path.glob("pymp-*/*"))
        assert len(before) > 2
        remove_abandoned(tmp_path)
        assert sorted(tmp_path.glob("pymp-*/*")) == before
