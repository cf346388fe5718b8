"""``drlpp doctor``: it finds what is there, and says what to do where something is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from drlpp.cli.doctor import checks
from drlpp.cli.doctor.checks import Finding
from drlpp.cli.main import main
from tests.support.programs.shell import finish


def test_every_check_of_this_machine_works_here() -> None:
    findings = [check() for check in checks.all_checks()]
    assert not [finding for finding in findings if finding.state == "problem"]
    assert all(finding.advice for finding in findings if finding.state != "ok")
    by_name = {finding.name: finding for finding in findings}
    assert len(by_name) == len(findings)
    assert torch.__version__ in by_name["versions"].found
    assert "two answer" in by_name["workers"].found


def test_a_problem_is_named_and_the_exit_code_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Finding("disk", "problem", "no room", "make some")
    monkeypatch.setattr(checks, "all_checks", lambda: (lambda: found, checks.gpus))
    done = finish(main, "drlpp", "doctor")
    assert done.code == 1
    assert "→ make some" in done.out
    assert "problems: disk" in done.out
    done = finish(main, "drlpp", "doctor", "--json")
    assert done.code == 1
    assert json.loads(done.out)["problems"] == ["disk"]


def test_what_is_too_little_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "OLDEST_TORCH", "99.0")
    assert checks.versions().state == "problem"
    monkeypatch.setattr(checks, "_LEAST_MEMORY_BYTES", 1e18)
    assert checks.memory().state == "problem"
    monkeypatch.setattr(checks, "_LEAST_DISK_BYTES", 1e18)
    assert checks.disk().state == "problem"
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert checks.temporary_files().state == "problem"


def test_no_sockets_are_a_problem_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("connection refused")

    monkeypatch.setattr(torch.distributed, "TCPStore", refuse)
    found = checks.gloo()
    assert found.state == "problem"
    assert "connection refused" in found.found
