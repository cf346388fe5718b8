"""Optimizers by name: what is accepted, what is refused, and in which words."""

import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch

from drlpp.errors import InvalidInput
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.optimizer_spec import OptimizerSpec


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
        ("muon", {"lr": 0, "adamw_lr": 0.1}, "adamw_lr is relative to lr, which is 0"),
        ("muon", {"adamw_lr": -1}, "Invalid learning rate: -1"),
        ("muon", {"ns_steps": 100}, "ns_steps is 100; expected a whole number from 1 to 99"),
        ("muon", {"ns_steps": 2.5}, "ns_steps is 2.5; expected a whole number"),
        ("muon", {"adjust_lr_fn": "none"}, "none is not supported"),
        ("muon", {"fused": True}, "has no option 'fused'"),
    ],
)
def test_optimizers(name: str, options: dict[str, Any], message: str) -> None:
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("torch 2.9 has it")
    with pytest.raises(InvalidInput, match=message):
        OptimizerSpec.parse(name, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cosine", {}, "schedule 'cosine' is unknown; there are constantlr, cosineannealinglr"),
        ("LambdaLR", {}, "lambdalr cannot be used: it needs a function"),
        ("steplr", {}, "learning-rate schedule steplr needs a value for step_size"),
        ("steplr", {"step_size": 0}, "steplr: it divides by step_size, which is 0; give a number"),
        ("steplr", {"step_size": 2, "gamma": "x"}, "gamma of .* is x; expected a number"),
        ("multistep", {"milestones": 2}, r"of milestones=2, one has the wrong type .* as \[1, 2\]"),
        ("cyclic", {"base_lr": 0.1, "max_lr": 1, "cycle_momentum": True}, "has no option 'cycle_m"),
        ("exponential", {"gamma": 0.9, "warm_up": -1}, "'warm_up'.*greater than or equal to 0"),
    ],
)
def test_schedules(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        LearningRateSchedule.parse(name, **options)


USABLE = sorted(OptimizerSpec.known().keys() - {"muon", *OptimizerSpec.unusable})


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
