"""A controller that is killed leaves no process and no file, even if a worker is frozen or dead."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
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
from tests.support.processes import descendants

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from drlpp.runtime import ClusterSession
from tests.support.training.pipelines import in_a_row
session = ClusterSession("tests.support.models.small:perceptron", workers=2)
deployment = session.deploy(in_a_row(session.graph, 0, 1))
print("\\nworkers", *session.process_ids, flush=True)
session.run(deployment, 100_000)
"""


LOADER = """
import multiprocessing, time, torch
from torch.utils.data import DataLoader, TensorDataset
from drlpp.runtime.loading.loaders import iterate
batches = iterate(DataLoader(TensorDataset(torch.zeros(800, 2)), 8, num_workers=2), seed=0)
next(batches)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
time.sleep(60)
"""


def test_folders_of_the_living_are_kept_and_those_of_the_dead_removed(tmp_path: Path) -> None:
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path)
    try:
        first = SessionFolder()
        (Path(first.name) / "model").write_text("weights")
        second = SessionFolder()
        remove_abandoned(tmp_path)
        assert (Path(first.name) / "model").exists()
        # What a killed controller leaves: the folder, and nobody who holds the lock.
        os.close(first._lock)
        first._lock = -1
        third = SessionFolder()
        assert {path.name for path in tmp_path.iterdir()} == {
            Path(second.name).name,
            Path(third.name).name,
        }
        for folder in (first, second, third):
            folder.cleanup()
            folder.cleanup()
        assert not list(tmp_path.iterdir())
    finally:
        tempfile.tempdir = before


@pytest.mark.parametrize("kind", ["link to what is there", "link to what is not", "folder of all"])
def test_a_folder_for_sockets_that_others_have_planted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its name is known, and it may have been removed as an old temporary file."""
    folder, elsewhere = tmp_path / "sockets", tmp_path / "elsewhere"
    monkeypatch.setattr(util, "get_temp_dir", lambda: str(folder))
    match kind:
        case "folder of all":
            folder.mkdir()
            folder.chmod(0o777)
        case _:
            folder.symlink_to(elsewhere)
            if kind == "link to what is there":
                elsewhere.mkdir()
    with pytest.raises(InvalidInput, match=f"{folder}, which this program had for its sockets"):
        keep_socket_folder()
    assert not elsewhere.exists() or not list(elsewhere.iterdir())


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


@pytest.mark.system
@pytest.mark.parametrize("worker_is", ["running", "frozen"])
def test_nothing_outlives_a_killed_controller(tmp_path: Path, worker_is: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as controller:
        assert controller.stdout is not None
        # Some versions of Gloo write to the same file.
        line = next(line for line in controller.stdout if line.startswith("workers "))
        workers = [int(word) for word in line.split()[1:]]
        server = int(Path(f"/proc/{workers[0]}/stat").read_text().rpartition(")")[2].split()[1])
        try:
            assert list(tmp_path.glob("drlpp-session-*"))
            if worker_is == "frozen":
                for worker in workers:
                    os.kill(worker, signal.SIGSTOP)
            controller.kill()
            controller.wait()
            deadline = time.monotonic() + 60
            while left := [
                *(process for process in (*workers, server) if _runs(process)),
                *(path for path in tmp_path.iterdir() if not _is_torchs(path)),
            ]:
                assert time.monotonic() < deadline, left
                time.sleep(0.05)
        finally:
            for process in (*workers, server):
                if _runs(process):
                    os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize(
    "program", [pytest.param(PROGRAM, marks=pytest.mark.system), LOADER], ids=["session", "loader"]
)
def test_where_all_were_killed_the_next_session_removes_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """Also the sockets of a loader's processes, which may begin before any session does."""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as controller:
        assert controller.stdout is not None
        assert any(map(str.strip, controller.stdout))
        family = descendants(controller.pid)
        # So that nobody notices that others are gone.
        for process in (controller.pid, *family):
            os.kill(process, signal.SIGSTOP)
        for process in (controller.pid, *family):
            os.kill(process, signal.SIGKILL)
    assert list(tmp_path.glob("pymp-*/*"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    deadline = time.monotonic() + 60
    while any(_runs(process) for process in family):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    SessionFolder().cleanup()
    left = [path for path in tmp_path.iterdir() if not path.name.startswith("torchinductor")]
    assert not left


@pytest.mark.system
def test_folders_for_sockets_of_others_and_of_the_living_are_kept(tmp_path: Path) -> None:
    """Whatever is in them: that of another program has no lock of ours."""
    theirs = tmp_path / "pymp-theirs"
    theirs.mkdir()
    for name in ("listener-a1b2", "lock"):
        (theirs / name).touch()
    living = (
        "from drlpp.runtime.hosts.local_host import warm_up; warm_up(); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", living],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = sorted(tmp_path.glob("pymp-*/*"))
        assert len(before) > 3
        remove_abandoned(tmp_path)
        assert sorted(tmp_path.glob("pymp-*/*")) == before
        process.communicate(b"\n", timeout=100)
    assert [path.name for path in tmp_path.glob("pymp-*")] == [theirs.name]


def _is_torchs(path: Path) -> bool:
    """Whether torch left it: its cache, which is everyone's; what torch 2.8 makes when imported."""
    return path.name.startswith("torchinductor") or any(
        path.glob("_remote_module_non_scriptable.py")
    )


def _runs(process: int) -> bool:
    """Whether it exists and has not ended; who ended may wait for a parent to ask."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        threads = len(os.listdir(f"/proc/{process}/task"))
    except OSError:
        return False
    # The first thread of a killed process may be gone while others still hold its locks.
    return state != "Z" or threads > 1
