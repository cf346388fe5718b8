"""The study of samples to a loss: its replay against the reference, its search, its files."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from benchmarks import cells
from benchmarks.cells import Where, run_cells
from benchmarks.deep_models import even_stages
from benchmarks.learning.curves import next_powers
from benchmarks.learning.replay import Replay
from benchmarks.samples_to_loss.methods import BASELINE, METHODS
from benchmarks.samples_to_loss.report import cell, samples_needed, section
from benchmarks.samples_to_loss.runs import Job, Result, rates_of, read_results, run_job
from benchmarks.samples_to_loss.search import Progress, Study
from benchmarks.samples_to_loss.tasks import TASKS
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import Minibatches, RunOptions, run_reference
from drlpp.runtime.reference.reference import ReferenceExecutor
from drlpp.schedule.analysis.weight_versions import stage_delays
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.forked import POLICIES, largest_difference, order, placements, samples

MINIBATCHES = 14
SGD = OptimizerSpec.parse("sgd", lr=0.05, weight_decay=0.01)
ADAMW = OptimizerSpec.parse("adamw", lr=0.01, eps=1e-4)
NADAM = OptimizerSpec.parse("nadam", lr=0.01, eps=1e-4, decoupled_weight_decay=True)
REPLAYED = [
    *((method, SGD) for method in POLICIES.values()),
    *(
        (method.model_copy(update={"microbatches": 4, "accumulate": 2}), ADAMW)
        for method in POLICIES.values()
    ),
    (Method(policy="pipemare", annealing_minibatches=9, correction_decay=0.2), SGD),
    (Method(policy="stash", stage_momentum=0.99, clip_norm=0.5), NADAM),
    (Method(policy="pipeoptim", accumulate=3, in_flight_per_link=1), ADAMW),
]


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked", dropout=0.0))


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        pytest.param(*replayed, marks=pytest.mark.slow if number % 3 else ())
        for number, replayed in enumerate(REPLAYED)
    ],
    ids=str,
)
def test_replay_is_the_reference_executor(
    captured: CapturedModel, method: Method, optimizer: OptimizerSpec
) -> None:
    placement = placements(captured)["straight"]
    rates = [0.02 * (1 + minibatch % 3) for minibatch in range(MINIBATCHES)]
    minibatches = Minibatches(*samples(), order(MINIBATCHES))
    wanted = run_reference(
        captured,
        placement,
        minibatches,
        MINIBATCHES,
        method=method,
        optimizer=optimizer,
        options=RunOptions(rates=rates),
    )
    replay = Replay(captured, placement, method, optimizer, minibatches, rates)
    losses = list(replay.run())
    found = {**wanted.state, **replay.weights}
    assert largest_difference(found, wanted.state) < 1e-9
    assert largest_difference(found, captured.state) > 1e-3
    parts = method.microbatches
    per_part = list(wanted.losses.values())
    means = [sum(per_part[k : k + parts]) / parts for k in range(0, len(per_part), parts)]
    assert losses == pytest.approx(means, rel=1e-9)
    assert len(losses) == MINIBATCHES


def test_minibatches_that_flush_come_before_late_ones(captured: CapturedModel) -> None:
    placement = placements(captured)["straight"]
    method = Method(
        policy="pipemare",
        annealing_minibatches=6,
        correction_decay=0.2,
        microbatches=2,
        in_flight_per_link=1,
        clip_norm=0.1,
    )
    rates = [0.02 * (1 + minibatch % 3) for minibatch in range(MINIBATCHES)]
    minibatches = Minibatches(*samples(), order(MINIBATCHES))
    # The trainer runs one after the other in this way.
    wanted = ReferenceExecutor(captured, placement, minibatches, method, SGD)
    wanted.run(5, RunOptions(rates=rates[:5], synchronous=True))
    later = RunOptions(rates=rates[5:], order=order(MINIBATCHES)[5:], first_minibatch=5)
    wanted.run(MINIBATCHES - 5, later)
    replay = Replay(captured, placement, method, SGD, minibatches, rates, synchronous=5)
    assert len(list(replay.run())) == MINIBATCHES
    assert largest_difference({**wanted.state(), **replay.weights}, wanted.state()) < 1e-9
    without = Replay(captured, placement, method, SGD, minibatches, rates)
    assert len(list(without.run())) == MINIBATCHES
    assert largest_difference({**wanted.state(), **without.weights}, wanted.state()) > 1e-4


def test_a_flushed_norm_is_of_all_stages(captured: CapturedModel) -> None:
    placement = placements(captured)["straight"]
    method = Method(schedule="1f1b-flush", policy="sync", microbatches=2, clip_norm=0.1)
    minibatches = Minibatches(*samples(), order(6))
    wanted = run_reference(captured, placement, minibatches, 6, method=method, optimizer=SGD)
    replay = Replay(captured, placement, method, SGD, minibatches, [0.05] * 6)
    assert len(list(replay.run())) == 6
    assert largest_difference({**wanted.state, **replay.weights}, wanted.state) < 1e-9


def study(methods: list[str], *, decays: bool = False) -> Study:
    return Study("digits", decays, 160, (2, 4), methods)


def made_up(job: Job) -> Result:
    """A method whose best rate is 0.004, and whose loss falls as 1 / minibatches."""
    distance = abs(math.log2(job.learning_rate / 0.004))
    handicap = 1 if job.depth is None else 1.0 + 0.1 * job.depth
    every = job.plain_minibatches // 16
    minibatches, losses = [], []
    for minibatch in range(every, job.minibatches + 1, every):
        loss = handicap * 160 / minibatch + distance + 0.001 * job.seed
        minibatches.append(minibatch)
        losses.append(loss if job.learning_rate < 0.05 else None)
        if losses[-1] is None or (job.target is not None and loss <= job.target):
            break
    return Result(job=job, minibatches=minibatches, losses=losses, seconds=1.0)


def complete(chosen: Study) -> list[Result]:
    """All results of a study, made one after another as it asks for them."""
    results: list[Result] = []
    while jobs := Progress(chosen, results).next_jobs():
        assert not {result.job for result in results} & set(jobs), "no run is made twice"
        results += [made_up(job) for job in jobs]
    return results


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        ({}, [1]),
        ({1: 2.0}, [0, 2]),
        ({0: 2.2, 1: 2.0, 2: 1.9}, [3]),
        ({0: 2.2, 1: 2.0, 2: 1.9, 3: 2.4}, []),
        ({1: math.inf}, [0]),
        ({1: math.inf, 0: math.inf, -1: 3.0}, [-2]),
        ({power: float(power) for power in range(-4, 7)}, []),
    ],
)
def test_a_walk_ends_where_both_neighbours_are_worse(
    losses: dict[int, float], wanted: list[int]
) -> None:
    assert next_powers(losses, 1) == wanted


def test_every_method_gets_its_best_rate_and_the_samples_that_it_needs() -> None:
    chosen = study(["PipeOptim"])
    progress = Progress(chosen, complete(chosen))
    assert progress.target() == 1.0
    assert progress.samples_ratio(BASELINE, None) == 1.0
    for depth, handicap in ((2, 1.2), (4, 1.4)):
        assert progress.best_power("PipeOptim", depth) == 2
        # The longer run ends where it reaches the target, and between evaluations is a line.
        assert progress.samples_ratio("PipeOptim", depth) == pytest.approx(handicap, abs=0.01)
        for seed in (1, 2):
            # Against plain training with the same seed, which ends a little higher.
            ratio = progress.samples_ratio("PipeOptim", depth, seed)
            assert ratio == pytest.approx(handicap, abs=0.01)
    assert cell(progress, "PipeOptim", 4) == "1.40 ± 0.00 (4: 1.401 ± 0.001)"
    for found in samples_needed(progress):
        assert (found.task, found.target, found.minibatches) == ("digits", 1.0, 160)
        assert found.method == (BASELINE if found.depth == 1 else "PipeOptim")
        assert found.ratio == pytest.approx({1: 1.0, 2: 1.2, 4: 1.4}[found.depth], abs=0.01)
        assert found.deviation < 0.01
    table = section(progress)
    plain = "1.00 ± 0.00 (4: 1.001 ± 0.001)"
    assert f"| {BASELINE} | {plain} | {plain} |" in table
    assert "after 160 minibatches (with seed 0: 1.000), relative to these" in table


def test_a_method_with_the_users_optimizer_is_tried_at_the_users_rate() -> None:
    """PipeOptim's best rate is half of plain training's here."""
    chosen = study(["PipeOptim", "Muon, 2BW"])

    def shifted(job: Job) -> Result:
        rate = job.learning_rate * (1 if job.depth is None else 2)
        result = made_up(job.model_copy(update={"learning_rate": rate}))
        return result.model_copy(update={"job": job})

    results: list[Result] = []
    while jobs := Progress(chosen, results).next_jobs():
        results += [shifted(job) for job in jobs]
    progress = Progress(chosen, results)
    assert progress.target_power == 2
    assert progress.best_power("PipeOptim", 2) == 1
    # 1.2 · 160 / minibatches + 1 is never 1: given up after three times the minibatches.
    assert progress.samples_ratio("PipeOptim", 2, power=2) is None
    assert cell(progress, "PipeOptim", 2, 2).startswith("> 3 (2.2")
    tables = section(progress).split("The same at 4 thousandths, where plain AdamW ends best")
    assert ["Muon" in table for table in tables] == [True, False]


def test_everybody_has_the_rate_with_which_it_is_there_first() -> None:
    """Plain training ends best at 0.004; at 0.008 it is there sooner, and then gets worse."""
    chosen = study(["PipeOptim"])

    def worse_later(job: Job) -> Result:
        result = made_up(job)
        if job.learning_rate != 0.008:
            return result
        losses = [0.9 if done == 100 else 2.0 for done in result.minibatches]
        return result.model_copy(update={"losses": tuple(losses)})

    results: list[Result] = []
    while jobs := Progress(chosen, results).next_jobs():
        results += [worse_later(job) for job in jobs]
    progress = Progress(chosen, results)
    assert (progress.target_power, progress.target()) == (2, 1.0)
    assert progress.best_power(BASELINE, None) == progress.best_power("PipeOptim", 2) == 3
    for method, depth in ((BASELINE, None), ("PipeOptim", 2)):
        assert progress.samples_ratio(method, depth) == pytest.approx(100 / 160, abs=0.05)


def test_a_rate_that_decays_needs_whole_runs() -> None:
    chosen = study(["PipeOptim"], decays=True)
    results = complete(chosen)
    progress = Progress(chosen, results)
    lengths = {r.job.minibatches for r in results if r.job.depth == 4 and r.job.seed == 0}
    assert lengths == {160, 200, 240}
    assert all(result.job.target is None for result in results)
    # 1.4 / 1.25 = 1.12 is above the target of 1, and 1.4 / 1.5 below: a line between the two.
    assert progress.samples_ratio("PipeOptim", 4) == pytest.approx(1.41, abs=0.01)


def test_what_never_reaches_the_target_is_given_up() -> None:
    chosen = study(["PipeOptim"])
    target = made_up(chosen.job(BASELINE, None, 2)).final_loss
    results = []
    while jobs := Progress(chosen, results).next_jobs():
        for job in jobs:
            one = made_up(job)
            slow = tuple(loss and max(loss, target + 0.5) for loss in one.losses)
            results.append(one if job.depth is None else one.model_copy(update={"losses": slow}))
    progress = Progress(chosen, results)
    assert progress.samples_ratio("PipeOptim", 2) is None
    assert cell(progress, "PipeOptim", 2).startswith("> 3 (")
    assert max(result.job.minibatches for result in results) == 480


def test_a_run_is_plain_training_where_nothing_is_late() -> None:
    job = Job(
        task="digits",
        method=BASELINE,
        depth=None,
        learning_rate=0.002,
        decays=True,
        minibatches=4,
        plain_minibatches=32,
        seed=3,
    )
    result = run_job(job)
    assert result.minibatches == (2, 4)
    module = TASKS["digits"].model.build(seed=3).module
    data = TASKS["digits"].load()
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.01)
    generator = torch.Generator().manual_seed(3)
    samples = torch.randperm(len(data.train), generator=generator)[: 4 * 32].view(4, 32)
    losses = []
    for indices, rate in zip(samples, rates_of(job), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        outputs = module(data.train.inputs[0][indices])
        torch.nn.functional.cross_entropy(outputs, data.train.targets[indices]).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            outputs = module(*data.test.inputs)
        losses.append(torch.nn.functional.cross_entropy(outputs, data.test.targets).item())
    assert result.losses == pytest.approx((losses[1], losses[3]), rel=1e-4)
    assert rates_of(job) == pytest.approx(
        [0.002, 0.001 * (1 + 0.5**0.5), 0.001, 0.001 * (1 - 0.5**0.5)]
    )


def test_results_are_kept_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "ProcessPoolExecutor", lambda *given: ThreadPoolExecutor(2))
    chosen, path = study(["PipeOptim"]), tmp_path / "results.jsonl"
    wanted = complete(chosen)
    # It was interrupted while it wrote a line.
    lines = [result.model_dump_json() for result in wanted[:5]]
    path.write_text("\n".join(lines) + "\n" + lines[0][:40])
    told: list[Result] = []

    def run_all() -> None:
        def wanted(found: Sequence[Result]) -> list[Job]:
            return Progress(chosen, found).next_jobs()

        run_cells(made_up, wanted, path, read_results, Where(2), told.append)

    run_all()
    assert {result.job for result in told} == {result.job for result in wanted[5:]}
    assert len(read_results(path)) == len(wanted)
    run_all()
    assert len(read_results(path)) == len(wanted)


def test_every_method_can_run_at_every_depth() -> None:
    for name, method in METHODS.items():
        for depth in (2, 16):
            pipeline = Pipeline.straight(*[1] * (1 if method.plain else depth))
            assert stage_delays(pipeline, method.build(depth, 400)), name
        if method.optimizer != "muon" or hasattr(torch.optim, "Muon"):
            assert method.spec(0.002).value("lr") == 0.002


def test_the_decoder_can_be_cut_into_sixteen_stages() -> None:
    placement = even_stages(capture(TASKS["text-small"].model).graph, 16)
    assert placement.configuration == "-".join("1" * 16)
