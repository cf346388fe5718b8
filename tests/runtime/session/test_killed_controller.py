"""A controller that is killed leaves no process and no file, even if a worker is frozen or dead."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from drlpp.runtime.ipc import session_folder
from drlpp.runtime.ipc.session_folder import SessionFolder, remove_abandoned
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


def test_links_in_the_folder_of_temporary_files_are_left_alone(tmp_path: Path) -> None:
    """Where they lead there may be a file that is called as our locks are."""
    lock, prefix = session_folder._LOCK, session_folder._PREFIXES[0]
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


@contextmanager
def controller(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """A program that has begun, and all its processes."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
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
def test_nothing_outlives_a_killed_controller_and_its_frozen_workers(tmp_path: Path) -> None:
    with controller(tmp_path) as (process, family):
        assert list(tmp_path.glob("drlpp-session-*"))
        for worker in workers_of(process.pid):
            os.kill(worker, signal.SIGSTOP)
        process.kill()
        process.wait()
        assert not wait_until_gone(family, tmp_path, 60)


@pytest.mark.system
def test_where_all_were_killed_the_next_session_removes_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with controller(tmp_path) as (process, family):
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
