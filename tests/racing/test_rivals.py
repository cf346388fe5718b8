"""What a learned placement has to beat: every kind, and of each the most promising candidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from drlpp.costs.memory import MemoryModel
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.planners import Space, Vary
from drlpp.racing.contenders import Contender
from drlpp.racing.prospects import APPROXIMATE, pipelines, usual_candidates
from drlpp.racing.rivals import (
    DATA_PARALLEL,
    LARGE_BATCH,
    MOST_CANDIDATES,
    PARALLEL,
    PLAIN,
    RIVALS,
    Grounds,
    by_torch,
    candidates_of,
    predicted,
    without_equals,
)
from drlpp.runtime import ClusterSession
from drlpp.schedule.analysis.staleness import samples_needed
from drlpp.schedule.kinds.alternating import GPIPE
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.weight_policies import WEIGHT_POLICIES
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster, Host, Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.classified_points import NAME
from tests.support.strategies.graphs import chain_of

FAST = Link(bandwidth_bytes_per_second=1e9)


PROFILE = chain_of(seconds=[1.0] * 8, parameter_bytes=[1] * 8, output_bytes=[1] * 8)[1]


def grounds_on(
    cluster: Cluster, speeds: tuple[float, ...] = (1.0,) * 4, batch_size: int = 12
) -> Grounds:
    session: Any = SimpleNamespace(
        method=Method(),
        optimizer=OptimizerSpec.parse("adam"),
        captured=SimpleNamespace(task=SimpleNamespace(batch_size=batch_size)),
        speeds=speeds,
    )
    return Grounds(session, PROFILE, cluster, Space(Method()))


def configurations(contenders: Iterable[Contender]) -> list[str]:
    return [candidate.configuration for candidate in contenders]


@pytest.mark.parametrize(("cores", "threads"), [(1, [1]), (3, [1, 2, 3]), (8, [1, 2, 4, 8])])
def test_plain_pytorch_has_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: list[int]
) -> None:
    """On GPUs they do not matter, and an emulated accelerator is one."""
    monkeypatch.setattr("drlpp.racing.rivals.available_cores", lambda: list(range(cores)))
    monkeypatch.setattr("drlpp.racing.rivals.why_not_compiled", lambda device: None)
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    *plain, compiled = candidates_of(PLAIN, grounds_on(local_cluster(4, FAST)))
    assert [candidate.threads for candidate in plain] == threads
    assert all(candidate.placement is None for candidate in plain)
    assert [one.method.compiled for one in (*plain, compiled)] == [False] * len(plain) + [True]
    assert compiled.threads == threads[-1]
    gpus = Cluster(hosts=(Host(name="host", accelerators=2, device="cuda"),), within_host=FAST)
    assert configurations(candidates_of(PLAIN, grounds_on(gpus))) == ["one GPU"] * 2
    # Weights, gradients and Adam's state are 32 bytes, results of a minibatch 2.
    for memory, passes in ((33, 2), (31, 1)):
        short = grounds_on(local_cluster(4, FAST, memory_bytes=memory))
        assert {one.passes for one in candidates_of(PLAIN, short)} == {passes}
    emulated = grounds_on(local_cluster(2, FAST, speeds=[0.4, 0.2]), (0.4, 0.2))
    assert configurations(candidates_of(PLAIN, emulated)) == ["1 thread"] * 2


def test_plain_pytorch_is_raced_as_it_is_where_torch_cannot_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drlpp.racing.rivals.why_not_compiled", lambda device: "no g++")
    monkeypatch.delenv("TORCH_COMPILE_DISABLE")
    grounds = grounds_on(local_cluster(2, FAST))
    notes: list[str] = []
    grounds.session.note = notes.append
    assert not any(one.method.compiled for one in candidates_of(PLAIN, grounds))
    assert "no g++" in notes[0]


def test_there_are_all_kinds_with_any_number_of_workers() -> None:
    grounds = grounds_on(local_cluster(4, FAST))
    heats = {kind: candidates_of(kind, grounds) for kind in RIVALS}
    absent = {"powersgd", "zero-1", "local-sgd"}
    assert {kind for kind, found in heats.items() if not found} == absent
    for way in ("zero-2", "fsdp"):
        assert configurations(heats[way]) == ["2 processes", "4 processes"]
    sent = "", ", gradients sent in bfloat16"
    assert configurations(heats["ddp"]) == [f"{n} processes{how}" for n in (2, 4) for how in sent]
    assert {name for one in heats["ddp"] for name in one.names} == {"ddp"}
    divided = heats["data-parallel"]
    assert configurations(divided) == ["2, M = 2", "3, M = 3", "4, M = 4"]
    assert not any("updates" in one.beside(Method()) for one in divided)
    whole = heats["large-batch"]
    assert [one.beside(Method()) for one in whole] == [
        f"{number}, updates every {number} minibatches" for number in (2, 3, 4)
    ]
    for kind in ("gpipe", "1f1b-flush"):
        found = heats[kind]
        assert len(found) == MOST_CANDIDATES
        assert {c.method.schedule for c in found} == {kind}
        assert {c.method.policy for c in found} == {"sync"}
        assert all(12 % c.method.microbatches == 0 for c in found)
        assert all(c.placement and len(c.placement.stages) > 1 for c in found)
    for heat in heats.values():
        keys = [c.key for c in heat]
        assert len(set(keys)) == len(keys)


def test_zero_1_powersgd_and_local_sgd_take_part_where_they_help() -> None:
    """Where DDP's memory is too short, and where its links take longer than it saves."""
    profile = chain_of(seconds=[1.0] * 8, parameter_bytes=[9**9] * 8, output_bytes=[1] * 8)[1]
    helped = (1e7, None, ["powersgd", "local-sgd"]), (1e12, 8 * 9**9, ["zero-1"])
    # Three workers do not divide 32 samples, two of them do.
    for (bandwidth, memory, wanted), (workers, samples, processes) in product(
        helped, ((4, 12, 4), (3, 32, 2))
    ):
        link = Link(bandwidth_bytes_per_second=bandwidth)
        cluster = local_cluster(workers, link, memory_bytes=memory)
        grounds = replace(grounds_on(cluster, batch_size=samples), profile=profile)
        found = {w: candidates_of(w, grounds) for w in ("powersgd", "zero-1", "local-sgd")}
        assert [way for way, some in found.items() if some] == wanted
        for way in wanted:
            (one,) = found[way]
            assert (one.processes, one.way) == (processes, way)
    assert "weights averaged every 16 minibatches" in one.model_copy(
        update={"way": "local-sgd", "every": 8, "method": Method(accumulate=2)}
    ).beside(Method())


def test_the_simulator_ranks_what_is_too_much() -> None:
    """All splits in 2, 3 and 4 stages with all of 1, 2, 3, 4, 6 and 12 microbatches, played."""
    cluster = local_cluster(4, FAST)
    chosen = candidates_of("gpipe", grounds_on(cluster))
    every = {}
    for stages in (2, 3, 4):
        part = grounds_on(local_cluster(stages, FAST), (1.0,) * stages, batch_size=1)
        *_, split = candidates_of("gpipe", part)
        assert split.placement is not None
        assert len(split.placement.stages) == stages
        for microbatches in (1, 2, 3, 4, 6, 12):
            method = Method(schedule="gpipe", policy="sync", microbatches=microbatches)
            workload = Workload.of(PROFILE, method)
            memory = MemoryModel.of(method, OptimizerSpec.parse("adam"))
            played = simulate(workload, cluster, split.placement, method, 12, memory)
            every[split.placement.canonical, method] = played.seconds_per_minibatch
    worst = max(every[c.placement.canonical, c.method] for c in chosen if c.placement)
    left_out = set(every) - {(c.placement.canonical, c.method) for c in chosen if c.placement}
    assert len(left_out) == 18 - MOST_CANDIDATES
    assert all(every[key] >= worst * (1 - 1e-9) for key in left_out)


def test_pipedream_has_every_number_of_microbatches_that_a_search_may_choose() -> None:
    space = Space(Method(), frozenset(Vary) - {Vary.SCHEDULE}, batch_size=12)
    found = candidates_of("pipedream", replace(grounds_on(local_cluster(2, FAST)), space=space))
    assert {one.method for one in found} == {Method(microbatches=number) for number in (1, 2, 4)}


def test_fewer_workers_are_the_fastest() -> None:
    unequal = grounds_on(local_cluster(3, FAST, speeds=[0.5, 1.0, 1.0]), (1.0,) * 3)
    used = [c.placement.accelerators for c in candidates_of(DATA_PARALLEL, unequal) if c.placement]
    assert used == [(1, 2), (0, 1, 2)]


def test_what_runs_alike_is_one_contender_whatever_it_is_called() -> None:
    """Equal keys have equal actions: of one stage, and of accelerators that do not differ."""
    whole = Placement.from_assignment([0] * 8, [0] * 4)
    flushed = Method(schedule="1f1b-flush", policy="sync", microbatches=4)
    alike = [flushed, Method(microbatches=4), Method(policy="stash", microbatches=4)]
    found = [Contender.of(Candidate(whole, method), "any") for method in alike]
    assert len({one.key for one in found}) == 1
    pipeline = whole.pipeline(PROFILE.graph)
    schedules = [method.schedule_for(pipeline, 3).actions for method in alike]
    assert schedules[0] == schedules[1] == schedules[2]
    others = [Method(), Method(policy="2bw", microbatches=4), Method(accumulate=2)]
    keys = {Contender.of(Candidate(whole, method), "any").key for method in others}
    assert len(keys | {found[0].key}) == 4


def test_accelerators_that_do_not_differ_are_interchangeable() -> None:
    cluster = local_cluster(4, FAST)
    two = Placement.from_assignment([0] * 4 + [1] * 4, [0, 0, 1, 1])
    other = Placement.from_assignment([0] * 4 + [1] * 4, [1, 1, 0, 0])
    both = [
        Contender.of(Candidate(two, Method()), "guided"),
        Contender.of(Candidate(other, Method()), "plan"),
    ]
    (alike,) = without_equals(both, cluster)
    assert (alike.placement, alike.found_by) == (two, "guided, plan")
    unequal = local_cluster(4, FAST, speeds=[1.0, 1.0, 0.5, 0.5])
    assert without_equals(both, unequal) == both


# In races to a loss


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    """Two live workers: each policy's pipelines are planned for them."""
    with ClusterSession(f"{NAME}:classifier", 2) as live:
        yield Grounds(live, *live.profile(repeats=2), Space(live.method))


def test_the_usual_candidates_are_what_a_user_has_and_pipelines(grounds: Grounds) -> None:
    plain, *others = usual_candidates(grounds)
    assert (plain.names, plain.placement) == ((PLAIN,), None)
    names = {name for one in others for name in one.names}
    assert names & {DATA_PARALLEL, *PARALLEL} - {*APPROXIMATE}
    assert {*APPROXIMATE} <= names
    assert len({one.key for one in others}) == len(others)
    ways = {(one.method.schedule, one.method.policy) for one in others}
    assert {("1f1b", "pipeoptim"), ("1f1b-flush", "sync"), ("zb-h1", "sync")} <= ways
    assert not any(schedule == "gpipe" for schedule, _ in ways)


@pytest.mark.parametrize("policy", sorted(WEIGHT_POLICIES.keys() - {"sync"}))
def test_a_policy_takes_part_with_what_it_can_be_run_with(grounds: Grounds, policy: str) -> None:
    """Two stages on two workers, with 1, 2 or 4 microbatches: 2BW needs two in flight."""
    found = pipelines(grounds, choose_method(policy))
    assert {contender.method.policy for contender in found} == {policy}
    (microbatches,) = {one.method.microbatches for one in found}
    assert microbatches in ((2, 4) if policy.startswith("2bw") else (1, 2, 4))
    assert {name for one in found for name in one.names} == {"even split", "pipedream"}


def test_to_a_loss_contenders_are_weighed_by_the_samples_that_they_need() -> None:
    """Three updates come between on the first of four stages; replicas update every 4."""
    grounds = grounds_on(local_cluster(4, FAST))
    placed = Placement.from_assignment([0, 0, 1, 1, 2, 2, 3, 3], range(4))
    straight = Contender.of(Candidate(placed, Method()), "guided")
    assert grounds.weighed(straight) == straight
    weighed = replace(grounds, objective="loss")
    assert weighed.weighed(straight).samples == pytest.approx(samples_needed(3.0))
    averaged = by_torch(weighed, "local-sgd", 4)
    assert not grounds.weighed(averaged).is_judged
    assert weighed.weighed(averaged).samples == predicted(weighed, "local-sgd", 4).samples > 1.1
    large, *_ = candidates_of(LARGE_BATCH, weighed)
    assert large.samples == 0.0
    assert {one.samples for one in candidates_of(GPIPE.name, weighed)} == {1.0}


def test_a_heat_to_a_loss_is_of_what_is_judged_by_what_that_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replicas that update every few minibatches are not judged; depth is late."""
    grounds = replace(grounds_on(local_cluster(4, FAST)), objective="loss")
    straight = Placement.from_assignment([0, 0, 1, 1, 2, 2, 3, 3], range(4))
    replicated = Placement.from_assignment([0] * 4 + [1] * 4, [0, 0, 1, 1])
    deep = [Candidate(straight, Method(in_flight_per_link=links)) for links in range(9, -1, -1)]
    whole = Candidate(replicated, Method())
    monkeypatch.setitem(RIVALS, "pipedream", lambda _: iter([whole, *deep]))
    monkeypatch.setattr(Grounds, "seconds", lambda *_: (False, 1.0))
    found = candidates_of("pipedream", grounds)
    assert [one.candidate for one in found] == deep[:1:-1]
    monkeypatch.setitem(RIVALS, "pipedream", lambda _: iter([whole]))
    assert [one.candidate for one in candidates_of("pipedream", grounds)] == [whole]
