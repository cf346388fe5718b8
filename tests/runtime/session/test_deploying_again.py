"""Deploying and running a small model again and again leaves nothing behind."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from benchmarks.models import reference
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.runtime.hosts.local_host import LocalHost
from tests.support.processes import facts_of

WORKERS = 3


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    model = reference("convolutions", {"batch_size": 2, "channels": 4, "side": 4})
    with ClusterSession(model, workers=WORKERS) as session:
        yield session


def placements(session: ClusterSession) -> list[Placement]:
    """Straight, replicated at both ends, and all replicas of one stage, on every worker."""
    operators = len(session.graph)
    even = [operator * WORKERS // operators for operator in range(operators)]
    fewer = [operator * (WORKERS - 1) // operators for operator in range(operators)]
    return [
        Placement.from_assignment(even, [0, 1, 2]),
        Placement.from_assignment(fewer, [0, 0, 1]),
        Placement.from_assignment(fewer, [0, 1, 1]),
        Placement.from_assignment([0] * operators, [0] * WORKERS),
    ]


def held(session: ClusterSession) -> tuple[object, ...]:
    found = map(facts_of, session.process_ids)
    return *((facts.threads, facts.open_files) for facts in found), session.file_count


@pytest.mark.slow
def test_nothing_is_left_by_deployments(session: ClusterSession) -> None:
    seen, memory = [], []
    for _ in range(8):
        for placement in placements(session):
            session.deploy(placement)
        seen.append(held(session))
        memory.append([facts_of(process).memory_bytes for process in session.process_ids])
    assert seen[1:] == [seen[1]] * 7
    # A worker of a toy is still settling after its second round.
    assert all(late < 1.05 * early for early, late in zip(memory[1], memory[-1], strict=True))


@pytest.mark.slow
def test_nothing_is_left_by_runs(session: ClusterSession) -> None:
    seen = []
    for _ in range(8):
        assert isinstance(session.measure(placements(session)[0], 2), Measurement)
        seen.append(held(session))
    assert seen[1:] == [seen[1]] * 7


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(dist.Store, "list_keys"), reason="a store cannot list its keys in torch 2.8"
)
def test_addresses_of_old_groups_are_not_kept(session: ClusterSession) -> None:
    counts = []
    for placement in placements(session) * 2:
        session.deploy(placement)
        (host,) = session.worker_group.hosts.hosts
        assert isinstance(host, LocalHost)
        assert host.store is not None
        counts.append(host.store.num_keys())
    assert counts[4:] == counts[:4]
