"""Finding and building models by name, and what is said when that fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch import nn

from drlpp.errors import InvalidModel
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task

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
        (f"{OURS}:uneven", {}, r"batch sizes \[4, 5\]"),
        (f"{OURS}:uneven_targets", {}, "targets"),
        (f"{OURS}:unevn_targets", {}, "no function .*; did you mean 'uneven_targets'"),
        ("lenet", {}, "'lenet' is not in the zoo; it has alexnet, .*'package.module:factory'"),
        ("no_such_package:f", {}, "importing 'no_such_package' raised ModuleNotFoundError"),
        ("broken_of_test_task:f", {}, "No module named 'no_such_library'"),
        ("alexnt", {}, "'alexnt' is not in the zoo; did you mean 'alexnet'"),
        ("./nets/models.py:f", {}, "not a file; like nets.models:f"),
        ("models:f.__globals__", {}, r"expected 'package\.module:name'"),
        ("awd_lm", {"layers": 10**9}, "model awd_lm: layers is 1000000000; 1000 is the most"),
        ("awd_lm", {"hidden": 10**6}, r"take [\d,.]+ GB, more than the [\d,.]+ GB of this machine"),
        ("alexnet", {"batch_size": 10**30}, "its factory raised"),
        ("alexnet", {"input_size": 62}, "input_size is 62.* at least 63"),
        ("gpt2", {"sequence_length": 33}, "has 32 positions"),
        ("gpt2", {"heads": 3}, "64 hidden units cannot be divided among 3 heads"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(
    models: str, name: str, options: dict[str, int], reason: str
) -> None:
    with pytest.raises(InvalidModel, match=reason) as error:
        ModelReference.named(name, **options).build()
    assert "\n" not in str(error.value)
