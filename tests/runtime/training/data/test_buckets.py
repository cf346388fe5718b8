"""Minibatches of several shapes: each computed in its own, on the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from drlpp import ClusterSession, InvalidInput, Method, OptimizerSpec, Task, capture
from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidModel
from drlpp.placement.candidate import Candidate
from drlpp.runtime import PipelineTrainer, RunOptions, run_reference
from drlpp.specs.data import Samples
from tests.support.models.bucketed import (
    BATCH,
    LENGTHS,
    OfSeveralShapes,
    bucketed,
    given,
    minibatches,
    next_words,
    right_words,
    sentences,
)
from tests.support.models.forked import largest_difference
from tests.support.training.killing import killed_after_saving
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

SGD = OptimizerSpec(name="sgd", options={"lr": 0.1, "momentum": 0.9})
METHODS = {
    "pipeoptim": Method(policy="pipeoptim"),
    "divided": Method(policy="pipeoptim", microbatches=2),
    "recomputing": Method(policy="spectrain", recompute=True),
    "flushed": Method(schedule="1f1b-flush", policy="sync", microbatches=2),
    "zb-h1": Method(schedule="zb-h1", policy="sync", microbatches=4),
}


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(lambda: bucketed(dropout=0.1))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=3) as session:
        yield session


@pytest.mark.parametrize(
    ("method", "accelerators"),
    [
        ("pipeoptim", (0, 1, 2)),
        ("divided", (0, 0, 1)),
        ("recomputing", (0, 1, 2)),
        ("flushed", (0, 0, 0)),
        ("zb-h1", (0, 1, 2)),
    ],
)
def test_weights_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, method: str, accelerators: tuple[int, ...]
) -> None:
    """Also on a stage between others, which reads no data and learns a shape by itself."""
    count, batches = 9, minibatches(9)
    candidate = Candidate(in_a_row(captured.graph, *accelerators), METHODS[method])
    deployment = session.deploy(candidate, optimizer=SGD)
    session.run(deployment, count, RunOptions(loaded=given(batches)))
    state, _ = session.collect(deployment)
    reference = run_reference(
        captured,
        candidate.placement,
        OfSeveralShapes((), (), batches=batches),
        count,
        method=candidate.method,
        optimizer=SGD,
    )
    assert largest_difference(state, reference.state) < 1e-12
    assert largest_difference(state, captured.state) > 1e-3, "training changed nothing"


def test_flushed_weights_and_what_is_evaluated_equal_plain_pytorch() -> None:
    captured, plain = capture(bucketed), bucketed().module
    batches = minibatches(8)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for (tokens,), targets in batches:
        optimizer.zero_grad()
        next_words(plain(tokens), targets).backward()
        optimizer.step()
    with ClusterSession(captured, workers=2) as session:
        placement = in_a_row(captured.graph, 0, 1)
        deployment = session.deploy(placement, METHODS["flushed"], SGD)
        session.run(deployment, 8, RunOptions(loaded=given(batches)))
        state, _ = session.collect(deployment)
        found = session.evaluate(deployment, 8, RunOptions(loaded=given(batches)))
    assert largest_difference(state, plain.state_dict()) < 1e-12
    plain.eval()
    with torch.no_grad():
        outputs = [plain(tokens) for (tokens,), _ in batches]
    pairs = list(zip(outputs, (targets for _, targets in batches), strict=True))
    assert found.losses == pytest.approx([next_words(*pair).item() for pair in pairs], rel=1e-12)
    assert found.scores is not None
    for score, pair in zip(found.scores, pairs, strict=True):
        torch.testing.assert_close(score, right_words(*pair))


class Sentences(Dataset[Samples]):
    """Whole minibatches, each of sentences of one length."""

    def __init__(self, batches: list[Samples]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, number: int) -> Samples:
        return self._batches[number]


def loader(batches: list[Samples], *, shuffle: bool = False) -> DataLoader[Samples]:
    return DataLoader(Sentences(batches), batch_size=None, shuffle=shuffle)


def test_a_training_resumes_within_an_epoch_and_evaluates_what_every_shape_leaves_over(
    captured: CapturedModel, tmp_path: Path
) -> None:
    train, held_out = minibatches(12), [sentences(n, 2 * n - 3, seed=50) for n in LENGTHS]
    document = file_of(captured, in_a_row(captured.graph, 0, 1), METHODS["pipeoptim"], SGD)

    def fit(out: str, **options: Any) -> Any:
        trainer = PipelineTrainer(
            document, model=captured, out=tmp_path / out, checkpoint_every=2, **options
        )
        return trainer.fit(loader(train, shuffle=True), loader(held_out), epochs=2)

    whole = fit("whole")
    with killed_after_saving(3):
        fit("parts")
    resumed = fit("parts", resume=True)
    assert all(torch.equal(resumed.state_dict[name], v) for name, v in whole.state_dict.items())

    plain = bucketed().module
    plain.load_state_dict(whole.state_dict)
    plain.eval()
    with torch.no_grad():
        outputs = [(plain(tokens), targets) for (tokens,), targets in held_out]
    count = sum(map(len, held_out))
    assert [len(part) % BATCH for part in held_out] != [0, 0, 0]
    loss = sum(len(targets) * next_words(o, targets).item() for o, targets in outputs) / count
    score = torch.cat([right_words(*pair) for pair in outputs]).mean().item()
    assert whole.epochs[-1].held_out_loss == pytest.approx(loss, rel=1e-9)
    assert whole.epochs[-1].score == whole.module_score == pytest.approx(score)


def test_a_batch_that_fits_no_bucket_is_refused_with_all_shapes(
    captured: CapturedModel, tmp_path: Path
) -> None:
    document = file_of(captured, in_a_row(captured.graph, 0), METHODS["pipeoptim"], SGD)
    trainer = PipelineTrainer(document, model=captured, out=tmp_path)
    with pytest.raises(InvalidInput, match=r"\(4,\).*\(8,\).* or .*\(5,\).* or .*\(3,\).*pad"):
        trainer.fit(loader([sentences(4)]))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.words(tokens)
        return self.head(F.relu(hidden) if tokens.shape[1] > 5 else hidden)


@pytest.mark.parametrize(
    ("module", "bucket", "message"),
    [
        (Branching(), tuple(sentences(5)), r"has other operators for .*\(4, 5\).* than for .*8"),
        (Branching(), tuple(sentences(8, 3)), "of 3 samples; all minibatches have 4"),
        (Branching(), sentences(5).inputs, "a bucket is tuple, expected"),
        (Branching(), (sentences(5).inputs, None), "in a bucket targets is a NoneType"),
        (Branching(), ((), sentences(5).targets), "in a bucket inputs is a tuple, 0 of them"),
    ],
)
def test_buckets_that_cannot_be_are_refused(module: nn.Module, bucket: Any, message: str) -> None:
    inputs, targets = sentences(8)
    with pytest.raises(InvalidModel, match=message):
        capture(Task(module, inputs, targets, next_words, None, [bucket]))
