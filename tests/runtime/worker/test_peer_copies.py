"""Copies between the hosts of a training: who keeps whose, and that they arrive."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks.host_loss.losable_hosts import LosableHosts
from drlpp.capturing.capture import capture
from drlpp.errors import StorageFailure
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.runtime import ClusterSession
from drlpp.runtime.comm.mailbox import build_group
from drlpp.runtime.ipc.answers import Working
from drlpp.runtime.ipc.commands import PeerCopy
from drlpp.runtime.ipc.tensor_file import read_checkpoint, write_tree
from drlpp.runtime.session.reading_state import copies_of, keep_copies, neighbours
from drlpp.runtime.worker.peer_copies import _SIZE_TAG, exchange_copies
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from tests.support.models.counting import counting
from tests.support.training.pipelines import in_a_row


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


def _exchange(
    folder: Path, copies: Sequence[PeerCopy], workers: Sequence[int]
) -> list[list[Working]]:
    """Each worker in a thread, with a folder of its own, which is that of its host.

    Returns:
        Each one's signs of life.
    """

    def run(worker: int, group: dist.ProcessGroup) -> list[Working]:
        signs: list[Working] = []
        own = folder / str(worker)
        own.mkdir(exist_ok=True)
        held = {"model": {"w": torch.full((1000 * worker + 1,), float(worker))}, "optimizer": {}}
        write_tree(own / "own", held)
        exchange_copies(copies, own / "own", group, workers, worker, signs.append)
        return signs

    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(run, workers, _groups(workers)))


def test_copies_arrive_whole_and_nothing_else_stays(tmp_path: Path) -> None:
    """Of different sizes, in a ring, with one host that keeps two; and again, over the old."""
    copies = [PeerCopy(2, 5, "of-2"), PeerCopy(5, 7, "of-5"), PeerCopy(7, 5, "of-7")]
    for _ in range(2):
        _exchange(tmp_path, copies, [2, 5, 7])
        for sender, receiver, file in ((2, 5, "of-2"), (5, 7, "of-5"), (7, 5, "of-7")):
            weights = read_checkpoint(tmp_path / str(receiver) / file)["model"]["w"]
            assert torch.equal(weights, torch.full((1000 * sender + 1,), float(sender)))
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"5/of-2", "7/of-5", "5/of-7", "2/own", "5/own", "7/own"}


def test_a_large_copy_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a slow network it travels for longer than silent workers are waited for."""
    monkeypatch.setattr("drlpp.runtime.worker.peer_copies._CHUNK_BYTES", 1000)
    signs = _exchange(tmp_path, [PeerCopy(3, 0, "of-3")], [0, 3])
    own, copy = (tmp_path / "3" / "own").read_bytes(), (tmp_path / "0" / "of-3").read_bytes()
    assert own == copy
    assert [len(one) for one in signs] == [-(-len(own) // 1000), 0]
    assert len(signs[0]) > 10


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
        exchange_copies([PeerCopy(0, 1, "of-0")], tmp_path / "own", receiver, [0, 1], 1, print)
    told.wait()


@pytest.mark.system
def test_a_host_keeps_two_sets_of_its_own_and_two_of_another() -> None:
    """What travels is the file that the sender keeps, without what is in flight."""
    captured = capture(ModelReference.of(counting))
    candidate = Candidate(in_a_row(captured.graph, 0, 1), Method(policy="stash"))
    hosts = LosableHosts([1, 1])
    sets: dict[int, Sequence[PeerCopy]] = {}
    with hosts.used(), ClusterSession(captured, workers=2) as session:
        group, folder = session.worker_group, session.folder
        deployment = session.deploy(candidate)

        def keep(*_: object) -> None:
            before = set(folder.iterdir())
            for number in (0, 1, 0, 1):
                sets[number] = keep_copies(group, deployment, number, peers=True)
            found = {path.name.split(".")[0] for path in set(folder.iterdir()) - before}
            kinds = ("copy", "in-flight", "peer-copy")
            assert found == {f"{kind}-{n}-{w}" for kind in kinds for n in (0, 1) for w in (0, 1)}
            for copy in sets[0]:
                travelled = folder / copy.file
                own = folder / copy.file.removeprefix("peer-")
                assert travelled.read_bytes() == own.read_bytes()
                assert read_checkpoint(travelled).keys() == {"model", "optimizer"}

        session.run(deployment, 8, cuts=[4], on_cut=keep)
        whole = copies_of(group, [0, 1], 0, sets[0])
        assert len(whole[0]["in_flight"]["stage"]["parts"]) == 1
        assert whole[1].keys() == {"model", "optimizer", "in_flight"}
        hosts.lose()
        session.give_up([1])
        left = copies_of(group, [0, 1], 1, sets[1])
        assert left[0].keys() == whole[0].keys()
        assert left[1].keys() == {"model", "optimizer"}
        assert not list(folder.glob("copy-*")) + list(folder.glob("in-flight-*"))
