"""The main job, end to end, as a user starts, interrupts, kills and resumes it.

In this process, except where what is tested is how a process ends.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drlpp.cli import main as drlpp_command
from drlpp.io.documents import read_document
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.comparison import Comparison
from drlpp.racing.rivals import RIVALS
from tests.support.processes import descendants, wait_until_gone, workers_of
from tests.support.programs import shell
from tests.support.programs.documented_commands import blocks_of
from tests.support.programs.shell import Finished
from tests.support.programs.short_comparisons import short_comparisons
from tests.support.training.endless_agent import ENDLESS

Result = TypeVar("Result")
ROOT = Path(__file__).parent.parent
MODEL = ["tests.support.models.small:perceptron", "--workers", "2", "--minibatches", "4"]
# Few ways to divide a minibatch, so that there is little to choose from and to compare with.
MODEL += ["--model-option", "batch_size=2"]


def arguments(out: Path, budget: int, *more: str) -> list[str]:
    # So that measurements can be counted.
    endless = out.with_name("guided.yaml")
    endless.parent.mkdir(parents=True, exist_ok=True)
    endless.write_text(ENDLESS)
    job = ["--out", str(out), "--budget", str(budget), "--rounds", "1", "--agent", str(endless)]
    return [*MODEL, *job, "--finalists", "1", "--repetitions", "1", *more]


def run(out: Path, budget: int, *more: str) -> Finished:
    with short_comparisons():
        return whole_run(out, budget, *more)


def whole_run(out: Path, budget: int, *more: str) -> Finished:
    return shell.finish(drlpp_command.train_agent, "train_agent.py", *arguments(out, budget, *more))


def finish(out: Path, budget: int, *more: str) -> str:
    done = run(out, budget, *more)
    assert done.code == 0, done.err
    return done.out


def measured(out: Path) -> list[str]:
    path = out / "measurements.jsonl"
    return path.read_text().splitlines()[1:] if path.exists() else []


def candidate_in(line: str) -> str:
    """Return the placement and the method of a line, as text."""
    entry = json.loads(line)
    return json.dumps([entry["placement"], entry.get("method")])


def once_measured(out: Path, placements: int, act: Callable[[], Result]) -> Result:
    """Wait until a run has measured so many placements, and act."""
    deadline = time.monotonic() + 200
    while len(measured(out)) < placements:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return act()


def start_until(out: Path, placements: int) -> subprocess.Popen[str]:
    """Start a run in a process of its own and wait until it has measured so many placements."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train_agent.py"), *arguments(out, 500)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def still_runs() -> None:
        assert process.poll() is None, process.communicate()

    once_measured(out, placements, still_runs)
    return process


COMPLETE = (4, "--objective", "seconds", "--rounds", "3", "--finalists", "2", "--resume")


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run that has ended, and what it printed."""
    out = tmp_path_factory.mktemp("complete") / "run"
    done = whole_run(out, *COMPLETE)
    assert done.code == 0, done.err
    return out, done.out


@pytest.mark.system
def test_a_run_learns_compares_and_exports(complete: tuple[Path, str]) -> None:
    out, printed = complete
    assert " ".join(printed.split()).count("holds nothing to resume yet: the run begins") == 1
    assert len(measured(out)) == 4
    assert " s for 4 placements: measuring " in printed
    comparison = read_document(out / "comparison.json", Comparison)
    # What several found is one contender, with the names of all.
    names = [name for contender in comparison.contenders for name in contender.names]
    # Memory is not short here; links may be, for so small a model.
    assert {*names, "local-sgd", "powersgd"} == {"guided", *RIVALS} - {"zero-1"}
    finalists = [one for one in comparison.contenders if "guided" in one.names]
    assert 1 <= len(finalists) <= 2
    known = [json.loads(line) for line in measured(out)]
    fastest_first = sorted(
        (entry for entry in known if entry["outcome"]["outcome"] == "measured"),
        key=lambda entry: entry["outcome"]["seconds_per_minibatch"],
    )
    # Those that differ by the numbers of their workers alone are one.
    fastest = iter([entry["placement"] for entry in fastest_first[:2]])
    assert all(one.placement.model_dump(mode="json") in fastest for one in finalists)
    rounds = {one.found_by: (len(one.measurements), one.failure) for one in comparison.contenders}
    assert set(rounds.values()) == {(3, None)}, rounds
    told = " ".join(printed.split())
    assert re.search(r"trains a minibatch [0-9.]+× faster than .* \(95% CI [0-9.]+", told)
    verdict = comparison.verdict
    assert verdict is not None
    assert verdict.placement is not None
    simplest = comparison.contenders[verdict.equals[0]]
    assert ("no other candidate is significantly better" in told) == (simplest.placement is None)
    exported = comparison.contenders[verdict.placement]
    document = read_document(out / "placement.json", PlacementFile)
    assert document.found_by == exported.found_by
    assert exported.placement is not None
    assert document.configuration == exported.placement.configuration
    assert list((out / "tensorboard").rglob("events.out.tfevents*"))
    # Resuming a run that is complete measures nothing and says the same.
    before = (out / "comparison.json").read_text()
    again = whole_run(out, *COMPLETE).out
    assert "the run begins" not in again
    # Printed lines wrap where the path is long.
    assert f"found by {exported.found_by}" in " ".join(again.split())
    assert (out / "comparison.json").read_text() == before
    assert len(measured(out)) == 4


@pytest.mark.system
def test_the_command_that_it_ends_with_trains(complete: tuple[Path, str]) -> None:
    (said,) = re.findall(r"^train with it: drlpp (.*)$", complete[1], re.MULTILINE)
    *words, data = shlex.split(said)
    # No data of drlpp's are made for a model of one's own.
    assert (words[-1], data) == ("--data", "package.module:factory")
    named = words[words.index("--model") + 1]
    assert named == "tests.support.models.small:perceptron"
    data = "tests.support.models.small:separable"
    done = shell.finish(drlpp_command.main, "drlpp", *words, data, "--epochs", "1")
    assert done.code == 0, done.err
    nameless = shell.finish(drlpp_command.main, "drlpp", *words[:2], "--data", data)
    assert nameless.code == 2
    assert f"name it again: --model {named}, in Python model='{named}'" in nameless.err


@pytest.mark.system
def test_an_agent_of_ones_own_is_a_file(tmp_path: Path) -> None:
    out, agent = tmp_path / "run", tmp_path / "mine.yaml"
    text = "kind: hyperparameters\nversion: 1\nplacements_per_partition: 1\n"
    agent.write_text(text)
    finish(out, 3, "--agent", str(agent))
    comparison = read_document(out / "comparison.json", Comparison)
    assert "mine" in comparison.contenders[0].names
    agent.write_text(text.replace("partition: 1", "partition: 2"))
    done = run(out, 3, "--agent", str(agent), "--resume")
    assert done.code == 2
    assert "it cannot be resumed with" in done.err


@pytest.mark.system
def test_an_agent_of_ones_own_is_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/agent.md, as a reader writes it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (example,) = (b for b in blocks_of("docs/agent.md") if b.marks.get("file") == "climbing.py")
    (tmp_path / "climbing.py").write_text(example.text)
    out = tmp_path / "run"
    finish(out, 3, "--agent", "climbing:Climber")
    known = measured(out)
    assert len(known) == 3
    comparison = read_document(out / "comparison.json", Comparison)
    assert "Climber" in comparison.contenders[0].names
    boards = [EventAccumulator(str(path)).Reload() for path in out.glob("tensorboard/*")]
    assert any("placement/best_seconds" in board.Tags()["scalars"] for board in boards)
    finish(out, 4, "--agent", "climbing:Climber", "--resume")
    assert measured(out)[:3] == known


@pytest.mark.system
def test_ctrl_c_exports_what_was_learned_and_resume_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    # Tests that run in the background ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(once_measured, out, 4, lambda: os.kill(os.getpid(), signal.SIGINT))
            done = run(out, 500)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.code == 130
    assert "--resume" in done.err
    assert "Traceback" not in done.err
    read_document(out / "placement.json", PlacementFile)
    known = measured(out)
    finish(out, len(known) + 2, "--resume")
    assert measured(out)[: len(known)] == known


@pytest.mark.system
def test_a_killed_run_resumes_without_measuring_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start_until(out, 2)
    workers = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    printed, _ = process.communicate(timeout=100)
    # It said so while it ran.
    assert "profiling operators and links\n" in printed
    assert "\nmeasuring placements\n" in printed
    empty = tmp_path / "empty"
    empty.mkdir()
    assert not wait_until_gone(workers, empty, 60)
    known = measured(out)
    printed = finish(out, len(known) + 3, "--resume")
    # The last line is said whenever it comes; others, none within three seconds.
    clock, place = "[0-9]+:[0-5][0-9]:[0-5][0-9]", "[0-9-]+"
    assert re.search(
        rf"\nmeasured [0-9]+ of {len(known) + 3} placements, last {place}: [0-9.]+ .s, "
        rf"best [0-9.]+ .s \({place}\), left ({clock}|–)\n",
        printed,
    )
    after = measured(out)
    assert after[: len(known)] == known
    keys = [candidate_in(line) for line in after]
    assert len(set(keys)) == len(keys)


@pytest.mark.system
def test_emulated_accelerators_are_named_and_resumed_as_they_were(tmp_path: Path) -> None:
    out = finish(tmp_path, 1, "--speeds", "1,0.5")
    assert "emulated: 2 accelerators of speeds" in out
    comparison = read_document(tmp_path / "comparison.json", Comparison)
    assert comparison.speeds[1] == pytest.approx(comparison.speeds[0] / 2, rel=0.01)
    assert "emulated: 2 accelerators" in (tmp_path / "report.html").read_text()
    placement = read_document(tmp_path / "placement.json", PlacementFile)
    assert placement.cluster.speeds == comparison.speeds
    other = run(tmp_path, 2, "--resume")
    assert other.code == 2
    assert "speeds" in other.err
    options = tmp_path / "run.yaml"
    again = shell.finish(
        drlpp_command.train_agent,
        "train_agent.py",
        "--config",
        options,
        "--out",
        tmp_path / "again",
    )
    assert again.code == 0, again.err
    repeated = read_document(tmp_path / "again" / "comparison.json", Comparison)
    assert repeated.speeds == comparison.speeds
    assert len(measured(tmp_path / "again")) == 1


@pytest.mark.system
def test_a_killed_worker_costs_no_measurement(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def kill_a_worker() -> int:
        os.kill(max(workers_of(os.getpid())), signal.SIGKILL)
        return len(measured(out))

    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(once_measured, out, 2, kill_a_worker)
        done = run(out, 12)
    assert before.result() < 12
    assert done.code == 0, done.err
    assert "Warning" not in done.err
    # Between two measurements it is replaced without a word.
    assert done.out.count("is measured again") <= 1
    outcomes = [json.loads(line)["outcome"] for line in measured(out)]
    assert len(outcomes) == 12
    assert all(outcome["outcome"] == "measured" for outcome in outcomes)
    assert (out / "placement.json").exists()
