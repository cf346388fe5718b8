"""torch's own data parallelism trains to plain PyTorch's weights, and is measured on workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.costs.ways_of_training import LOCAL_STEPS
from drlpp.errors import InvalidInput
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.runtime import ClusterSession
from drlpp.runtime.device.devices import Accelerator
from drlpp.runtime.hosts.fork_server import forking_context
from drlpp.runtime.worker.plain_loop import PlainLoop
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.batches import chosen
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup

RANKS = 2
SAME = ("ddp", "zero-1", "zero-2", "fsdp")
GROUPED = OptimizerSpec.parse("adamw", [ParameterGroup.parse("*.bias", lr=0.05)], lr=0.1)
CASES: dict[str, tuple[dict[str, Any], OptimizerSpec, float]] = {
    "as it is": ({}, GROUPED, 1.0),
    "emulated, clipped": ({"clip_norm": 0.5}, OptimizerSpec.parse("sgd", lr=0.1), 0.5),
    "emulated, accumulated": ({"accumulate": 2}, OptimizerSpec.parse("adam"), 0.5),
}


def layered() -> Task:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)) for _ in range(2)]
    module = nn.Sequential(nn.Sequential(*layers), nn.Linear(6, 3)).double()
    return Task(module, (torch.randn(8, 6).double(),), torch.arange(8) % 3, F.cross_entropy)


def _updates(way: str) -> int:
    return LOCAL_STEPS if way == "local-sgd" else 4


def _train(rank: int, folder: str) -> None:
    from drlpp.runtime.worker.parallel_loop import ParallelLoop

    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    found: dict[tuple[str, str], dict[str, Tensor]] = {}
    for case, (options, optimizer, speed) in CASES.items():
        for way in (*SAME, "local-sgd"):
            task, method = layered(), choose_method("stash", options)
            loop = ParallelLoop(way, task, method, optimizer, Accelerator(), speed)  # type: ignore[arg-type]
            for _ in range(_updates(way) * method.accumulate):
                loop.step(task.inputs, task.targets)
            whole: Any = {n: w.detach() for n, w in loop.module.named_parameters()}
            whole = {n: getattr(w, "full_tensor", lambda w=w: w)() for n, w in whole.items()}
            found[case, way] = whole
    if rank == 0:
        torch.save(found, f"{folder}/weights.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("ranks")
    ranks = [forking_context().Process(target=_train, args=(r, str(folder))) for r in range(RANKS)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(120)
        one.kill()
    found: dict[tuple[str, str], dict[str, Tensor]] = torch.load(folder / "weights.pt")
    return found


def plain(case: str, way: str, part: slice) -> dict[str, Tensor]:
    options, optimizer, _ = CASES[case]
    task, method = layered(), choose_method("stash", options)
    loop = PlainLoop(task, method, optimizer, Accelerator())
    for _ in range(_updates(way) * method.accumulate):
        loop.step(*chosen((task.inputs, task.targets), part))
    return {name: weight.detach() for name, weight in task.module.named_parameters()}


@pytest.mark.parametrize("case", CASES)
def test_all_make_the_updates_of_plain_pytorch(
    trained: dict[tuple[str, str], dict[str, Tensor]], case: str
) -> None:
    """And local SGD those of each rank by itself, averaged."""
    wanted = plain(case, "ddp", slice(None))
    for way in SAME:
        torch.testing.assert_close(trained[case, way], wanted, rtol=1e-6, atol=1e-9, msg=way)
    halves = [plain(case, "local-sgd", part) for part in (slice(4), slice(4, 8))]
    mean = {name: (weight + halves[1][name]) / 2 for name, weight in halves[0].items()}
    torch.testing.assert_close(trained[case, "local-sgd"], mean, rtol=1e-6, atol=1e-9)


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    # Made in a function, so that nothing imports its loss.
    task = layered()
    task = task._replace(loss=lambda outputs, targets: F.cross_entropy(outputs, targets))
    with ClusterSession(task, 3, speeds=[0.2, 0.3, 0.3]) as session:
        yield session


@pytest.mark.parametrize("way", [*SAME, "local-sgd"])
def test_it_is_measured_on_the_fastest_workers(session: ClusterSession, way: Any) -> None:
    outcome = session.measure_parallel(way, 2, 3)
    assert isinstance(outcome, Measurement), outcome
    assert [usage.worker for usage in outcome.workers] == [1, 2]
    assert outcome.minibatches == (LOCAL_STEPS if way == "local-sgd" else 3)
    assert not [path for path in session.folder.iterdir() if path.name.startswith("task")]


def test_a_placement_is_measured_after_it_and_the_session_goes_on(
    session: ClusterSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a worker was killed meanwhile, which is measured once more."""
    notes: list[str] = []
    session.note = notes.append
    execute = session.worker_group.execute

    def killing(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(session.worker_group, "execute", execute)
        os.kill(session.process_ids[1], signal.SIGKILL)
        return execute(*given, **options)

    monkeypatch.setattr(session.worker_group, "execute", killing)
    assert isinstance(session.measure_parallel("fsdp", 2, 3), Measurement)
    assert "fsdp on 2 workers is measured again" in notes[0]
    assert len(session.process_ids) == 3


def test_what_cannot_be_measured_says_why(session: ClusterSession) -> None:
    for workers, told in ((4, "there are 3"), (3, "cannot be divided among 3")):
        with pytest.raises(InvalidInput, match=told):
            session.measure_parallel("ddp", workers)
    model = capture(ModelReference.named("tests.racing.test_plain:picky"), check=False)
    with ClusterSession(model, 2, method=Method()) as failing:
        outcome = failing.measure_parallel("ddp", 2, 3)
        assert isinstance(outcome, FailedMeasurement)
        assert (outcome.failure, "a kernel is missing" in outcome.reason) == (
            "error in the model",
            True,
        )
