"""The study of what today's models cost, in its short form."""

from __future__ import annotations

import json
import runpy
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(("command", "rows"), [("tied", 6), ("policies", 5), ("precision", 4)])
def test_it_runs(
    command: str,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["model_costs", command, "--short", "--json"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("benchmarks.model_costs", run_name="__main__", alter_sys=True)
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    assert "of a core" in found["conditions"] or "2 cores" in found["conditions"]
    assert len(found["rows"]) == rows
    for row in found["rows"]:
        assert float(row["ms per minibatch"]) > 0
