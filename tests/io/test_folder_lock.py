"""Two processes never write into one folder."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drlpp.errors import InvalidInput
from drlpp.io.folder_lock import locked_folder

PROGRAM = """
import os, sys
from pathlib import Path
from drlpp.io.folder_lock import locked_folder
with locked_folder(Path(sys.argv[1])):
    # A forked process says so once it has given up what it was forked with.
    if sys.argv[2] == "alone" or not os.fork():
        print("has it", flush=True)
    sys.stdin.read()
    os._exit(0)
"""


def test_a_second_one_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    for _ in range(2):
        with locked_folder(tmp_path) as locked:
            assert locked
            told = rf"writes there \(pid {os.getpid()} on .*\); wait for it, or choose another"
            with pytest.raises(InvalidInput, match=told), locked_folder(tmp_path):
                pass
        assert not list(tmp_path.iterdir())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["alone", "forking"])
def test_a_killed_process_holds_nothing(tmp_path: Path, kind: str) -> None:
    """Nor do processes that it has forked, as those of a loader, which may live a little longer."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "has it\n"
            with (
                pytest.raises(InvalidInput, match=rf"\(pid {other.pid} on "),
                locked_folder(tmp_path),
            ):
                pass
        finally:
            other.send_signal(signal.SIGKILL)
            other.wait()
        with locked_folder(tmp_path) as locked:
            assert locked


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for _ in range(2):
        with locked_folder(tmp_path) as locked:
            assert not locked
