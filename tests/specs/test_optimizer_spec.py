"""Optimizers by name: what is accepted, what is refused, and in which words."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from drlpp.errors import InvalidInput
from drlpp.specs.optimizer_spec import OptimizerSpec

USABLE = [
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "asgd",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
]


@pytest.mark.parametrize("name", USABLE)
def test_defaults_are_torchs_but_for_ours(name: str) -> None:
    ours = {"sgd": {"lr": 0.01, "momentum": 0.9}, "adam": {"lr": 0.0005}, "adamw": {"lr": 0.0005}}
    spec = OptimizerSpec.parse(name)
    kind = {one.lower(): kind for one, kind in vars(torch.optim).items()}[name]
    assert spec.find() is kind
    for option, value in spec.complete.items():
        assert value == ours.get(name, {}).get(
            option, inspect.signature(kind).parameters[option].default
        )
    assert {"foreach", "capturable", "params"}.isdisjoint(spec.complete)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lion", {}, "optimizer 'lion' is unknown; there are adadelta, adafactor"),
        ("lbfgs", {}, "lbfgs cannot be used: a step of it evaluates the model several"),
        ("sparseadam", {}, "it takes sparse gradients only"),
        ("adam", {"beta1": 0.9}, "optimizer adam has no option 'beta1'; it has lr, betas, eps"),
        ("adam", {"fused": True}, "has no option 'fused'"),
        ("adam", {"betas": 0.9}, r"is 0.9; expected 2 numbers, such as \[0.9, 0.999\]"),
        ("adam", {"betas": [0.9, 0.99, 0.999]}, r"is \[0.9, 0.99, 0.999\]; expected 2 numbers"),
        ("adam", {"amsgrad": 1}, "amsgrad of optimizer adam is 1; expected true or false"),
        ("sgd", {"nesterov": "false"}, "nesterov of optimizer sgd is false; expected true or fal"),
        ("sgd", {"dampening": "nan"}, "'options.dampening': is 'nan'; expected a number"),
        ("asgd", {"lambd": "a"}, "lambd of optimizer asgd is a; expected a number"),
        ("adam", {"betas": [0.9, "x"]}, "'options.betas': is 'x'; expected a number"),
        ("adam", {"betas": [0.9, 1.5]}, "optimizer adam: Invalid beta parameter at index 1: 1.5"),
        ("sgd", {"lr": -1.0}, "optimizer sgd: Invalid learning rate: -1.0"),
        ("sgd", {"nesterov": True, "momentum": 0}, "Nesterov momentum requires a momentum"),
        ("math:sin", {}, "optimizer 'math:sin' is not a subclass of torch.optim"),
        ("lion_of_mine:Lion", {}, "optimizer lion_of_mine:Lion needs a value for lr"),
    ],
)
def test_refusals(name: str, options: dict[str, Any], message: str, own_module: None) -> None:
    with pytest.raises(InvalidInput, match=message):
        OptimizerSpec.parse(name, **options)


_LION = """
import torch

class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            weight -= self.param_groups[0]["lr"] * weight.grad.sign()
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lion_of_mine.py").write_text(_LION)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "lion_of_mine", raising=False)


def test_reading_a_file_imports_nothing_that_it_names() -> None:
    spec = OptimizerSpec.model_validate({"name": "no_such_module:Lion", "options": {"lr": 0.1}})
    assert str(spec) == "no_such_module:Lion (lr=0.1)"
    with pytest.raises(InvalidInput, match="'no_such_module:Lion' is named by a file alone"):
        spec.check()
    with pytest.raises(InvalidInput, match="importing 'no_such_module' raised"):
        spec.as_named_by_user().check()


def test_importing_the_description_does_not_import_torch() -> None:
    modules = "drlpp.specs.optimizer_spec, drlpp.specs.learning_rate"
    code = f"import {modules}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
