"""The comparison of agents: fair, repeatable, and its tables true."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
from typer.testing import CliRunner

from benchmarks.agent_study import instance as gap_instance
from benchmarks.agent_study.__main__ import app
from benchmarks.agent_study.comparison import Task, instance_of, profile_of, read_results
from benchmarks.agent_study.instance import Instance, with_errors
from benchmarks.agent_study.methods import METHODS, history_of
from benchmarks.agent_study.tables import Result, report
from drlpp.costs.synthetic_profiles import generate
from drlpp.errors import InvalidInput
from drlpp.io.documents import write_document
from drlpp.specs.cluster import Link
from tests.support.in_turns import fast_are

LINK = Link(bandwidth_bytes_per_second=2.5e8, latency_seconds=5e-5)


@pytest.fixture(autouse=True)
def _less_thorough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_instance, "_THOROUGH", 200)


def instance(**changes: object) -> Instance:
    return Instance.of("made-up", generate("blocks", 10, 0), 3, LINK, **changes)  # type: ignore


@pytest.mark.parametrize(
    "method",
    # The command's test below has "recalibrate", too.
    fast_are(
        ["evolution"], ["recalibrate", "planned-evolution", "evolution", "annealing", "random"]
    ),
)
def test_a_history_is_of_distinct_placements_and_never_rises(method: str) -> None:
    made = instance()
    history = history_of(METHODS[method], made, 8, 0)
    assert len(history) <= 8
    assert (numpy.diff(history) <= 0).all()
    assert history == history_of(METHODS[method], made, 8, 0)
    assert min(history) >= made.best_known * 0.95


def test_agents_are_not_told_what_is_not_declared() -> None:
    profile = generate("blocks", 10, 0)
    made = instance(
        speeds=[1.0, 0.5, 0.25],
        cores=2,
        noise=0.1,
        declared_profile=with_errors(profile, 0.3, 0),
        declared_link=Link(bandwidth_bytes_per_second=1e9),
    )
    told = made.declared.problem
    assert told.cluster.speeds == (1.0, 1.0, 1.0)
    assert told.cluster.cores_of == (None, None, None)
    assert told.cluster.within_host.bandwidth_bytes_per_second == 1e9
    assert told.workload.seconds.tolist() != pytest.approx(list(profile.seconds))
    assert made.cluster.speeds == (1.0, 0.5, 0.25)


def test_what_is_found_is_chosen_with_noise_and_judged_without() -> None:
    made = instance(noise=0.5)
    history = history_of(METHODS["random"], made, 20, 0)
    memory = made.memory()
    METHODS["random"](memory, made.declared, 20, 0)
    best = memory.best()
    assert best is not None
    assert history[-1] == made.seconds(best[0])
    assert history[-1] != best[1].seconds_per_minibatch
    # With so much noise something slower is chosen at some time.
    others = [history_of(METHODS["random"], made, 20, seed) for seed in range(8)]
    assert any((numpy.diff(other) > 0).any() for other in others)


def test_a_declared_profile_of_another_model_is_refused() -> None:
    with pytest.raises(InvalidInput, match="both have to be of the same graph"):
        instance(declared_profile=generate("blocks", 11, 0))


@pytest.mark.slow
def test_the_command_prints_gaps_as_json(tmp_path: Path) -> None:
    path = tmp_path / "made-up.json"
    write_document(path, generate("chain", 8, 0))
    arguments = ["--profile", str(path), "--accelerators", "3", "--bandwidth", "2.5e8"]
    arguments += ["--agent", "recalibrate", "--measurements", "4,8", "--seeds", "2"]
    done = CliRunner().invoke(app, ["gap", *arguments, "--speeds", "1,1,0.5", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [run["seed"] for run in found["runs"]] == [0, 1]
    for run in found["runs"]:
        for budget in ("4", "8"):
            assert run["gap"][budget] == pytest.approx(
                run["best_seconds"][budget] / found["optimum_seconds"] - 1
            )
            assert run["gap_to_best_known"][budget] >= -0.05
        assert run["best_seconds"]["8"] <= run["best_seconds"]["4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--agent", "alphazero"], "'alphazero' is unknown; there are guided"),
        (["--measurements", "many"], "expected numbers above 0, such as 50,100,200"),
        (["--bandwidth", "0"], "must be a number above 0"),
    ],
)
def test_bad_arguments_are_told(tmp_path: Path, arguments: list[str], message: str) -> None:
    path = tmp_path / "made-up.json"
    write_document(path, generate("chain", 8, 0))
    given = ["--profile", str(path), "--accelerators", "3", "--bandwidth", "2.5e8", *arguments]
    done = CliRunner().invoke(app, ["gap", *given])
    assert isinstance(done.exception, InvalidInput)
    assert message in str(done.exception)


def test_instances_of_the_study() -> None:
    task = Task(
        question="right",
        model="blocks-40-1",
        accelerators=4,
        bandwidth=1e9,
        method="random",
        seed=0,
    )
    right = instance_of(task)
    assert right.declared.problem.cluster == right.cluster
    wrong = instance_of(task.model_copy(update={"question": "wrong"}))
    link = wrong.declared.problem.cluster.within_host
    assert (
        link.bandwidth_bytes_per_second == 2 * wrong.cluster.within_host.bandwidth_bytes_per_second
    )
    ratios = numpy.array(wrong.declared_profile.seconds) / numpy.array(wrong.profile.seconds)
    assert 0.15 < numpy.log(ratios).std() < 0.45
    assert profile_of("layered-12-3") == generate("layered", 12, 3)


def result(method: str, seed: int, best: list[float], model: str = "a") -> Result:
    return Result(
        question="right",
        model=model,
        accelerators=4,
        bandwidth=1e9,
        method=method,
        seed=seed,
        distinct=400,
        wall_seconds=1.0,
        best_seconds=tuple(best),
        optimum_seconds=1.0,
        planner_seconds=1.1,
    )


def test_tables_compare_instance_by_instance(tmp_path: Path) -> None:
    results = []
    for model in "abcdef":
        for seed in (0, 1, 2):
            results.append(result("guided-policy", seed, [0.9, 0.8, 0.8, 0.8], model))
            results.append(result("random", seed, [1.0, 0.9, 0.8, 0.8], model))
    text = report(results, (50, 100, 200, 400))
    # Six instances, whatever the number of seeds.
    assert (
        "| random | 6 / 0 / 0, p = 0.016 | 6 / 0 / 0, p = 0.016 | 0 / 6 / 0 | 0 / 6 / 0 |" in text
    )
    assert "| guided-policy | 12.5% / 12% | 0.0% / 0% | 0.0% / 0% | 0.0% / 0% | 100% | 18 |" in text

    path = tmp_path / "results.jsonl"
    path.write_text(results[0].model_dump_json() + "\n" + '{"question": "ri')
    assert len(read_results(path)) == 1
