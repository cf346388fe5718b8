"""Models whose batches are dictionaries and structures: measured, trained, evaluated, resumed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from drlpp import ClusterSession, Measurement, Method, PipelineTrainer, Task, capture
from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput
from drlpp.runtime import RunOptions
from drlpp.runtime.loading.loaders import Unpacker
from drlpp.specs.batches import call, chosen, tensors_in
from drlpp.specs.data import Data, Samples
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models import structured
from tests.support.models.structured import BATCH, by_position, data, rows, samples, with_labels
from tests.support.training.pipelines import assert_state, in_a_row, random_order
from tests.support.training.placement_files import file_of

FLUSHED = Method(schedule="1f1b-flush", policy="sync", microbatches=2)
STASH = Method(policy="stash")
SGD = OptimizerSpec(name="sgd", options={"lr": 0.1, "momentum": 0.9})
KINDS: dict[str, tuple[Callable[[], Task], Callable[[Samples], Samples]]] = {
    "keywords": (structured.by_keyword, lambda given: given),
    "positions": (structured.positional, by_position),
    "own loss": (structured.own_loss, with_labels),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def captured_for(kind: str) -> CapturedModel:
    torch.manual_seed(3)
    return capture(KINDS[kind][0]())


def as_taken(kind: str, given: Samples) -> Samples:
    return KINDS[kind][1](given)


def plainly_trained(task: Task, minibatches: list[Samples]) -> Task:
    """Trained in place in an ordinary loop."""
    optimizer = torch.optim.SGD(task.module.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in minibatches:
        optimizer.zero_grad()
        outputs = call(task.module, inputs)
        (outputs["loss"] if targets is None else structured.both(outputs, targets)).backward()
        optimizer.step()
    return task


def test_workers_train_as_plain_pytorch(kind: str) -> None:
    captured = captured_for(kind)
    assert captured.task.loss is not None
    given = as_taken(kind, samples(12, seed=5))
    order = random_order(12, 6, BATCH)
    placement = in_a_row(captured.graph, 0, 1, 2)
    with ClusterSession(captured, workers=3, method=FLUSHED, optimizer=SGD) as session:
        assert isinstance(session.measure(placement, minibatches=4), Measurement)
        targets = given.targets if given.targets is not None else torch.empty(12, 0)
        session.use_samples(given.inputs, targets)
        deployment = session.deploy(placement)
        session.run(deployment, 6, RunOptions(order=order))
        state, _ = session.collect(deployment)
    minibatches = [
        Samples(chosen(given.inputs, row), None if given.targets is None else chosen(targets, row))
        for row in order
    ]
    assert_state(state, plainly_trained(captured.task, minibatches).module)


def test_what_is_evaluated_is_what_the_users_module_gives(kind: str, tmp_path: Path) -> None:
    captured = captured_for(kind)
    train, test = (as_taken(kind, part) for part in data())
    document = file_of(captured, in_a_row(captured.graph, 0, 1), STASH, SGD)
    trainer = PipelineTrainer(document, model=captured, out=tmp_path / "memory")
    in_memory = trainer.fit(Data(train, test), epochs=1)
    loaded = PipelineTrainer(document, model=captured, out=tmp_path / "loaded").fit(
        loader(rows(train)), loader(rows(test)), epochs=1
    )
    # In another order of samples, so each is held against its own module.
    for result in (in_memory, loaded):
        captured.task.module.load_state_dict(result.state_dict)
        with torch.no_grad():
            outputs = call(captured.task.module, test.inputs)
        wanted = structured.both(outputs, data().test.targets)
        assert result.epochs[0].held_out_loss == pytest.approx(wanted.item(), rel=1e-9)
        if kind != "own loss":
            score = structured.near(outputs, test.targets).mean().item()
            assert result.epochs[0].score == pytest.approx(score)


def loader(given: list[Samples], batch_size: int = BATCH) -> DataLoader:
    """Without targets a batch is what the model takes; else (inputs, targets)."""
    items: list[Any] = [one.inputs if one.targets is None else tuple(one) for one in given]
    return DataLoader(items, batch_size)


@cache
def _captured_by_name() -> CapturedModel:
    return captured_for("keywords")


def _batches(items: list[Any]) -> list[Any]:
    return list(DataLoader(items, BATCH))


def _names(given: Samples) -> list[dict[str, Any]]:
    """Flat dictionaries, as collators give them, in an order of their own."""
    return [dict(reversed({**one.inputs, **one.targets}.items())) for one in rows(given)]


def _assert_same(found: Samples, wanted: Samples) -> None:
    pairs = zip(tensors_in(found), tensors_in(wanted), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_dictionary_is_taken_apart_by_name_and_what_is_left_out_is_said() -> None:
    given, notes = samples(24), []
    unpack = Unpacker(None, _captured_by_name(), notes.append)
    flat = _batches([{"text": "some", **one} for one in _names(given)])
    pairs = _batches([tuple(one) for one in rows(given)])
    for one, other in zip(flat, pairs, strict=True):
        _assert_same(unpack(one), unpack(other))
    assert notes == [
        "the training loader also gives 'text', which the model does not take: it has 'extra', "
        "'number', 'tokens', 'words'"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one.pop("tokens"), r"inputs has no 'tokens', only 'words', 'number', 'extra'"),
        (lambda one: one.pop("words"), "targets has no 'words', only"),
        (lambda one: one["extra"].pop("mask"), r"inputs\['extra'\] has no 'mask', only 'numbers'"),
        (
            lambda one: one["extra"].update(numbers=one["extra"]["mask"]),
            r"inputs\['extra'\]\['numbers'\] is a Tensor; expected a tuple of 2",
        ),
        (lambda one: one.update(tokens=[3, 4]), "is a list of Tensor; expected a tensor"),
        (
            lambda one: one.update(tokens=one["tokens"][:3]),
            r"tokens'\] \(3,\) int64.*shapes are fixed, .*padding='max_length'",
        ),
        (
            lambda one: one.update(tokens=one["tokens"].float()),
            r"has .*tokens'\] \(5,\) float32.* takes .*tokens'\] \(5,\) int64",
        ),
    ],
)
def test_batches_that_do_not_fit_are_refused_in_words(
    change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    items = _names(samples(8))
    for one in items:
        one["extra"] = dict(one["extra"])
        change(one)
    with pytest.raises(InvalidInput, match=message):
        Unpacker(None, _captured_by_name())(_batches(items)[0])


def test_targets_without_names_are_the_labels() -> None:
    task = structured.by_keyword()
    task = task._replace(
        targets=task.targets["number"],
        loss=lambda outputs, number: (outputs["heads"][1] - number).square().mean(),
        score=None,
    )
    unpack, given = Unpacker(None, capture(task)), rows(samples(BATCH))
    (wanted,) = _batches([(one.inputs, one.targets["number"]) for one in given])
    (found,) = _batches([{**one.inputs, "labels": one.targets["number"]} for one in given])
    _assert_same(unpack(found), unpack(wanted))
    unlabelled = [{**one.inputs, "label": one.targets["number"]} for one in given]
    with pytest.raises(InvalidInput, match=r"has no 'labels', only .*'label'; rename its targets"):
        unpack(_batches(unlabelled)[0])
