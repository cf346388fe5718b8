"""``drlpp.plan``: from a model, or from costs alone and without torch, to a plan."""

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import drlpp
from benchmarks.made_up import generate
from drlpp import Placement
from drlpp.costs.cost_table import profile_of_table, read_cost_table
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidFile, InvalidInput, ModelNote, NothingFits
from drlpp.io.documents import write_document
from drlpp.placement.plan import Plan
from drlpp.planners import PlanningProblem, Space, Vary, usually_varied
from drlpp.planners.plan import cluster_of, plan_or_way_out, planning_problem
from drlpp.planners.planning import SEARCH, baseline_plans
from drlpp.planners.search import Judge, Limits, search
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.cluster import Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.simulated_chains import chain

MILLISECONDS = (3.0, 1.0, 4.0, 1.0, 5.0, 9.0)
ROWS = [
    {
        "name": f"layer {number}",
        "forward_ms": time,
        "backward_ms": 2 * time,
        "output_bytes": 400_000,
        "parameter_bytes": 50_000_000,
    }
    for number, time in enumerate(MILLISECONDS)
]
LINK = Link(bandwidth_bytes_per_second=1e9, latency_seconds=1e-5)


def test_a_baseline_alone_names_what_is_faster() -> None:
    rows = [
        {"name": name, "forward_ms": 2.0, "backward_ms": 4.0, "output_bytes": 5e6}
        for name in ("first", "second")
    ]
    at_noam = drlpp.Method(in_flight_per_link=0)
    found = drlpp.plan(profile=rows, workers=2, bandwidth=1e9, planner="gpipe", method=at_noam)
    assert found.configuration == "1-1"
    assert found.others[0].found_by == "data-parallel"
    assert found.others[0].seconds_per_minibatch < found.seconds_per_minibatch
    searched = drlpp.plan(
        profile=rows, workers=2, bandwidth=1e9, method=at_noam, objective="seconds"
    )
    assert searched.seconds_per_minibatch <= found.others[0].seconds_per_minibatch


def test_costs_and_clusters_in_every_form_give_the_same_plan(tmp_path: Path) -> None:
    profile = profile_of_table(ROWS, model="costs")
    document = tmp_path / "profile.json"
    write_document(document, profile)
    table = tmp_path / "costs.csv"
    lines = [",".join(ROWS[0]), *(",".join(map(str, row.values())) for row in ROWS)]
    table.write_text("\n".join(lines))
    cluster = local_cluster(2, LINK)
    host = tmp_path / "cluster.json"
    write_document(host, cluster)
    expected = drlpp.plan(profile=ROWS, workers=2, bandwidth=1e9, latency=1e-5, planner="pipedream")
    for costs in (profile, document, str(document), table):
        for accelerators in (cluster, host):
            assert drlpp.plan(profile=costs, cluster=accelerators, planner="pipedream") == expected
    assert read_cost_table(table) == profile


def test_memory_counts_the_optimizer() -> None:
    given = {
        "profile": ROWS,
        "workers": 1,
        "bandwidth": 1e9,
        "memory": 50_000_000 * 6 * 3,
        "method": choose_method("sync"),
    }
    assert drlpp.plan(**given, optimizer=OptimizerSpec.parse("sgd", lr=0.1, momentum=0.0))
    with pytest.raises(NothingFits, match="misses"):
        drlpp.plan(**given)


def test_rows_that_repeat_and_rows_that_branch() -> None:
    graph = profile_of_table(
        [
            {"name": "stem", "forward_ms": 1, "backward_ms": 1},
            {"name": "left", "forward_ms": 1, "backward_ms": 1, "count": 2},
            {"name": "right", "forward_ms": 1, "backward_ms": 1, "reads": "stem"},
            {"name": "join", "forward_ms": 1, "backward_ms": 1, "reads": "left; right"},
        ]
    ).graph
    assert [op.name for op in graph.operators] == ["stem", "left.0", "left.1", "right", "join"]
    assert graph.predecessors == ((), (0,), (1,), (0,), (2, 3))


def after_one(**row: object) -> dict[str, Any]:
    """Costs with a row after a first one."""
    first = {"name": "a", "forward_ms": 1, "backward_ms": 1}
    return {"profile": [first, row], "workers": 2, "bandwidth": 1e9}


CLUSTER = local_cluster(2, LINK)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "name what to plan: a model, or profile="),
        ({"profile": ROWS}, "how many workers"),
        ({"profile": ROWS, "workers": 2}, "give bandwidth"),
        ({"profile": ROWS, "workers": CLUSTER}, "workers is a Cluster; expected a number"),
        ({"profile": ROWS, "cluster": CLUSTER, "bandwidth": 1e9}, "leave out bandwidth"),
        ({"profile": ROWS, "cluster": CLUSTER, "workers": 3}, "2 accelerators; leave out workers"),
        ({"profile": 3, "workers": 2, "bandwidth": 1e9}, "profile is a int; expected a Profile"),
        (
            {"profile": ROWS, "cluster": CLUSTER, "planner": "greedy"},
            "'greedy' is unknown; there are search, data-parallel, gpipe, pipedream",
        ),
        (after_one(name="b", forward_ms=1, backward_ms=1, reads="c"), "row 2: b reads 'c'"),
        (after_one(name="a", forward_ms=1, backward_ms=1), "row 2: a second 'a'"),
        (after_one(name="b", forward_ms=1), "row 2: field 'backward_ms'"),
        (after_one(name="b", forward_ms="fast", backward_ms=1), "field 'forward_ms': .* 'fast'"),
        (after_one(name="b", forward_ms=1, backward_ms=1, speed=2), "row 2: field 'speed'"),
    ],
)
def test_what_is_missing_or_wrong_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        drlpp.plan(**given)


def test_a_plan_of_a_task_is_trained_in_two_calls(tmp_path: Path) -> None:
    """Without a profile it is measured; what is trained is the caller's own module."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    inputs, targets = torch.randn(8, 6), torch.randint(3, (8,))
    task = drlpp.Task(network, (inputs,), targets, nn.functional.cross_entropy)
    plan = drlpp.plan(task, workers=2)
    assert plan.seconds_per_minibatch > 0
    assert plan.cluster is not None
    assert plan.cluster.accelerators == 2
    told = str(plan).splitlines()
    assert plan.text in told[0]
    assert any(line.startswith("plain on 1: ") for line in told)
    assert told[-1] == plan.verdict
    loader = DataLoader(TensorDataset(inputs.repeat(4, 1), targets.repeat(4)), batch_size=8)
    result = drlpp.PipelineTrainer(plan, out=tmp_path / "run").fit(loader, epochs=1)
    assert len(result.epochs) == 1
    network.load_state_dict(result.state_dict)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "name,foward_ms,backward_ms\na,1,2\n",
            "'foward_ms' is unknown; did you mean 'forward_ms'?",
        ),
        ("name,fast\na,1\n", "'fast' is unknown; there are name, forward_ms, "),
        ("name,forward_ms,\na,1,2\n", "column 3 has no name"),
        ("name;forward_ms;backward_ms\na;1;2\n", "expected columns that are separated by commas"),
        ("name,forward_ms,backward_ms\na,-1,2\n", "'forward_ms': Input should be greater than or"),
        ("name,forward_ms,backward_ms\na,nan,2\n", "'forward_ms': Input should be a finite number"),
        ("name,forward_ms,backward_ms\na,2e12,2\n", "'forward_ms': Input should be less than or"),
        ("name,forward_ms,backward_ms\na,1\n", "row 1: has fewer values than there are columns"),
    ],
)
def test_what_is_wrong_in_a_table_is_said_in_its_own_words(
    tmp_path: Path, text: str, said: str
) -> None:
    table = tmp_path / "costs.csv"
    table.write_text(text)
    with pytest.raises(InvalidFile, match=re.escape(said)):
        read_cost_table(table)


def test_minibatches_are_divided_where_nothing_fits_otherwise() -> None:
    layer = {"forward_ms": 1, "backward_ms": 2, "output_bytes": 1_000, "kept_bytes": 40_000_000}
    rows = [layer | {"name": name, "parameter_bytes": 100_000} for name in "abcd"]
    given: dict[str, Any] = {"profile": rows, "workers": 2, "bandwidth": 1e9}
    assert drlpp.plan(**given, memory=200e6).method.microbatches == 1
    with pytest.warns(ModelNote, match=r"planned with .*; with 1f1b.*fits into memory"):
        found = drlpp.plan(**given, memory=100e6)
    assert found.method.microbatches > 1 or found.method.recompute
    # Whoever says what may vary is told instead, with what would fit without a pipeline.
    cluster = cluster_of(2, None, 1e9, memory=100e6)
    problem, *_ = planning_problem(None, rows, cluster, DEFAULT_METHOD, None, "seconds", seed=0)
    space = Space(DEFAULT_METHOD, batch_size=4)
    with pytest.raises(NothingFits, match=r"misses .* Without a pipeline .* fits \(accelerators: "):
        plan_or_way_out(problem, space, "gpipe", fixed=set(Vary))
    with pytest.raises(NothingFits, match="misses"):
        drlpp.plan(**given, memory=1e6)


def test_why_nothing_was_found_is_told_whatever_else_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory need not be the reason, and what is wrong with the way out is none."""
    problem = PlanningProblem(Workload.of(chain(6, 6)), local_cluster(2, LINK))
    space, nothing = Space(DEFAULT_METHOD, batch_size=8), NothingFits("nothing can be run")
    found = Plan(Placement.from_assignment([0, 1], [0, 1]))
    best = Mock(side_effect=[nothing, InvalidInput("no way out"), nothing, found])
    monkeypatch.setattr("drlpp.planners.plan.best_plan", best)
    with pytest.raises(NothingFits, match="nothing can be run"):
        plan_or_way_out(problem, space, SEARCH)
    with pytest.warns(ModelNote, match=r"^planned with 1f1b.*; with 1f1b.*, nothing can be run$"):
        assert plan_or_way_out(problem, space, SEARCH) == found


def test_a_plan_is_found_where_the_model_fits_on_no_accelerator_alone() -> None:
    """With the usual patience nothing that fits is found; the search is more patient there."""
    workload = Workload.of(generate("layered", 14, 5))
    cluster = local_cluster(4, Link(bandwidth_bytes_per_second=1e9, latency_seconds=1e-5))
    alone = Placement.from_assignment([0] * len(workload), (0,))
    whole = PlanningProblem(workload, cluster).predict(alone).stages[0].memory_bytes
    small = [host.model_copy(update={"memory_bytes": 0.75 * whole}) for host in cluster.hosts]
    problem = PlanningProblem(workload, cluster.with_hosts(small))
    space = Space(DEFAULT_METHOD)
    with pytest.raises(NothingFits):
        search(Judge(problem, space), limits=Limits())
    assert search(Judge(problem, space))[0].seconds_per_minibatch == pytest.approx(0.134, rel=0.01)


def test_baselines_begin_with_the_fastest_of_unlike_accelerators() -> None:
    cluster = local_cluster(3, LINK, (0.2, 1.0, 1.0))
    problem = PlanningProblem(Workload.of(profile_of_table(ROWS)), cluster)
    plans = baseline_plans(problem, Space(DEFAULT_METHOD))
    (alone,) = (plan for plan in plans if plan.found_by == "one accelerator")
    assert alone.placement.accelerators == (1,)
    # Of what is as fast, the fewest stages come first.
    free = local_cluster(2, Link(bandwidth_bytes_per_second=1e300))
    rows = [{"name": name, "forward_ms": 1, "backward_ms": 2} for name in "ab"]
    work = Workload.of(profile_of_table(rows))
    plans = baseline_plans(PlanningProblem(work, free), Space(DEFAULT_METHOD))
    assert [plan.configuration for plan in plans[:2]] == ["2", "1-1"]
    assert plans[0].seconds_per_minibatch == pytest.approx(plans[1].seconds_per_minibatch)


def test_the_default_is_the_loss_for_which_microbatches_vary() -> None:
    """They cost nothing here, and make weights less late."""
    profile = chain(6, 6, 6, 6).model_copy(update={"batch_size": 8})
    options: dict[str, Any] = {"profile": profile, "workers": 4, "bandwidth": 1e9}
    found = drlpp.plan(**options)
    assert found.method.microbatches > 1
    assert drlpp.plan(**options, objective="seconds").method.microbatches == 1
    given = Method(microbatches=1, in_flight_per_link=0)
    assert drlpp.plan(**options, method=given).method == given
    # Where batches are normalised, that of a microbatch would be another.
    assert usually_varied(Method(), (), "loss", ["batch_norm"]) == {Vary.DEPTH}
    # What larger updates delay is not known.
    accumulating = Method(accumulate=2)
    by_seconds = drlpp.plan(**options, method=accumulating, objective="seconds")
    assert drlpp.plan(**options, method=accumulating) == by_seconds


@pytest.mark.parametrize(("between", "configuration"), [(4.0, "1-1"), (5.0, "1-1-1")])
def test_of_what_is_about_as_soon_at_the_loss_the_least_stale_is_taken(
    between: float, configuration: str
) -> None:
    """With staleness 2 plans expect 1.39 times the samples, with 1 1.18 times."""
    options: dict[str, Any] = {"profile": chain(8, between, 10), "workers": 3, "bandwidth": 1e12}
    method = Method(microbatches=1, in_flight_per_link=0)
    found = drlpp.plan(**options, method=method, replicate=False)
    assert found.configuration == configuration
    fastest = drlpp.plan(**options, method=method, replicate=False, objective="seconds")
    assert fastest.configuration == "1-1-1"
