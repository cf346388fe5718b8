"""A folder belongs to one run, no two processes write into it; lines in place of a progress bar."""

import errno
import fcntl
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from drlpp.errors import InvalidInput
from drlpp.io.progress_lines import ProgressLines, shown
from drlpp.io.run_folder import LOCK_NAME, locked_folder, open_run_folder

SETTINGS = {"model": "alexnet", "seed": 0}
BEGUN = {"run.json", LOCK_NAME}


def run(folder: Path, command: str, settings: Mapping[str, Any], *, resume: bool) -> Path:
    """One that ends at once."""
    with open_run_folder(folder, command, settings, resume=resume) as lent:
        assert (lent / LOCK_NAME).exists()
    return lent


@pytest.mark.parametrize(
    ("command", "settings", "resume", "message"),
    [
        ("train", SETTINGS, False, "holds a run already .*--resume"),
        ("train", {**SETTINGS, "seed": 1}, True, "seed = 0; it cannot be resumed with 1"),
        ("learn", SETTINGS, True, "a run of train, which learn cannot resume"),
    ],
)
def test_a_taken_folder_is_refused(
    tmp_path: Path, command: str, settings: dict[str, object], resume: bool, message: str
) -> None:
    run(tmp_path / "run", "train", SETTINGS, resume=False)
    (tmp_path / "run" / "checkpoint.pt").touch()
    with pytest.raises(InvalidInput, match=message):
        run(tmp_path / "run", command, settings, resume=resume)
    with pytest.raises(InvalidInput, match="not empty and holds no run"):
        run(tmp_path, "train", SETTINGS, resume=False)


def _nothing(folder: Path) -> None: ...


def _a_killed_claim(folder: Path) -> None:
    folder.mkdir()
    (folder / LOCK_NAME).touch()
    (folder / ".tmpA1b2C3").touch()
    (folder / ".run.json.a1b2.drlpp-temporary").write_text('{"kind"')


def _a_run_before_its_first_checkpoint(folder: Path) -> None:
    run(folder, "train", {**SETTINGS, "seed": 1}, resume=False)
    (folder / "events.out.tfevents.1").touch()
    (folder / "report.html").touch()
    (folder / LOCK_NAME).touch()


@pytest.mark.parametrize(
    "left", [_nothing, Path.mkdir, _a_killed_claim, _a_run_before_its_first_checkpoint]
)
@pytest.mark.parametrize("resume", [False, True])
def test_where_there_is_nothing_to_resume_a_run_begins(
    tmp_path: Path, left: Callable[[Path], None], resume: bool
) -> None:
    folder, notes = tmp_path / "run", []
    left(folder)
    with open_run_folder(folder, "train", SETTINGS, resume=resume, note=notes.append):
        (folder / "checkpoint.pt").touch()
    begins = f"{folder} holds nothing to resume yet: the run begins"
    assert notes == ([begins] if resume else [])
    assert {file.name for file in folder.iterdir()} == {*BEGUN, "checkpoint.pt"}
    # Then the same command resumes, without a word.
    with open_run_folder(folder, "train", SETTINGS, resume=True, note=notes.append):
        assert (folder / "checkpoint.pt").exists()
    assert len(notes) == resume


@pytest.mark.parametrize("resume", [False, True])
def test_nobody_comes_between_a_run_and_its_folder(tmp_path: Path, resume: bool) -> None:
    """Not even where it has kept nothing yet: its events and its record stay as they are."""
    with open_run_folder(tmp_path, "train", SETTINGS, resume=False):
        events, record = tmp_path / "events.out.tfevents.1", tmp_path / "run.json"
        events.touch()
        before = record.read_bytes()
        told = rf"another process writes there \(pid {os.getpid()} on .*another --out"
        with (
            pytest.raises(InvalidInput, match=told),
            open_run_folder(tmp_path, "train", {**SETTINGS, "seed": 1}, resume=resume),
        ):
            pass
        assert events.exists()
        assert record.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {*BEGUN, events.name}


def test_a_setting_that_an_older_version_did_not_record_is_not_compared(tmp_path: Path) -> None:
    run(tmp_path, "train", {**SETTINGS, "rate": None, "placements": []}, resume=False)
    (tmp_path / "checkpoint.pt").touch()
    run(tmp_path, "train", {**SETTINGS, "rate": None, "samples_fingerprint": "1f"}, resume=True)
    with pytest.raises(InvalidInput, match="with rate = None; it cannot be resumed with 0"):
        run(tmp_path, "train", {**SETTINGS, "rate": 0.1}, resume=True)
    with pytest.raises(InvalidInput, match="a run with seed = 0; it cannot be resumed with None"):
        run(tmp_path, "train", {"model": "alexnet", "rate": None}, resume=True)


PROGRAM = """
import os, sys
from pathlib import Path
from drlpp.io.run_folder import locked_folder
with locked_folder(Path(sys.argv[1])):
    # A forked process says so once it has given up what it was forked with.
    if sys.argv[2] == "alone" or not os.fork():
        print("has it", flush=True)
    sys.stdin.read()
    os._exit(0)
"""


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


def test_a_file_system_without_locks_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for _ in range(2):
        with locked_folder(tmp_path) as locked:
            assert not locked


def test_a_line_follows_another_after_some_seconds_and_the_last_is_not_lost() -> None:
    written: list[str] = []
    now = 100.0
    lines = ProgressLines(written.append, seconds_between=3, clock=lambda: now)
    for second in range(8):
        now = 100.0 + second
        lines(f"{second} of 8")
    assert written == ["0 of 8", "3 of 8", "6 of 8"]
    lines.close()
    assert written == ["0 of 8", "3 of 8", "6 of 8", "7 of 8"]
    lines.close()
    assert len(written) == 4


@pytest.mark.parametrize("terminal", [True, False])
def test_what_looks_like_markup_is_text(terminal: bool) -> None:
    file = io.StringIO()
    with shown(Console(file=file, force_terminal=terminal), "planning with [/x]") as tell:
        tell("[/y]")
    assert "[/y]" in file.getvalue()
