"""Files are read as they were written, or refused in one line that a terminal may show."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.errors import InvalidFile, InvalidInput, StorageFailure, visible
from drlpp.io.documents import problem_of_text, read_any_document, read_document, write_document
from drlpp.io.files import reporting_disk_errors
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.strategies.graphs import cluster_of

TWO_HOSTS = Cluster(
    hosts=(Host(name="a", accelerators=2), Host(name="b", accelerators=3, device="cuda")),
    within_host=Link(bandwidth_bytes_per_second=100.0, latency_seconds=0.5),
    between_hosts=Link(bandwidth_bytes_per_second=10.0),
)


@pytest.mark.parametrize("name", ["cluster.json", "cluster.yaml", "deep/er/cluster.yml"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    path = write_document(tmp_path / name, TWO_HOSTS)
    assert read_document(path, Cluster) == TWO_HOSTS
    assert read_any_document(path) == TWO_HOSTS
    assert os.listdir(path.parent) == [path.name]


def damaged(**change: object) -> str:
    content = {"kind": "cluster", "version": 1, **TWO_HOSTS.model_dump(mode="json"), **change}
    return json.dumps({name: value for name, value in content.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (damaged()[:-20], "truncated or not well-formed"),
        ("", "is empty"),
        (damaged(version=0), "field 'version' is 0, expected 1 to 1"),
        ("[1]", "expected fields with names, found list"),
        (damaged(kind="profile"), "expected a cluster file, but it is a profile file"),
        (damaged(version=2), "field 'version' is 2, expected 1 to 1; a file of a newer drlpp"),
        (
            damaged(colour="red"),
            "field 'colour' is unknown; a cluster file has the fields hosts, within_host",
        ),
        (damaged(hosts=[]), "field 'hosts': Tuple should have at least 1 item"),
        (
            damaged(hosts=[{"name": 7, "accelerators": 1}]),
            "field 'hosts.0.name': Input should be a valid string, found 7",
        ),
        (damaged(between_hosts=None), "several hosts need 'between_hosts'"),
    ],
)
def test_a_damaged_file_is_refused_by_name_and_field(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(text)
    with pytest.raises(InvalidFile) as caught:
        read_document(path, Cluster)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for path, problem in (
        (tmp_path / "none.json", "no such file"),
        (tmp_path / "binary.json", "cannot be read"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(InvalidFile, match=problem):
            read_document(path, Cluster)


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_document(tmp_path / "cluster.json", TWO_HOSTS)

    def no_space(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        write_document(path, cluster_of(1))
    assert read_document(path, Cluster) == TWO_HOSTS
    assert os.listdir(tmp_path) == ["cluster.json"]


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


DANGEROUS = [
    *("\x00", "\x07", "\x1b[2J", "\n", "\r", "\x7f", "\x9b31m"),
    *("\u202e", "\u2066", "\u200b", "\u2028", "\ud800"),
]


@pytest.mark.parametrize("ending", [".json", ".yaml"])
def test_text_that_a_terminal_may_not_show_is_refused_by_its_field(
    tmp_path: Path, ending: str
) -> None:
    path = (tmp_path / "cluster").with_suffix(ending)
    for character in DANGEROUS:
        # JSON with escapes is YAML as well.
        path.write_text(damaged(hosts=[{"name": f"a{character}b", "accelerators": 2}]))
        with pytest.raises(InvalidFile) as told:
            read_any_document(path)
        assert f"{path}: field 'hosts.0.name'" in str(told.value)
        assert str(told.value).isprintable()
    # Names of fields are text too.
    path.write_text(damaged(**{"\x1b[2J": 1}))
    with pytest.raises(InvalidFile, match="control character") as told:
        read_any_document(path)
    assert str(told.value).isprintable()


def test_errors_are_one_line_that_a_terminal_may_show() -> None:
    told = str(InvalidInput("a\x1b[2J\nname\u202e \udcff of a file"))
    assert told == r"a\x1b[2J name\u202e \udcff of a file"
    told.encode()


@given(st.text())
def test_text_is_refused_exactly_where_it_is_made_visible(text: str) -> None:
    refused = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    dangerous = any(unicodedata.category(one) in refused for one in text)
    problem = problem_of_text(text)
    assert (problem is not None) == dangerous
    assert (visible(text) != text) == dangerous
    for safe in (visible(text), problem or ""):
        assert not any(unicodedata.category(one) in refused for one in safe)
