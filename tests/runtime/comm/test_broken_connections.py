"""A broken connection is no fault of the model."""

import threading

import pytest
import torch
import torch.distributed as dist

from drlpp.errors import WorkerLost
from drlpp.runtime.comm.connections import Member, broken_connection
from drlpp.runtime.worker.worker_process import failed


def _groups(timeout_seconds: float) -> list[dist.ProcessGroup]:
    """Two that are connected with each other."""
    store = dist.HashStore()
    found: dict[int, dist.ProcessGroup] = {}

    def build(worker: int) -> None:
        member = Member(store, worker, "127.0.0.1", torch.device("cpu"), None, timeout_seconds)
        found[worker] = member.group("all", (0, 1), "gloo")

    threads = [threading.Thread(target=build, args=(worker,)) for worker in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[0], found[1]]


@pytest.mark.parametrize("way", ["closed", "silent"])
def test_what_gloo_says_is_a_lost_connection(way: str) -> None:
    here, there = _groups(60 if way == "closed" else 0.5)
    waiting = here.recv([torch.zeros(4)], 1, 0)
    if way == "closed":
        del there
    with pytest.raises(RuntimeError) as caught:
        waiting.wait()
    assert (broken := broken_connection(caught.value)) is not None
    assert "This is typically" not in broken
    raised = failed(3, caught.value)
    assert isinstance(raised, WorkerLost)
    assert str(raised) == f"worker 3 lost its connection to another ({broken})"


def test_other_errors_are_others() -> None:
    assert broken_connection(RuntimeError("size mismatch")) is None
