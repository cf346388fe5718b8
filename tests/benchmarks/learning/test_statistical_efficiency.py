"""The study of statistical efficiency: its models, data, runs, file of results and verdicts."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cells import Where, all_of, run_cells
from benchmarks.deep_models import VOCABULARY, encode, even_stages, topics_text
from benchmarks.learning.comparisons import Verdict, compare
from benchmarks.report import write_between
from benchmarks.statistical_efficiency import report as study_report
from benchmarks.statistical_efficiency import runs as study_runs
from benchmarks.statistical_efficiency.methods import METHODS
from benchmarks.statistical_efficiency.orderings import (
    ORDERINGS,
    TABLE_IV,
    TABLE_IV_METHODS,
)
from benchmarks.statistical_efficiency.report import (
    by_cell,
    comparison_of,
    report,
    score,
    summary,
)
from benchmarks.statistical_efficiency.runs import (
    BATCH_SIZE,
    SEARCH_SEED,
    Job,
    Result,
    best_rate,
    minibatch_order,
    read_results,
    run_job,
    search_jobs,
    study_jobs,
)
from benchmarks.statistical_efficiency.tasks import SEQUENCE_LENGTH, TASKS
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import InvalidFile, InvalidInput
from drlpp.runtime import Minibatches, run_reference
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

RATES = {(task, optimizer): 0.01 for task in TASKS for optimizer in ("sgd", "adam", "adamw")}


@pytest.fixture(scope="module", params=TASKS)
def captured(request: pytest.FixtureRequest) -> CapturedModel:
    return capture(TASKS[request.param].reference(BATCH_SIZE))


@pytest.mark.parametrize("depth", [4, 8, 16])
def test_models_are_cut_into_stages_that_all_hold_weights(
    captured: CapturedModel, depth: int
) -> None:
    placement = even_stages(captured.graph, depth)
    placement.validate_for(captured.graph, depth)
    assert placement.configuration == "-".join("1" * depth)
    weighted = [
        sum(captured.graph.operators[i].parameter_bytes > 0 for i in stage.operators)
        for stage in placement.stages
    ]
    assert min(weighted) >= 1
    assert max(weighted) - min(weighted) <= 1
    # A straight pipeline: stages are runs of operators, and each sends to the next.
    assert [i for stage in placement.stages for i in stage.operators] == list(
        range(len(captured.graph))
    )
    edges = placement.pipeline(captured.graph).edges
    assert {(edge.source, edge.target) for edge in edges} >= {(k, k + 1) for k in range(depth - 1)}


def test_text_has_the_documented_shape() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 96
    data = topics_text(SEQUENCE_LENGTH)
    for samples in data:
        assert samples.inputs[0].shape == samples.targets.shape == (len(samples), SEQUENCE_LENGTH)
        assert samples.targets.dtype == torch.int64
        assert 0 <= samples.targets.min() <= samples.targets.max() < len(VOCABULARY)
        # The target is the character that follows, over the ends of sequences as well.
        inputs = samples.inputs[0].flatten()
        assert torch.equal(samples.targets.flatten()[:-1], inputs[1:])
    assert len(data.test) / (len(data.train) + len(data.test)) == pytest.approx(0.1, abs=0.001)
    assert len(data.train) > 300 * BATCH_SIZE


def test_unknown_characters_are_read_as_question_marks() -> None:
    assert "".join(VOCABULARY[i] for i in encode("a “b”\n\t")) == "a ?b?\n?"


@given(st.integers(BATCH_SIZE, 200), st.integers(1, 3), st.integers(0, 9))
def test_every_epoch_sees_a_sample_at_most_once(samples: int, epochs: int, seed: int) -> None:
    order = minibatch_order(samples, epochs, seed)
    assert order.shape == (epochs * (samples // BATCH_SIZE), BATCH_SIZE)
    for epoch in order.chunk(epochs):
        assert len(epoch.unique()) == epoch.numel()
    assert torch.equal(order, minibatch_order(samples, epochs, seed))


def test_2bw_is_a_delay_of_one_whatever_the_depth() -> None:
    """4 stages, with minibatches in 4 parts, give the weights of vertical sync on 2 stages."""
    task = TASKS["digits"]
    data = task.load()
    order = minibatch_order(len(data.train), 1, 0)[:6]
    optimizer = OptimizerSpec.parse("sgd", lr=0.01)
    states = []
    for parts, depth, method in (
        (4, 4, Method(policy="2bw", accumulate=4)),
        (1, 2, METHODS["2BW"].build(6)),
    ):
        captured = capture(task.reference(BATCH_SIZE // parts), seed=0)
        portions = order.reshape(len(order) * parts, BATCH_SIZE // parts)
        states.append(
            run_reference(
                captured,
                even_stages(captured.graph, depth),
                Minibatches(data.train.inputs, data.train.targets, portions),
                len(portions),
                method=method,
                optimizer=optimizer,
            ).state
        )
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-3, atol=1e-5)
        assert not torch.equal(value, captured.state[name]) or "norm" in name


def test_jobs_are_distinct_and_some_methods_run_at_no_depth() -> None:
    jobs = study_jobs(RATES, METHODS)
    assert len(jobs) == len(set(jobs))
    assert not set(jobs) & set(search_jobs())
    for job in jobs:
        assert (job.depth is None) == (METHODS[job.method].stages is not None)
    once = sum(method.stages is not None for method in METHODS.values())
    assert len(jobs) == len(RATES) * 5 * (3 * (len(METHODS) - once) + once)


def test_a_run_is_plain_training_on_the_same_samples_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GPipe with T = 1 has no delay.
    monkeypatch.setattr(study_runs, "minibatch_order", lambda *given: minibatch_order(*given)[:3])
    job = Job(task="digits", optimizer="sgd", learning_rate=0.01, method="GPipe", depth=4, seed=2)
    result = run_job(job)

    data = TASKS["digits"].load()
    module = TASKS["digits"].reference(BATCH_SIZE).build(seed=2).module
    optimizer = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
    order = minibatch_order(len(data.train), 9, 2)[:3]
    losses = []
    for indices in order:
        optimizer.zero_grad()
        outputs = module(data.train.inputs[0][indices])
        loss = torch.nn.functional.cross_entropy(outputs, data.train.targets[indices])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    outputs = module(*data.test.inputs)
    held_out = torch.nn.functional.cross_entropy(outputs, data.test.targets).item()
    correct = (outputs.argmax(1) == data.test.targets).float().mean().item()
    tenth = losses[-1:]
    assert result.training_loss == pytest.approx(sum(tenth) / len(tenth), rel=1e-4)
    assert result.loss == pytest.approx(held_out, rel=1e-4)
    assert result.accuracy == pytest.approx(correct, abs=0.004)


def test_the_best_rate_stays_away_from_where_training_diverges() -> None:
    def searched(rate: float, loss: float | None) -> Result:
        job = Job(
            task="text",
            optimizer="sgd",
            learning_rate=rate,
            method="GPipe",
            depth=None,
            seed=SEARCH_SEED,
        )
        return Result(job=job, loss=loss, accuracy=None, training_loss=loss, seconds=1)

    found = [searched(0.03, 2.2), searched(0.1, 2.0), searched(0.3, 1.8)]
    assert best_rate(found) == 0.3
    assert best_rate([*found, searched(1.0, None)]) == 0.1


def test_results_are_kept_and_not_made_again(tmp_path: Path) -> None:
    jobs = study_jobs({("digits", "sgd"): 0.1}, ["PipeOptim"], depths=(4,), seeds=(0, 1))
    path = tmp_path / "results.jsonl"
    complete = _result(jobs[0], 0.9)
    half = _result(jobs[1], 0.8).model_dump_json()[:50]
    path.write_text(complete.model_dump_json() + "\n" + half)
    assert read_results(path) == [complete]
    told: list[Result] = []
    wanted = all_of(jobs[:1], lambda result: result.job)
    run_cells(run_job, wanted, path, read_results, Where(), told.append)
    assert not told
    assert path.read_text() == complete.model_dump_json() + "\n"


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"job": 3}\n')
    with pytest.raises(InvalidFile, match=r"results\.jsonl, line 1: field 'job'"):
        read_results(path)


def test_verdicts_follow_the_paired_differences() -> None:
    # The seeds differ much more than the methods do, which only pairing sees through.
    base = {0: 10.0, 1: 50.0, 2: 90.0, 3: 30.0}
    better = {
        seed: value + gain for (seed, value), gain in zip(base.items(), (1, 2, 1, 2), strict=True)
    }
    found = compare(better, base)
    assert found is not None
    assert (found.verdict, found.mean) == (Verdict.SHOWS, 1.5)
    assert found.standard_error == pytest.approx((1 / 3) ** 0.5 / 2)
    reverse = compare(base, better)
    assert reverse is not None
    assert (reverse.verdict, reverse.mean) == (Verdict.DOES_NOT_SHOW, -1.5)
    mixed = {
        seed: value + gain for (seed, value), gain in zip(base.items(), (2, -1, 2, -1), strict=True)
    }
    noise = compare(mixed, base)
    assert noise is not None
    assert noise.verdict is Verdict.WITHIN_NOISE
    same = compare(base, base)
    assert same is not None
    assert same.verdict is Verdict.WITHIN_NOISE


@pytest.mark.parametrize(
    ("within", "verdict"),
    [(4.0, Verdict.SHOWS), (1.5, Verdict.WITHIN_NOISE), (0.3, Verdict.DOES_NOT_SHOW)],
)
def test_alike_is_judged_by_the_difference_that_does_not_matter(
    within: float, verdict: Verdict
) -> None:
    # The 95% confidence interval is 1.5 ± 3.182 · 0.2887, so 0.58 to 2.42.
    found = compare({0: 1, 1: 2, 2: 1, 3: 2}, dict.fromkeys(range(4), 0.0), alike_within=within)
    assert found is not None
    assert found.verdict is verdict


def test_two_pairs_are_the_least() -> None:
    assert compare({0: 1.0, 1: 2.0}, {1: 1.0, 2: 3.0}) is None


def test_diverged_runs_are_told_and_count_as_guessing() -> None:
    (job,) = study_jobs({("text", "sgd"): 0.1}, ["vanilla"], depths=(16,), seeds=(0,))
    lost = Result(job=job, loss=None, accuracy=None, training_loss=None, seconds=1)
    fine = Result(job=job, loss=1.5, accuracy=None, training_loss=1.4, seconds=1)
    worse = Result(job=job, loss=60.0, accuracy=None, training_loss=90.0, seconds=1)
    assert score(lost) == score(worse) == pytest.approx(-4.5643, abs=1e-4)
    assert summary([fine, fine]) == "1.500 ± 0.000"
    assert summary([fine, lost, worse]) == "1.500 (2 of 3 diverged)"
    assert summary([lost, worse]) == "diverged (2 of 2)"
    assert summary([]) == "–"


def _result(job: Job, accuracy: float) -> Result:
    return Result(job=job, loss=1.0, accuracy=accuracy, training_loss=0.5, seconds=1)


def test_orderings_of_made_up_results() -> None:
    jobs = study_jobs({("digits", "sgd"): 0.1}, METHODS)
    wiggle = {0: 0.0, 1: 0.01, 2: -0.01, 3: 0.02, 4: -0.02}
    # PipeOptim beats PipeDream in all but the deepest pipelines, and vanilla nowhere.
    level = {"GPipe": 0.9, "PipeDream": 0.8, "PipeOptim": 0.85, "vanilla": 0.85}
    results = []
    for job in jobs:
        mean = 0.95 if (job.method, job.depth) == ("PipeDream", 16) else level.get(job.method, 0.5)
        own = 0.001 * ((job.seed * 7 + len(job.method)) % 5)
        results.append(_result(job, mean + wiggle[job.seed] + own))
    cells = by_cell(results)
    assert len(cells["digits", "sgd", "GPipe", 16]) == 5, "GPipe stands at every depth"
    by_text = {ordering.text: ordering for ordering in ORDERINGS}
    shown, _, refuted = (
        comparison_of(by_text["PipeOptim ≥ PipeDream, SGDM"], "digits", depth, cells)
        for depth in (4, 8, 16)
    )
    vanilla = comparison_of(by_text["PipeOptim > vanilla, SGDM"], "digits", 8, cells)
    assert shown is not None
    assert refuted is not None
    assert vanilla is not None
    assert (shown.verdict, shown.mean) == (Verdict.SHOWS, pytest.approx(5, abs=0.3))
    assert refuted.verdict is Verdict.DOES_NOT_SHOW
    assert vanilla.verdict is Verdict.WITHIN_NOISE
    assert comparison_of(by_text["PipeOptim > vanilla, Adam"], "digits", 8, cells) is None
    text = report(results)
    line = next(row for row in text.splitlines() if row.startswith("| PipeOptim ≥ PipeDream"))
    assert line.endswith("| – | – | – | shows 2, does not show 1 |")


def test_every_row_of_table_iv_is_complete() -> None:
    assert {len(values) for _, _, values in TABLE_IV} == {len(TABLE_IV_METHODS)}


def test_the_report_goes_between_the_marks(tmp_path: Path) -> None:
    document = tmp_path / "study.md"
    document.write_text(f"before\n{study_report.BEGIN}\nold\n{study_report.END}\nafter\n")
    for text in ("new", "newer"):
        write_between(document, study_report.BEGIN, study_report.END, text)
    assert document.read_text() == (
        f"before\n{study_report.BEGIN}\n\nnewer\n{study_report.END}\nafter\n"
    )
    document.write_text("no marks")
    with pytest.raises(InvalidInput, match="expected a Markdown file"):
        write_between(document, study_report.BEGIN, study_report.END, "new")
