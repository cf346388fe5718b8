"""The study of scale: its clusters and models, what it extrapolates, and a small row of each."""

from dataclasses import fields
from itertools import pairwise

import pytest

from benchmarks.scale import workers
from benchmarks.scale.limited import limited
from benchmarks.scale.planning import ASKED, Planned, Row, Simulated, plan, play, table_of
from benchmarks.scale.problems import WORKLOADS, gpt_blocks, gpt_operators, racks
from drlpp.planners.best_simulated import _counts


@pytest.mark.parametrize(("accelerators", "in_racks"), [(64, 1), (1024, 4), (16_384, 64)])
def test_clusters_have_racks_of_256_accelerators(accelerators: int, in_racks: int) -> None:
    cluster = racks(accelerators)
    assert cluster.accelerators == accelerators
    assert len(set(cluster.rack_of)) == in_racks
    assert len(cluster.host_names) == accelerators // 8
    assert cluster.level(0, 7) == 0
    assert cluster.level(0, 8) == 1
    if in_racks > 1:
        assert cluster.level(255, 256) == 2


def test_the_model_has_the_parameters_and_operations_of_gpt_3() -> None:
    for workload in (gpt_blocks(), gpt_operators()):
        parameters = workload.parameter_bytes.sum() / 2
        assert parameters == pytest.approx(175e9, rel=0.01)
        # Six operations for a parameter and token; the embedding is only looked up.
        operations = workload.seconds.sum() * 1.5e14
        assert operations == pytest.approx(6 * 2048 * 175e9, rel=0.03)
    assert [len(make()) for make in WORKLOADS.values()] == [98, 482, 200]


def test_what_is_extrapolated_lies_on_the_line_through_the_two_largest() -> None:
    names = [field.name for field in fields(workers.Row)]
    rows = [
        workers.Row(**{**dict.fromkeys(names, 2.0 * count + 7.0 * (count < 8)), "workers": count})
        for count in (4, 16, 64)
    ]
    found = workers.extrapolated(rows, 1024)
    assert found.workers == 1024
    assert found.command_seconds == pytest.approx(2048)


def test_a_planner_and_the_simulation_of_what_it_finds() -> None:
    found = plan("GPT-3, 98 blocks", 64, "pipedream")
    assert isinstance(found, Planned)
    played = play("GPT-3, 98 blocks", 64, found.placement)
    assert isinstance(played, Simulated)
    assert played.period is not None
    assert played.seconds >= found.seconds * 0.999
    assert "pipedream" in ASKED


@pytest.mark.system
def test_a_step_that_takes_too_long_is_ended() -> None:
    spent = limited(1, sum, Endless())
    assert spent.obstacle == "not within 1 s"
    row = Row("a model", 64, "exact", spent, None)
    assert table_of([row])["planned in"].tolist() == ["not within 1 s"]
    assert limited(60, sum, [1, 2]).value == 3


class Endless:
    """Numbers without an end."""

    def __iter__(self) -> "Endless":
        return self

    def __next__(self) -> int:
        return 1


@pytest.mark.parametrize("most", [1, 2, 4, 64, 70, 16_384])
def test_many_accelerators_are_not_all_counted(most: int) -> None:
    counts = list(_counts(most))
    assert counts == sorted(set(counts))
    assert counts[-1] == most
    assert counts[: min(most, 64)] == list(range(1, min(most, 64) + 1))
    assert len(counts) < 300
    assert all(b <= 1.04 * a or b - a == 1 for a, b in pairwise(counts))
