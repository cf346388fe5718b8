"""Models by name and as objects: factories, tasks, modules, and what is said where one fails."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drlpp import ClusterSession, Measurement, Method, PipelineTrainer, Task, capture
from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput, InvalidModel
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.models.zoo.images import alexnet
from drlpp.placement.placement_file import read_placement
from drlpp.specs.data import Data, Samples
from tests.support.models.small import perceptron
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

PERCEPTRON = "tests.support.models.small:perceptron"
FLUSHED = Method(schedule="gpipe", policy="sync")


def _not_importable() -> Callable[[], Task]:
    class Hidden(nn.Linear):
        """Can neither be imported nor pickled."""

    def make() -> Task:
        module = nn.Sequential(Hidden(16, 8), nn.ReLU(), Hidden(8, 5))
        return perceptron()._replace(module=module)

    return make


def _data() -> Data:
    inputs, targets = torch.randn(24, 16), torch.randint(5, (24,))
    return Data(Samples((inputs[:16],), targets[:16]), Samples((inputs[16:],), targets[16:]))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (perceptron, PERCEPTRON),
        (
            functools.partial(perceptron, layers=4),
            "tests.support.models.small:perceptron(layers=4)",
        ),
        (alexnet, "alexnet"),
        (lambda: perceptron(), "<lambda>"),
        (_not_importable(), "<make>"),
        (functools.partial(perceptron, 4), "<perceptron>"),
        (perceptron(), "<Sequential>"),
    ],
)
def test_a_model_is_named_by_what_another_process_could_import(model: Any, name: str) -> None:
    reference = ModelReference.of(model)
    assert str(reference) == name
    assert ModelReference.of(reference) is reference
    assert isinstance(reference.build().module, nn.Module)
    # What a command that reads a file about it has to be told.
    needed = "package.module:factory" if name.startswith("<") else reference.name
    assert reference.naming_option == ("" if name == "alexnet" else f" --model {needed}")


def test_copies_share_the_object_and_pickles_and_files_have_the_name_alone(tmp_path: Path) -> None:
    captured = capture(_not_importable())
    reference = captured.reference
    assert copy.deepcopy(reference).build().module
    document = file_of(captured, in_a_row(captured.graph, 0))
    path = write_document(tmp_path / "placement.json", document)
    for elsewhere in (pickle.loads(pickle.dumps(reference)), read_placement(path).model):
        assert str(elsewhere) == "<make>"
        with pytest.raises(InvalidModel, match="<make> has a name that builds nothing"):
            elsewhere.build()


def test_it_is_measured_placed_and_trained_and_the_users_module_stays_as_it_is(
    tmp_path: Path,
) -> None:
    task = _not_importable()()
    before = copy.deepcopy(task.module.state_dict())
    with ClusterSession(task, workers=2, method=FLUSHED) as session:
        placement = in_a_row(session.graph, 0, 1)
        assert isinstance(session.measure(placement, minibatches=4), Measurement)
        document = file_of(session.captured, placement, FLUSHED)
        path = write_document(tmp_path / "placement.json", document)
    # In the same program the document knows the model; a file does not, and is given it again.
    data, states = _data(), []
    given: list[tuple[Any, Task | CapturedModel | None]] = [(document, None), (path, task)]
    for number, (placed, model) in enumerate(given):
        trainer = PipelineTrainer(placed, model=model, out=tmp_path / str(number))
        result = trainer.fit(data, epochs=2)
        states.append(result.state_dict)
        assert task.module.training
        for name, value in task.module.state_dict().items():
            assert torch.equal(value, before[name])
            assert not torch.equal(value, result.state_dict[name])
    for state in states[1:]:
        assert all(torch.equal(value, states[0][name]) for name, value in state.items())
    with pytest.raises(InvalidInput, match=r"<Sequential> has a name that builds nothing.*model=…"):
        PipelineTrainer(path, out=tmp_path / "none")
    with pytest.raises(InvalidInput, match=r"is for <Sequential> .*, but this model is <Linear>"):
        PipelineTrainer(path, model=Task(nn.Linear(2, 2), torch.ones(2, 2)), out=tmp_path / "none")


FACTORIES = """
import torch
from torch import nn

def pair(width=3): return nn.Linear(width, 2), torch.randn(4, width)
def whole(): return (*pair(), torch.zeros(4), lambda o, t: o.sum(), lambda o, t: o[:, 0])
def raises(): raise RuntimeError("no weights here")
def alone(): return nn.Linear(3, 2)
def too_long(): return (*whole(), (), 1)
def no_module(): return (lambda x: x), torch.randn(4, 3)
def no_inputs(): return nn.Linear(3, 2), ()
def scalar(): return nn.Linear(3, 2), (torch.tensor(1.0),)
def number(): return nn.Linear(3, 2), 3
def uneven(): return nn.Linear(3, 2), (torch.randn(4, 3), torch.randn(5, 3))
def uneven_targets(): return *pair(), torch.zeros(5)
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of factories in the current folder."""
    (tmp_path / "models_of_test_task.py").write_text(FACTORIES)
    (tmp_path / "broken_of_test_task.py").write_text("import no_such_library")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "models_of_test_task", raising=False)
    return "models_of_test_task"


def test_a_users_factory_in_the_current_folder(models: str) -> None:
    task = ModelReference.named(f"{models}:pair", width=5).build()
    assert isinstance(task, Task)
    assert isinstance(task.module, nn.Linear)
    assert [value.shape for value in task.inputs] == [(4, 5)]
    assert task.batch_size == 4
    assert task.targets is None
    assert task.loss is None


def test_a_model_on_a_device_is_refused_with_the_way_out(
    models: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the CPU were a device.
    monkeypatch.setattr("drlpp.models.task._DEVICES", ("meta",))
    with pytest.raises(
        InvalidModel, match=r"are on cpu; leave them on the CPU \(module\.cpu\(\)\)"
    ):
        ModelReference.named(f"{models}:pair").build()


OURS = "models_of_test_task"


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        (f"{OURS}:raises", {}, "raised RuntimeError: no weights here"),
        (f"{OURS}:alone", {}, r"returned Linear; expected \(module, inputs\)"),
        (f"{OURS}:too_long", {}, "returned tuple; expected"),
        (f"{OURS}:no_module", {}, "first element is a function"),
        (f"{OURS}:no_inputs", {}, "batch as first dimension"),
        (f"{OURS}:scalar", {}, "batch as first dimension"),
        (f"{OURS}:number", {}, "example inputs are int, expected tensors"),
        (f"{OURS}:uneven", {}, r"batch sizes 4 of inputs\[0\], 5 of inputs\[1\]"),
        (f"{OURS}:uneven_targets", {}, "targets"),
        (f"{OURS}:unevn_targets", {}, "no function .*; did you mean 'uneven_targets'"),
        ("lenet", {}, "'lenet' is not in the zoo; it has alexnet, .*'package.module:factory'"),
        ("no_such_package:f", {}, "importing 'no_such_package' raised ModuleNotFoundError"),
        ("broken_of_test_task:f", {}, "No module named 'no_such_library'"),
        ("alexnt", {}, "'alexnt' is not in the zoo; did you mean 'alexnet'"),
        ("./nets/models.py:f", {}, "not a file; like nets.models:f"),
        ("models:f.__globals__", {}, r"expected 'package\.module:name'"),
        ("alexnet", {"batch_size": 10**30}, "its factory raised"),
        ("alexnet", {"input_size": 62}, "input_size is 62: too small"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(
    models: str, name: str, options: dict[str, int], reason: str
) -> None:
    with pytest.raises(InvalidModel, match=reason) as error:
        ModelReference.named(name, **options).build()
    assert "\n" not in str(error.value)
