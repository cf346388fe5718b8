"""A disk that is full becomes a readable error; other errors of the system stay what they are."""

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from drlpp.errors import StorageFailure
from drlpp.io.files import reporting_disk_errors


def test_a_full_disk_is_told_and_a_missing_file_is_not(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageFailure, match=r"some\.file: cannot be written \(No space left"),
        reporting_disk_errors(Path("some.file")),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(FileNotFoundError), reporting_disk_errors(tmp_path):
        (tmp_path / "nothing").read_text()


def test_measurements_before_a_full_disk_are_kept(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the system refuses in the same way."""
    program = """
import sys
from pathlib import Path
from drlpp.placement.measurements_file import Header
from drlpp.schedule.method import Method
from drlpp.io.files import append
from drlpp.errors import StorageFailure
try:
    while True:
        append(Path(sys.argv[1]), Header(model="m", graph_fingerprint="f", accelerators=1,
                                         minibatches=1, method=Method()))
except StorageFailure as failure:
    print(failure)
"""
    path = tmp_path / "measurements.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)),
    )
    assert done.stdout == f"{path}: cannot be written (File too large)\n", done.stderr
    whole = path.read_bytes().split(b"\n")[:-1]
    assert len(whole) > 5
    assert len(set(whole)) == 1
