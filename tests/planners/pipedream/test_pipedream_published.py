"""PipeDream's planner on its published profiles, against what its authors' code and paper say.

The values of ``code`` are those that the released optimizer computes (with the cost of activations,
compression ratio 1); it breaks ties at random, so only costs are compared with it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks.papers.pipedream_profile import read_pipedream_profile
from drlpp.costs.workload import Workload
from drlpp.placement.plan import Plan
from drlpp.planners.pipedream.pipedream import Cuts, Variant, pipedream
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.specs.cluster import Cluster, Host, Link, local_cluster
from tests.support.planning.public_data import PROFILES


@cache
def workload_of(model: str) -> Workload:
    return Workload.of(read_pipedream_profile(PROFILES / f"{model}.txt"))


def flat(accelerators: int, bandwidth: float) -> Cluster:
    return local_cluster(accelerators, Link(bandwidth_bytes_per_second=bandwidth))


def hosts(count: int, accelerators: int, within: float, between: float) -> Cluster:
    return Cluster(
        hosts=(Host(name="host", count=count, accelerators=accelerators),),
        within_host=Link(bandwidth_bytes_per_second=within),
        between_hosts=Link(bandwidth_bytes_per_second=between),
    )


FLAT_4 = flat(4, 1e9)
FLAT_16 = flat(16, 1.25e9)
HOSTS_16 = hosts(4, 4, 1e10, 1.25e9)
HOSTS_4 = hosts(2, 2, 1e10, 1e9)


def plan(
    model: str,
    cluster: Cluster,
    variant: Variant,
    cuts: Cuts | None = None,
    *,
    flat: bool = False,
    replicate: bool = True,
) -> Plan:
    problem = PlanningProblem(workload_of(model), cluster, replicate=replicate)
    return pipedream(problem, variant, cuts, flat)


def milliseconds(solution: Plan) -> float:
    assert solution.own_seconds is not None
    return solution.own_seconds * 1e3


@pytest.mark.parametrize(
    ("model", "cluster", "expected"),
    [
        ("vgg16", FLAT_4, 205.520896),
        ("alexnet", FLAT_4, 34.21714133333333),
        ("resnet50", FLAT_4, 162.880924),
        ("gnmt", FLAT_4, 25.868),
        ("resnext50", FLAT_4, 201.406532),
        ("vgg16", FLAT_16, 54.79489083076923),
        ("alexnet", FLAT_16, 15.0994944),
        ("resnet50", FLAT_16, 43.84779004444439),
        ("gnmt", FLAT_16, 17.125),
        ("resnext50", FLAT_16, 52.7891488),
        ("vgg16", HOSTS_16, 67.13399693333333),
        ("alexnet", HOSTS_16, 15.0994944),
        ("resnet50", HOSTS_16, 43.2084692),
        ("gnmt", HOSTS_16, 11.081),
        ("resnext50", HOSTS_16, 52.1714466),
        ("vgg16", HOSTS_4, 257.8131952),
        ("alexnet", HOSTS_4, 39.1418784),
        ("resnet50", HOSTS_4, 162.080564),
        ("gnmt", HOSTS_4, 25.868),
        ("resnext50", HOSTS_4, 198.222308),
    ],
)
def test_code_costs_what_the_released_optimizer_computes(
    model: str, cluster: Cluster, expected: float
) -> None:
    assert milliseconds(plan(model, cluster, "code")) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("model", "cluster", "configuration"),
    [
        ("vgg16", FLAT_4, "3-1"),
        ("alexnet", FLAT_4, "3-1"),
        ("resnet50", FLAT_4, "2-2"),
        ("gnmt", FLAT_4, "1-1-1-1"),
        ("vgg16", FLAT_16, "13-2-1"),
        ("alexnet", FLAT_16, "15-1"),
        ("resnet50", FLAT_16, "8-5-3"),
    ],
)
def test_configurations_of_the_released_optimizer(
    model: str, cluster: Cluster, configuration: str
) -> None:
    assert plan(model, cluster, "code").placement.configuration == configuration


PAGE = Path(__file__).parents[3] / "docs" / "papers.md"
FILES = {"VGG-16": "vgg16", "AlexNet": "alexnet", "ResNet-50": "resnet50", "GNMT-8": "gnmt"}
ROWS = re.findall(
    r"^\| ([\w-]+) \| (\d+) \| ([\d-]+) \| ([\d-]+) \| ([\d-]+) \| ([\d-]+) \|$",
    PAGE.read_text().partition("### PipeDream's planner against")[2],
    flags=re.MULTILINE,
)


@pytest.mark.parametrize(
    ("model", "accelerators", "shipped", "released", "on_one_level", "paper"), ROWS
)
def test_the_pages_table_of_shipped_configurations(
    model: str, accelerators: str, shipped: str, released: str, on_one_level: str, paper: str
) -> None:
    """All but ``shipped``, which PipeDream's repository has; it is what one of ours finds."""
    count, profile = int(accelerators), FILES[model]
    one_level = flat(count, 1.25e9)
    levels = flat(count, 1e10) if count == 4 else hosts(count // 4, 4, 1e10, 1.25e9)
    assert plan(profile, levels, "code").placement.configuration == released
    assert plan(profile, one_level, "code").placement.configuration == on_one_level
    assert plan(profile, one_level, "paper", "graph").placement.configuration == paper
    assert shipped in {released, on_one_level, paper}


def test_the_pages_table_has_every_shipped_configuration() -> None:
    assert [(model, int(count)) for model, count, *_ in ROWS] == [
        *(("VGG-16", count) for count in (4, 8, 16)),
        *(("AlexNet", count) for count in (4, 16)),
        *(("ResNet-50", count) for count in (4, 8, 16)),
        *(("GNMT-8", count) for count in (4, 12)),
    ]


def test_speedup_of_the_released_optimizer() -> None:
    one = workload_of("vgg16").seconds.sum()
    solution = plan("vgg16", FLAT_4, "code")
    assert one * 1e3 / milliseconds(solution) == pytest.approx(3.27, abs=0.005)


@pytest.mark.parametrize("cuts", ["chain", "graph"])
@pytest.mark.parametrize(
    ("model", "configuration"), [("vgg16", "15-1"), ("alexnet", "15-1"), ("resnet50", "16")]
)
def test_configurations_of_the_paper(model: str, configuration: str, cuts: Cuts) -> None:
    """pipedream table 1, "4x4 (A)"."""
    assert plan(model, FLAT_16, "paper", cuts).placement.configuration == configuration


def test_gnmt_is_straight_where_its_graph_is_cut() -> None:
    """pipedream table 1, GNMT-8 "1x4 (A)"; its skip connections leave a chain of two layers."""
    assert plan("gnmt", FLAT_4, "paper", "graph").placement.configuration == "1-1-1-1"
    assert len(plan("gnmt", FLAT_4, "paper", replicate=False).placement.stages) <= 2


def test_vgg16_keeps_its_fully_connected_layers_on_one_accelerator() -> None:
    """pipedream §5.2: "convolutional layers are replicated, fully connected layers are not"."""
    workload = workload_of("vgg16")
    for cluster in (FLAT_16, HOSTS_16):
        solution = plan("vgg16", cluster, "paper", flat=True)
        assert milliseconds(solution) == pytest.approx(44.2, abs=0.05)
        assert solution.placement.configuration == "15-1"
        convolutions, rest = (
            [workload.names[operator] for operator in stage.operators]
            for stage in solution.placement.stages
        )
        assert not any(name.startswith("Linear") for name in convolutions)
        assert sum(name.startswith("Linear") for name in rest) == 3
        assert not any(name.startswith(("Conv", "MaxPool")) for name in rest)


@pytest.mark.parametrize(("model", "configuration"), [("vgg16", "15-1"), ("resnet50", "8-8")])
def test_the_formula_as_it_is_printed(model: str, configuration: str) -> None:
    assert plan(model, FLAT_16, "printed").placement.configuration == configuration


@pytest.mark.parametrize("variant", ["paper", "printed", "code"])
@pytest.mark.parametrize("model", ["vgg16", "gnmt", "resnet50"])
def test_straight_pipelines(model: str, variant: Variant) -> None:
    for cluster in (FLAT_4, HOSTS_4):
        solution = plan(model, cluster, variant, replicate=False)
        stages = solution.placement.stages
        assert {len(stage.accelerators) for stage in stages} == {1}
        longest = max(workload_of(model).seconds[list(stage.operators)].sum() for stage in stages)
        assert milliseconds(solution) >= longest * 1e3 * (1 - 1e-9)
