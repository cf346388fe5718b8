"""What optimizers and learning-rate schedules refuse, in which words."""

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
