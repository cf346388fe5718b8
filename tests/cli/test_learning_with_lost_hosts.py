"""A run that learns, or races, ends in one line when a host is lost, and is resumed with it."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drlpp.cli import main as command_line
from drlpp.envs import MeasurementMemory
from drlpp.io.documents import read_document
from drlpp.placement.measurements_file import Entry, read_measurements
from drlpp.placement.placement_file import PlacementFile
from tests.support.losable_hosts import LosableHosts
from tests.support.programs import shell
from tests.support.programs.shell import Finished
from tests.support.programs.short_comparisons import short_comparisons
from tests.support.training.endless_agent import ENDLESS

BRIEF = ["--minibatches", 4, "--repetitions", 1, "--rounds", 1, "--finalists", 1]
BRIEF += ["--method-option", "microbatches=1"]
MODEL = ["tests.support.models.small:perceptron", "--model-option", "batch_size=2"]

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def learn(out: Path, budget: int, *more: object) -> Finished:
    agent = out.with_name("guided.yaml")
    agent.write_text(ENDLESS)
    job = [*MODEL, "--out", out, "--budget", budget, "--agent", agent, *BRIEF, *more]
    with short_comparisons():
        return shell.finish(command_line.main, "drlpp", "learn", *job)


def entries(out: Path) -> list[Entry]:
    return list(read_measurements(out / "measurements.jsonl")[1])


@contextmanager
def after(calls: int, kind: type, method: str, act: Callable[[], None]) -> Iterator[None]:
    """Act when a method has been called so often; a memory without a file only imagines."""
    count, called = itertools.count(), getattr(kind, method)

    def counted(*given: object, **named: object) -> object:
        if getattr(given[0], "path", kind) is not None and next(count) == calls:
            act()
        return called(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, method, counted)
        yield


def is_one_line(done: Finished, what: str) -> bool:
    """Whether it ended with the loss of the host, and how to go on, in one line."""
    assert done.code == 1
    told = done.err.strip().splitlines()[-1]
    return (
        "Traceback" not in done.err
        and "host host-1 cannot be reached; all that was measured is kept" in told
        and told.endswith(f"the same command with --resume continues the {what}")
    )


def test_learning_is_resumed_from_every_measurement(tmp_path: Path) -> None:
    out, hosts = tmp_path / "run", LosableHosts([2, 2])
    with hosts.used(), after(2, MeasurementMemory, "_run", hosts.lose):
        done = learn(out, 4, "--workers", 4)
    assert is_one_line(done, "run")
    known = entries(out)
    assert len(known) == 2
    assert read_document(out / "placement.json", PlacementFile).cluster.accelerators == 4

    with LosableHosts([2, 2]).used():
        done = learn(out, 4, "--workers", 4, "--resume")
    assert done.code == 0, done.err
    found = entries(out)
    assert found[:2] == known
    assert len({(entry.placement, entry.method) for entry in found}) == len(found) == 4
