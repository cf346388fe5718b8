"""Rivals qualify, contenders race, and what was measured is never measured again."""

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from drlpp.cli.descriptions import describe
from drlpp.errors import InvalidInput
from drlpp.io.documents import read_document
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.racing.comparison import Comparison, compare
from drlpp.racing.contenders import Contender
from drlpp.racing.rivals import PLAIN, best_measured
from drlpp.runtime.ipc.protocol import ParallelWay
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster
from tests.support.in_turns import fast_are
from tests.support.measured import measurement

PIPELINE = Method()
CLUSTER = local_cluster(2, Link(bandwidth_bytes_per_second=1e9))
SYNC = Method(schedule="gpipe", policy="sync")
HALVES = Placement.from_assignment([0, 0, 1, 1], [0, 1])
SAME_HALVES = Placement(
    stages=tuple(
        stage.model_copy(update={"operators": stage.operators[::-1]}) for stage in HALVES.stages
    )
)
WHOLE = Placement.from_assignment([0] * 4, [0, 0])
UNEVEN = Placement.from_assignment([0, 1, 1, 1], [0, 1])

Key = tuple[Placement, Method] | int | str
"""What ran: a placement and its method, the threads of plain PyTorch, or torch's parallelism."""


class FakeSession:
    """Seconds by what runs, a little more in every round; dies at a given run."""

    def __init__(self, seconds: dict[Key, float], dies_at: int = -1) -> None:
        self.captured = SimpleNamespace(reference="made-up")
        self.speeds = (1.0, 1.0)
        self.seconds = seconds
        self.dies_at = dies_at
        self.measured: list[Key] = []

    def measure(self, candidate: Candidate, minibatches: int) -> Outcome:
        return self.outcome((candidate.placement.canonical, candidate.method), minibatches)

    def measure_parallel(
        self, way: str, workers: int, minibatches: int, method: Method, every: int
    ) -> Outcome:
        return self.outcome(way, minibatches)

    def outcome(self, key: Key, minibatches: int) -> Outcome:
        if len(self.measured) == self.dies_at:
            raise KeyboardInterrupt
        if self.seconds[key] < 0:
            raise InvalidInput("a minibatch of 3 cannot be divided into 2 microbatches")
        if self.seconds[key] == 0:
            return FailedMeasurement(failure="worker lost", reason="worker 1 was killed")
        self.measured.append(key)
        seconds = self.seconds[key] * (1 + 0.001 * (self.measured.count(key) % 3))
        return measurement(seconds, 0).model_copy(update={"minibatches": minibatches})


CONTENDERS = [
    Contender(found_by="tuned", placement=HALVES, method=PIPELINE),
    Contender(found_by="tuned", placement=UNEVEN, method=PIPELINE),
    Contender(found_by="data-parallel", placement=WHOLE, method=SYNC),
    Contender(found_by="gpipe", placement=HALVES, method=SYNC),
    Contender(found_by="pipedream", placement=SAME_HALVES, method=PIPELINE),
]
SECONDS = {
    (HALVES, PIPELINE): 1.0,
    (UNEVEN, PIPELINE): 1.2,
    (WHOLE, SYNC): 2.0,
    (HALVES, SYNC): 3.0,
}


@pytest.fixture(autouse=True)
def _fake_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(session: FakeSession, one: Contender, minibatches: int) -> Outcome:
        assert one.threads is not None
        return session.outcome(one.threads, minibatches)

    monkeypatch.setattr("drlpp.racing.rivals.measure_plain", measure)


def compared(
    session: FakeSession,
    path: Path,
    rounds: int = 5,
    contenders: Sequence[Contender] = (),
    heats: Sequence[Sequence[Contender]] = (),
) -> Comparison:
    grounds: Any = SimpleNamespace(session=session, method=PIPELINE)

    def choose() -> list[Contender]:
        found = []
        for heat in heats:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("drlpp.racing.rivals.candidates_of", lambda *_, heat=heat: [*heat])
                found.append(best_measured(heat[0].found_by, grounds, 2))
        return [one for one in found if one is not None]

    return compare(
        session,  # type: ignore[arg-type]
        contenders or CONTENDERS,
        choose,
        cluster=CLUSTER,
        rounds=rounds,
        minibatches=7,
        path=path,
    )


def shown(comparison: Comparison) -> str:
    console = Console(width=120, file=io.StringIO(), markup=False)
    console.print(describe(comparison))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_alike_contenders_are_measured_once_for_all(tmp_path: Path) -> None:
    """Also one that comes out of a heat, in which it is alone."""
    session, path = FakeSession(SECONDS), tmp_path / "comparison.json"
    comparison = compared(session, path, contenders=CONTENDERS[:4], heats=[CONTENDERS[4:]])
    assert read_document(path, Comparison) == comparison
    keys = list(SECONDS)
    assert session.measured == [*keys, *keys[::-1], *keys, *keys[:2][::-1]]
    assert [len(c.measurements) for c in comparison.contenders] == [4, 4, 3, 3]
    verdict = comparison.verdict
    assert verdict is not None
    # PipeDream's planner found the agent's placement: they are one contender, by both names.
    assert comparison.contenders[verdict.fastest].found_by == "tuned, pipedream"
    both = "the agent and a rival have found the same, which is the fastest: tuned, pipedream (1-1)"
    assert both in shown(comparison)
    assert shown(comparison).count("tuned, pipedream ") == 1 + shown(comparison).count(
        "tuned, pipedream ("
    )


def test_what_fails_or_cannot_run_drops_out(tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    session = FakeSession(SECONDS | {(HALVES, PIPELINE): 0.0, (HALVES, SYNC): -1.0})
    comparison = compared(session, path)
    verdict = comparison.verdict
    assert verdict is not None
    assert comparison.contenders[verdict.fastest].placement == UNEVEN
    reasons = [contender.failure for contender in comparison.contenders]
    assert reasons[0] == "worker 1 was killed"
    assert "pipedream: worker 1 was killed" in shown(comparison)
    assert "cannot be divided" in (reasons[3] or "")
    again = FakeSession({})
    assert compared(again, path) == comparison
    nothing = compared(FakeSession(dict.fromkeys(SECONDS, 0.0)), tmp_path / "nothing.json")
    assert nothing.verdict is None
    assert "faster" not in shown(nothing)


GPIPES = [
    Contender(
        found_by="gpipe", placement=HALVES, method=SYNC.model_copy(update={"microbatches": m})
    )
    for m in (1, 2, 4)
]
PLAINS = [Contender(found_by=PLAIN, method=PIPELINE, threads=threads) for threads in (1, 2)]
HEATS = [PLAINS, GPIPES, [Contender(found_by="pipedream", placement=UNEVEN, method=PIPELINE)]]
OWN = CONTENDERS[:1]
ALL_SECONDS: dict[Key, float] = {
    **SECONDS,
    **{
        (HALVES, gpipe.method): seconds
        for gpipe, seconds in zip(GPIPES, (3.0, 2.5, 4.0), strict=True)
    },
    1: 1.8,
    2: 1.1,
}


def with_heats(session: FakeSession, path: Path) -> Comparison:
    return compared(session, path, contenders=OWN, heats=HEATS)


def test_the_best_of_every_kind_enters_the_race(tmp_path: Path) -> None:
    session = FakeSession(ALL_SECONDS)
    comparison = with_heats(session, tmp_path / "comparison.json")
    assert [c.found_by for c in comparison.contenders] == ["tuned", PLAIN, "gpipe", "pipedream"]
    assert [c.configuration for c in comparison.contenders] == [
        "1-1",
        "2 threads",
        "1-1, M = 2",
        "1-1",
    ]
    threads = [key for key in session.measured if isinstance(key, int)]
    assert threads[:6] == [1, 2, 2, 1, 1, 2], "in turns"
    # One that is alone qualifies without running.
    assert not comparison.rivals[2].measurements
    text = " ".join(shown(comparison).split())
    assert (
        "tuned (1-1) trains a minibatch 1.10× faster than plain PyTorch (2 threads) (95% CI 1.10"
        in text
    )
    # What heats measured does not count in the race.
    lengths = [[m.minibatches for m in c.measurements] for c in comparison.contenders]
    assert {number for found in lengths for number in found} == {7, 8 * 7}
    assert len([found for found in lengths if 8 * 7 in found]) <= 2, "only the last two run long"
    assert {m.minibatches for c in comparison.rivals for m in c.measurements} == {2}
    table = shown(comparison).split("tuned")[1].splitlines()[0]
    assert table.split()[-2:] == ["1.10×", "1.10×"], "over the best rival, over plain PyTorch"


def test_torchs_own_data_parallelism_may_win_and_averaging_is_not_judged(tmp_path: Path) -> None:
    ways: tuple[ParallelWay, ...] = ("local-sgd", "ddp", "fsdp")
    one = Contender(found_by="", every=8, processes=2, method=PIPELINE)
    own = [one.model_copy(update={"found_by": way, "way": way}) for way in ways]
    seconds = ALL_SECONDS | {"local-sgd": 0.1, "ddp": 0.9, "fsdp": 30.0}
    path, given = tmp_path / "comparison.json", {"contenders": [*OWN, *own], "heats": HEATS}
    comparison = compared(FakeSession(seconds), path, **given)  # type: ignore[arg-type]
    *_, last = comparison.contenders
    assert (last.way, len(last.seconds)) == ("local-sgd", 3)
    text = " ".join(shown(comparison).split())
    assert last.beside(PIPELINE) == "2 processes, weights averaged every 8 minibatches"
    assert "ddp (2 processes) trains a minibatch 1.11× faster than tuned (1-1) (95% CI" in text
    assert "use torch's DistributedDataParallel on 2 accelerators: no other candidate" in text
    assert "faster than local-sgd" not in text
    (slow,) = (one for one in comparison.contenders if one.way == "fsdp")
    assert [m.minibatches for m in slow.measurements] == [7, 2, 2], "what is slow is short"
    assert compared(FakeSession({}), path, **given) == comparison  # type: ignore[arg-type]


@pytest.mark.parametrize("dies_at", fast_are([13, 25], range(13, 27, 2)))
def test_interrupted_races_go_on(tmp_path: Path, dies_at: int) -> None:
    path = tmp_path / "comparison.json"
    first = FakeSession(ALL_SECONDS, dies_at)
    with pytest.raises(KeyboardInterrupt):
        with_heats(first, path)
    second = FakeSession(ALL_SECONDS)
    second.measured = list(first.measured)
    whole = FakeSession(ALL_SECONDS)
    assert with_heats(second, path) == with_heats(whole, tmp_path / "whole.json")
    assert second.measured == whole.measured
    written = path.read_text()
    assert with_heats(FakeSession({}), path) == read_document(path, Comparison)
    assert path.read_text() == written


def test_where_plain_pytorch_is_faster_compiled_everything_is(tmp_path: Path) -> None:
    def compiled(method: Method) -> Method:
        return method.model_copy(update={"compiled": True})

    plain = PLAINS[-1]
    faster = plain.model_copy(update={"threads": 3, "method": compiled(plain.method)})
    zero_bubble = Method(schedule="zb-h1", policy="sync", microbatches=2)
    own = [*OWN, Contender(found_by="tuned", placement=HALVES, method=zero_bubble)]
    seconds: dict[Key, float] = {
        **ALL_SECONDS,
        3: 0.5,
        (HALVES, zero_bubble): 2.0,
        **{
            (key[0], compiled(key[1])): took / 2
            for key, took in ALL_SECONDS.items()
            if isinstance(key, tuple)
        },
    }
    heats = [[*PLAINS, faster], *HEATS[1:]]
    path = tmp_path / "comparison.json"
    comparison = compared(FakeSession(seconds), path, contenders=own, heats=heats)
    halves = [one for one in comparison.contenders if one.method.schedule == "zb-h1"]
    assert len(halves) == 1, "its backwards come in halves"
    # GPipe is more than twice as slow as plain PyTorch, as it is.
    as_they_are = [one for one in comparison.contenders if not one.method.compiled]
    assert [one.found_by for one in as_they_are] == ["tuned", "gpipe"]
    assert len(comparison.contenders) == 5
    assert "(3 threads, compiled)" in " ".join(shown(comparison).split())


def test_what_is_compiled_to_a_loss_goes_by_what_that_costs(tmp_path: Path) -> None:
    """Neither late weights nor updates that are not judged make others hopeless by seconds."""
    method = PLAINS[0].method.model_copy(update={"compiled": True})
    plain = PLAINS[0].model_copy(update={"method": method, "threads": 3})
    late = [
        Contender(found_by="pipedream", placement=placement, method=PIPELINE, samples=samples)
        for placement, samples in ((HALVES, 30.0), (UNEVEN, 30.0), (HALVES, 0.0), (UNEVEN, 0.0))
    ]
    seconds: dict[Key, float] = {
        **ALL_SECONDS,
        3: 1.0,
        (HALVES, PIPELINE): 0.1,
        (UNEVEN, PIPELINE): 0.2,
    }
    seconds |= {
        (key[0], key[1].model_copy(update={"compiled": True})): took
        for key, took in seconds.items()
        if isinstance(key, tuple)
    }
    for number, stale in enumerate((late[:2], late[2:])):
        session, path = FakeSession(seconds), tmp_path / f"{number}.json"
        heats = [[PLAINS[0], plain], GPIPES, stale]
        found = compared(session, path, contenders=OWN, heats=heats).contenders
        assert [one.method.compiled for one in found if one.found_by == "gpipe"] == [True]


def test_compiling_has_to_pay(tmp_path: Path) -> None:
    """What is 2% slower as it is is taken; what is 5% slower is not."""
    as_it_is = PLAINS[0]
    method = as_it_is.method.model_copy(update={"compiled": True})
    compiled = as_it_is.model_copy(update={"threads": 2, "method": method})
    heats = [[as_it_is, compiled]]
    for number, (seconds, chosen) in enumerate([(1.02, False), (1.05, True), (0.0, True)]):
        took = {1: seconds, 2: 1.0, (HALVES, method): 1.0}
        session, path = FakeSession(ALL_SECONDS | took), tmp_path / f"{number}.json"
        *_, plain = compared(session, path, contenders=OWN, heats=heats).contenders
        assert plain.method.compiled == chosen


def test_a_race_to_a_loss_weighs_the_samples_that_late_weights_need(tmp_path: Path) -> None:
    late = CONTENDERS[0].model_copy(update={"samples": 2.5})
    unknown = CONTENDERS[1].model_copy(update={"samples": 0.0})
    contenders = [late, unknown, CONTENDERS[2]]
    comparison = compared(FakeSession(SECONDS), tmp_path / "c.json", contenders=contenders)
    assert read_document(tmp_path / "c.json", Comparison) == comparison
    assert comparison.verdict is not None
    assert [one.found_by for one in comparison.contenders] == ["tuned", "data-parallel", "tuned"]
    assert comparison.verdict.fastest == 1
    text = " ".join(shown(comparison).split())
    assert "data-parallel (2, M = 1) reaches a loss 1.25× faster than tuned (1-1)" in text
    assert "2.50×" in text
    assert "not trained here" in text
    assert "reaches" not in shown(compared(FakeSession(SECONDS), tmp_path / "other.json"))
