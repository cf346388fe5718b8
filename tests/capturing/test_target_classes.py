"""Targets that name no class are told wherever torch's loss would refuse them, and only there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.capturing.target_classes import wrong_class, wrong_target
from drlpp.models.task import Task
from drlpp.specs.data import Samples

BATCH, WORDS, CLASSES = 4, 3, 5


def shifted(scores: Tensor, words: Tensor) -> Tensor:
    """The loss of a language model, which reads every word but the first."""
    return F.cross_entropy(scores[:, :-1].reshape(-1, CLASSES), words[:, 1:].reshape(-1))


def two_losses(scores: Tensor, words: Tensor) -> Tensor:
    """A loss over all classes, and one over fewer, of the last word."""
    flat = F.cross_entropy(scores[:, :-1].flatten(0, 1), words[:, :-1].flatten())
    return flat + F.nll_loss(F.log_softmax(scores[:, -1, :2], dim=1), words[:, -1])


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "flat": lambda scores, words: F.cross_entropy(scores.flatten(0, 1), words.flatten()),
    "over the second dimension": lambda scores, words: F.cross_entropy(scores.mT, words),
    "shifted": shifted,
    "two": two_losses,
    "ignores": lambda scores, words: F.cross_entropy(scores.mT, words, ignore_index=7),
    "weighs": lambda scores, words: F.cross_entropy(
        scores.mT, words, torch.ones(CLASSES), label_smoothing=0.1
    ),
}


def captured_with(loss: Callable[[Tensor, Tensor], Tensor]) -> CapturedModel:
    words = torch.zeros(BATCH, WORDS, dtype=torch.long)
    task = Task(nn.Linear(2, CLASSES), (torch.randn(BATCH, WORDS, 2),), words, loss)
    return capture(task, check=False)


@pytest.fixture(scope="module", params=LOSSES)
def loss(request: pytest.FixtureRequest) -> tuple[CapturedModel, Callable[..., Tensor]]:
    return captured_with(LOSSES[request.param]), LOSSES[request.param]


VALUES = st.one_of(st.integers(0, 1), st.sampled_from([-100, -1, 2, 4, 5, 7]))


@settings(max_examples=60, deadline=None)
@given(values=st.lists(VALUES, min_size=3 * WORDS, max_size=9 * WORDS))
def test_what_is_told_is_what_torch_refuses(
    loss: tuple[CapturedModel, Callable[..., Tensor]], values: list[int]
) -> None:
    captured, function = loss
    words = torch.tensor(values[: len(values) // WORDS * WORDS]).view(-1, WORDS)

    def refused(sample: Tensor) -> bool:
        try:
            function(torch.randn(1, WORDS, CLASSES), sample[None])
        except IndexError:
            return True
        return False

    bad = [number for number, sample in enumerate(words) if refused(sample)]
    told = wrong_class(captured.classes, words, BATCH)
    assert (told is not None) == bool(bad)
    if told is not None:
        # Of several losses in one minibatch the first is told.
        number = int(told.split("sample ")[1].split()[0])
        assert number in bad
        assert number // BATCH == bad[0] // BATCH


@pytest.mark.parametrize(
    "loss",
    [
        lambda scores, words: F.cross_entropy(scores.mT, words % CLASSES),
        lambda scores, words: F.cross_entropy(scores.mT, words.clamp(0, CLASSES - 1)),
        lambda scores, words: F.cross_entropy(scores.mT, F.one_hot(words, CLASSES).float().mT),
        lambda scores, words: F.mse_loss(scores[..., 0], words.float()),
        lambda scores, words: F.cross_entropy(scores.mT, scores.argmax(-1)) + words.sum() * 0,
    ],
    ids=["computed", "clamped", "probabilities", "another", "of the model"],
)
def test_a_loss_that_does_not_tell_is_left_alone(loss: Callable[..., Tensor]) -> None:
    captured = captured_with(loss)
    assert captured.classes == ()
    words = torch.full((BATCH, WORDS), 99)
    assert wrong_target(captured, Samples(captured.task.inputs, words)) is None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32])
def test_targets_may_become_classes_in_the_loss(dtype: torch.dtype) -> None:
    """Tokens are often kept as uint16, of which torch has neither a least nor a comparison."""
    words = torch.zeros(BATCH, WORDS, dtype=dtype)
    task = Task(
        nn.Linear(2, CLASSES),
        (torch.randn(BATCH, WORDS, 2),),
        words,
        lambda scores, words: F.cross_entropy(scores.mT, words.long()),
    )
    classes = capture(task, check=False).classes
    assert [one.count for one in classes] == [CLASSES]
    many = torch.full((2 * BATCH - 1, WORDS), CLASSES - 1)
    assert wrong_class(classes, many.to(dtype), BATCH) is None
    many[BATCH + 1, 1] = CLASSES
    told = wrong_class(classes, many.to(dtype), BATCH)
    assert told is not None
    assert told.startswith(f"the target of sample {BATCH + 1} (counted from 0) is class {CLASSES},")


def test_every_shape_of_a_model_has_classes_of_its_own() -> None:
    words = torch.zeros(BATCH, WORDS, dtype=torch.long)
    scores = torch.randn(BATCH, WORDS, 2)
    longer = torch.randn(BATCH, WORDS + 1, 2), torch.zeros(BATCH, WORDS + 1, dtype=torch.long)
    task = Task(nn.Linear(2, CLASSES), (scores,), words, shifted, None, [((longer[0],), longer[1])])
    captured = capture(task, check=False)
    assert wrong_target(captured, Samples((scores,), words)) is None
    longer[1][2, -1] = CLASSES
    told = wrong_target(captured, Samples((longer[0],), longer[1]))
    assert told == (
        "the target of sample 2 (counted from 0) is class 5, but the loss is a cross entropy over "
        "5 classes, 0 to 4, and ignores -100"
    )
