"""torch's own data parallelism trains to plain PyTorch's weights, and is measured on workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from drlpp.costs.ways_of_training import LOCAL_STEPS
from drlpp.errors import InvalidInput
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.runtime.device.devices import Accelerator
from drlpp.runtime.hosts.fork_server import forking_context
from drlpp.runtime.ipc.protocol import ParallelTraining, ParallelWork
from drlpp.runtime.worker.plain_loop import PlainLoop
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.batches import chosen
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.ranks import (
    CASES,
    EVERY,
    LOCAL,
    RANKS,
    ROUNDED,
    SAME,
    layered,
    train,
    wide,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("ranks")
    ranks = [forking_context().Process(target=train, args=(r, str(folder))) for r in range(RANKS)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(120)
        one.kill()
    found: dict[tuple[str, str], dict[str, Tensor]] = torch.load(folder / "weights.pt")
    return found


def plain(case: str, part: slice, start: PlainLoop | None = None) -> PlainLoop:
    """Return a loop after so many updates as there are between two averages."""
    options, optimizer, _ = CASES[case]
    task, method = layered(), choose_method("stash", options)
    loop = start or PlainLoop(task, method, optimizer, Accelerator())
    for _ in range(EVERY * method.accumulate):
        loop.step(*chosen((task.inputs, task.targets), part))
    return loop


def averaging(case: str, way: str) -> dict[str, Tensor]:
    """Train each rank by itself; DiLoCo steps by torch's own SGD to an average."""
    parts = slice(4), slice(4, 8)
    outer = dict(layered().module.named_parameters())
    steps = torch.optim.SGD(outer.values(), lr=0.7, momentum=0.9, nesterov=True)
    loops: list[PlainLoop | None] = [None, None]
    for _ in range(2):
        loops = [plain(case, part, loop) for part, loop in zip(parts, loops, strict=True)]
        modules = [loop.module for loop in loops if loop]
        with torch.no_grad():
            for name, weight in outer.items():
                mean = (modules[0].get_parameter(name) + modules[1].get_parameter(name)) / 2
                weight.grad = weight - mean
                if way == "local-sgd":
                    weight.copy_(mean)
            if way == "diloco":
                steps.step()
            for module in modules:
                for name, weight in outer.items():
                    module.get_parameter(name).copy_(weight)
    return outer


@pytest.mark.parametrize("case", CASES)
def test_all_make_the_updates_of_plain_pytorch(
    trained: dict[tuple[str, str], dict[str, Tensor]], case: str
) -> None:
    """And local SGD and DiLoCo those of each rank by itself, averaged."""
    whole = slice(None)
    wanted = dict(plain(case, whole, plain(case, whole)).module.named_parameters())
    for way in SAME:
        torch.testing.assert_close(trained[case, way], wanted, rtol=1e-6, atol=1e-9, msg=way)
    torch.testing.assert_close(trained[case, ROUNDED], wanted, rtol=0.1, atol=0.02)
    for way in LOCAL:
        found = trained[case, way]
        torch.testing.assert_close(found, averaging(case, way), rtol=1e-6, atol=1e-9, msg=way)


def test_powersgd_continues_with_what_compression_has_lost(
    trained: dict[tuple[str, str], dict[str, Tensor]],
) -> None:
    whole, continued = trained["compressed", "(6,)"], trained["compressed", "(3, 3)"]
    torch.testing.assert_close(continued, whole, rtol=0, atol=0)
    task = wide()
    loop = PlainLoop(task, Method(), OptimizerSpec.parse("adam", lr=0.01), Accelerator())
    before = {name: one.clone() for name, one in task.module.state_dict().items()}
    for _ in range(6):
        loop.step(task.inputs, task.targets)
    for name, weight in task.module.state_dict().items():
        moved, lost = weight - before[name], whole[name] - weight
        assert 0 < lost.norm() < 0.3 * moved.norm(), name


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    # Made in a function, so that nothing imports its loss.
    task = layered()
    task = task._replace(loss=lambda outputs, targets: F.cross_entropy(outputs, targets))
    with ClusterSession(task, 3, speeds=[0.2, 0.3, 0.3]) as session:
        yield session


@pytest.mark.parametrize("way", [*SAME, ROUNDED, "powersgd", *LOCAL])
def test_it_is_measured_on_the_fastest_workers(session: ClusterSession, way: Any) -> None:
    outcome = session.measure_parallel(way, 2, 3)
    assert isinstance(outcome, Measurement), outcome
    assert [usage.worker for usage in outcome.workers] == [1, 2]
    assert outcome.minibatches == (LOCAL_STEPS[0] if way in LOCAL else 3)
    assert not [path for path in session.folder.iterdir() if path.name.startswith("task")]


@pytest.mark.system
def test_torchs_ddp_ends_every_time() -> None:
    """One in five did not: its group was freed while Gloo's threads still ended."""
    with ClusterSession(layered(), 2, timeout_seconds=30) as session:
        for _ in range(12):
            assert isinstance(session.measure_parallel("ddp", 2, 6), Measurement)


def test_a_placement_is_measured_after_it_and_the_session_goes_on(
    session: ClusterSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a worker was killed meanwhile, which is measured once more."""
    notes: list[str] = []
    session.note = notes.append
    execute = session.execute

    def killing(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(session, "execute", execute)
        os.kill(session.process_ids[1], signal.SIGKILL)
        return execute(*given, **options)

    monkeypatch.setattr(session, "execute", killing)
    assert isinstance(session.measure_parallel("fsdp", 2, 3), Measurement)
    assert "fsdp on 2 workers is measured again" in notes[0]
    assert len(session.process_ids) == 3


def test_fewer_workers_train_after_a_placement_on_more(session: ClusterSession) -> None:
    session.deploy(Placement.straight([1] * len(session.graph), range(3)))
    task = session.captured.task_with_loss
    training = ParallelTraining("ddp", Method(), session.optimizer, 0, 1)
    work = ParallelWork(task, [(task.inputs, task.targets)] * 2, states=())
    stint = session.train_parallel(training, 2, work)
    assert stint.seconds > 0
    assert len(stint.states) == 2


def test_what_cannot_be_measured_says_why(session: ClusterSession) -> None:
    for workers, told in ((4, "there are 3"), (3, "cannot be divided among 3")):
        with pytest.raises(InvalidInput, match=told):
            session.measure_parallel("ddp", workers)

    def missing(outputs: Tensor, targets: Tensor) -> Tensor:
        if multiprocessing.parent_process() is not None:
            raise RuntimeError("a kernel is missing")
        return F.cross_entropy(outputs, targets)

    with ClusterSession(layered()._replace(loss=missing), 2, method=Method()) as failing:
        outcome = failing.measure_parallel("ddp", 2, 3)
        assert isinstance(outcome, FailedMeasurement)
        assert outcome.failure == "error in the model"
        assert "a kernel is missing" in outcome.reason
