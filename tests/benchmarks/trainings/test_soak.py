"""The soak, at its shortest, and what it calls growth."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.processes import ProcessFacts
from benchmarks.soak import __main__ as benchmark
from benchmarks.soak.__main__ import soak
from benchmarks.soak.report import Sample, TurnSpeed, findings_of
from drlpp.runtime.training.training_plan import TrainingPlan

KILLED = "worker 1 was killed by SIGKILL"


def sample(number: int, generation: int = 1, memory: int = 10**8, files: int = 20) -> Sample:
    process = ProcessFacts(memory, memory, files, 8, 1.0)
    return Sample(
        hours=number / 60,
        turns=number,
        generation=generation,
        controller=process,
        servers=process,
        workers=[process] * 2,
        session_files=5,
        shared_memory_files=number,
        speeds=[TurnSpeed("1-1", 10.0, 0.1)],
        failures=[KILLED] if number == 1 else [],
        kills=int(number == 1),
    )


def test_what_stays_as_it_was_did_not_grow() -> None:
    assert findings_of([sample(number) for number in range(30)]) == []


def test_what_grew_is_named() -> None:
    grown = [sample(number, memory=10**8 + number * 10**6) for number in range(30)]
    assert [finding.split(":")[0] for finding in findings_of(grown)] == [
        "controller",
        "fork server",
        "worker 0 of generation 1",
    ]
    assert any("open files" in f for f in findings_of([sample(n, files=20 + n) for n in range(9)]))
    slower = [
        replace(sample(number), speeds=[TurnSpeed("1-1", 10.0, 0.1 + 0.01 * number)])
        for number in range(9)
    ]
    assert "1-1: processor time per minibatch" in findings_of(slower)[0]


def test_a_failure_is_told_unless_a_worker_was_killed_on_purpose() -> None:
    samples = [sample(number) for number in range(9)]
    samples[4].failures.append("workers [1] did not answer within 20 s")
    assert findings_of(samples) == ["failed: workers [1] did not answer within 20 s"]


def test_kills_by_others_and_kills_that_are_not_told_are_findings() -> None:
    samples = [sample(number) for number in range(9)]
    samples[3].failures.append(KILLED)
    assert findings_of(samples) == ["failures by SIGKILL: 2, workers killed: 1"]
    samples[3:5] = [replace(one, failures=[], kills=1) for one in samples[3:5]]
    assert findings_of(samples) == ["failures by SIGKILL: 1, workers killed: 3"]
    assert "no worker was killed" in findings_of(samples[5:])[0]


def test_new_workers_begin_with_new_memory() -> None:
    samples = [sample(number) for number in range(20)]
    workers = [replace(samples[0].workers[0], memory_bytes=2 * 10**8)] * 2
    samples[10:] = [replace(one, generation=2, workers=workers) for one in samples[10:]]
    assert findings_of(samples) == []


@pytest.mark.slow
def test_a_soak_survives_killed_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "_PLAN", TrainingPlan(epochs=1, checkpoint_every=30))
    monkeypatch.setattr(benchmark, "_REDEPLOYMENTS", 1)
    samples = soak(0.02, tmp_path / "soak.jsonl", sample_seconds=5)
    assert samples[-1].generation > 1
    failures = [failure for one in samples for failure in one.failures]
    assert len(failures) == sum(one.kills for one in samples) > 0
    assert all("was killed by SIGKILL" in failure for failure in failures)
    assert len((tmp_path / "soak.jsonl").read_text().splitlines()) == len(samples) + 1
