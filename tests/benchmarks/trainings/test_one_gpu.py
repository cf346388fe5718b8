"""The study of one GPU: on processors it runs to its end, and what fails is said."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.one_gpu import measuring
from benchmarks.one_gpu.__main__ import app
from benchmarks.one_gpu.measuring import Bench, ways
from benchmarks.one_gpu.page import page
from benchmarks.one_gpu.results import GpuTests, Link, ModelResults, Results, Run
from tests.support.models.zoo.tiny_models import TINY


def measured(folder: Path, notes: list[str], seconds: float = 600) -> ModelResults:
    kept: list[ModelResults] = []
    bench = Bench(
        model="gnmt4",
        size="small",
        options=TINY["gnmt4"],
        workers=2,
        device="cpu",
        minibatches=2,
        budget=2,
        folder=folder,
        deadline=time.monotonic() + seconds,
        note=notes.append,
        keep=kept.append,
    )
    bench.measure()
    return kept[-1]


@pytest.mark.slow
def test_a_part_that_fails_is_noted_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn_placement(*_: object, **__: object) -> None:
        raise RuntimeError("no room for an agent")

    monkeypatch.setattr(measuring, "learn_placement", learn_placement)
    monkeypatch.setattr(measuring, "ways", lambda parts: dict(list(ways(parts).items())[:1]))
    notes: list[str] = []
    found = measured(tmp_path, notes)
    assert found.failures == {"agent": "RuntimeError: no room for an agent"}
    assert [run.name for run in found.runs if run.seconds] == [
        "plain PyTorch, float32",
        "plain PyTorch, bfloat16",
        "one stage",
    ]
    assert found.losses is not None
    assert found.operators_seconds > 0
    assert notes[-1].endswith("agent failed: no room for an agent")
    assert "- **agent** did not end: RuntimeError" in page(results(found))


def test_nothing_is_begun_too_late(tmp_path: Path) -> None:
    found = measured(tmp_path, [], seconds=0)
    assert found.failures == {"capture": "no time was left"}
    assert found.runs == ()


def results(*models: ModelResults, tests: GpuTests | None = None) -> Results:
    return Results(
        machine="a processor",
        device="a GPU",
        software="80 GB",
        workers=4,
        tests=tests,
        models=models,
    )


def test_the_page_has_ratios_and_failures() -> None:
    plain = Run(name="plain PyTorch, float32", placement="", method="", seconds=0.1)
    piped = Run(
        name="stashing",
        placement="1-1",
        method="1f1b, stash",
        seconds=0.2,
        busiest_seconds=0.16,
        computing_seconds=0.25,
        simulated_seconds=0.18,
        memory_bytes=3 * 10**9,
        simulated_memory_bytes=2e9,
    )
    predicted = piped.model_copy(update={"name": "PipeOptim", "seconds": 0.22})
    failed = Run(name="PipeOptim, M = D", placement="1-1", method="", failure="out of memory")
    found = ModelResults(
        model="vgg16",
        size="published",
        options={},
        runs=(plain, piped, predicted, failed),
        links=(Link(bytes_=10**6, seconds=1e-3),),
        losses=(2.0, 3.0),
    )
    tests = GpuTests(
        counts="1 failed, 9 passed", passed=False, failed=("test_nccl",), output="", seconds=9.0
    )
    text = page(results(found, tests=tests))
    assert "1 failed, 9 passed" in text
    assert "- failed: `test_nccl`" in text
    row = "| stashing | 1-1 | 200.00 | 2.000× | 1.250× | 0.800× | 0.900× | 3.00 | 2.00 |"
    assert row in text
    assert "failed: out of memory" in text
    assert "PipeOptim takes 1.100 times as long as stashing" in text
    assert "| 1,000.0 | 1,000 | 1.00 |" in text
    assert "**did not fall**" in text


@pytest.mark.slow
def test_on_processors_everything_comes_to_its_end(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--short", "--no-tests", "--models", "gpt2", "--budget", "2"]
    done = CliRunner().invoke(app, [*options, "--minibatches", "4", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "results.json").read_text())
    (model,) = found["models"]
    assert model["failures"] == {}
    assert all(run["seconds"] and not run["failure"] for run in model["runs"])
    assert len(model["runs"]) == 2 + len(ways(4))
    assert model["losses"][1] < model["losses"][0]
    assert model["learned"]["measured"] == 2
    assert (tmp_path / "page.md").read_text().startswith("# One GPU")
