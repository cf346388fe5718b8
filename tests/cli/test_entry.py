"""Ctrl-C while a program still imports ends it as later: one line, and the exit code of a shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from drlpp.cli.entry import begin


def test_an_interrupted_import_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "interrupted_program.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        begin("interrupted_program", "drlpp")
    assert ended.value.code == 130
    assert capsys.readouterr().err == "drlpp: interrupted\n"
