"""Copies between the hosts of a training: who keeps whose, and that they arrive."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from drlpp.errors import StorageFailure
from drlpp.runtime.comm.mailbox import build_group
from drlpp.runtime.ipc.commands import PeerCopy
from drlpp.runtime.ipc.tensor_file import read_checkpoint
from drlpp.runtime.session.reading_state import neighbours
from drlpp.runtime.worker.peer_copies import _SIZE_TAG, exchange_copies
from drlpp.schedule.pipeline import Pipeline


@pytest.mark.parametrize(
    ("stages", "hosts", "expected"),
    [
        ([(0,), (1,), (2,), (3,)], "aabb", {0: 2, 1: 3, 2: 0, 3: 1}),
        # Unequal hosts: the workers of the smaller take more than one.
        ([(0,), (1,), (2,)], "aab", {0: 2, 1: 2, 2: 0}),
        ([(0,), (1,), (2,)], "abc", {0: 1, 1: 2, 2: 0}),
        # A replica on another host is copy enough, and one on the same is not.
        ([(0, 2), (1, 3)], "aabb", {}),
        ([(0, 1), (2, 3)], "aabb", {0: 2, 2: 0}),
        ([(0, 2), (1,), (3,)], "aabb", {1: 3, 3: 1}),
        # Folded: each worker has two stages.
        ([(0,), (1,), (1,), (0,)], "ab", {0: 1, 1: 0}),
        # Hosts without a worker of the placement keep nothing.
        ([(0,), (3,)], "abbc", {0: 3, 3: 0}),
        ([(0,), (1,)], "aa", {}),
    ],
)
def test_the_next_host_keeps_what_no_other_has(
    stages: Sequence[tuple[int, ...]], hosts: str, expected: dict[int, int]
) -> None:
    assert neighbours(Pipeline(tuple(stages), ()), hosts) == expected


def _groups(workers: Sequence[int]) -> list[dist.ProcessGroup]:
    """The group of all workers, as each has it; they meet in threads."""
    store = dist.HashStore()
    with ThreadPoolExecutor(len(workers)) as pool:
        return list(
            pool.map(lambda one: build_group(store, "all", workers, one, "127.0.0.1", 60), workers)
        )


def _exchange(folder: Path, copies: Sequence[PeerCopy], workers: Sequence[int]) -> None:
    """Each worker in a thread, with a folder of its own, which is that of its host."""

    def run(worker: int, group: dist.ProcessGroup) -> None:
        own = folder / str(worker)
        own.mkdir(exist_ok=True)
        held = {"model": {"w": torch.full((1000 * worker + 1,), float(worker))}, "optimizer": {}}
        exchange_copies(copies, held, group, workers, worker, own)

    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(run, workers, _groups(workers)))


def test_copies_arrive_whole_and_nothing_else_stays(tmp_path: Path) -> None:
    """Of different sizes, in a ring, with one host that keeps two; and again, over the old."""
    copies = [PeerCopy(2, 5, "of-2"), PeerCopy(5, 7, "of-5"), PeerCopy(7, 5, "of-7")]
    for _ in range(2):
        _exchange(tmp_path, copies, [2, 5, 7])
        for sender, receiver, file in ((2, 5, "of-2"), (5, 7, "of-5"), (7, 5, "of-7")):
            weights = read_checkpoint(tmp_path / str(receiver) / file)["model"]["w"]
            assert torch.equal(weights, torch.full((1000 * sender + 1,), float(sender)))
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"5/of-2", "7/of-5", "5/of-7"}


def test_no_room_for_a_copy_is_the_disks_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing to a mapped file without room would end the process."""

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    sender, receiver = _groups([0, 1])
    told = sender.send([torch.tensor([1000])], 1, _SIZE_TAG)
    with pytest.raises(StorageFailure, match=r"of-0: cannot be written \(No space left"):
        exchange_copies([PeerCopy(0, 1, "of-0")], {}, receiver, [0, 1], 1, tmp_path)
    told.wait()
