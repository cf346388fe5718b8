"""Optimizers by name, Muon, groups of parameters: what is accepted, and what is refused."""

import copy
import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

from drlpp.errors import InvalidInput
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.muon import MuonWithAdamW
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup, divided, settled


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lion", {}, "optimizer 'lion' is unknown; there are adadelta, adafactor"),
        ("lbfgs", {}, "lbfgs .*missing 1 required positional argument: 'closure'"),
        ("sparseadam", {}, "SparseAdam does not support dense gradients"),
        ("adam", {"beta1": 0.9}, "unexpected keyword argument 'beta1'; it has lr=0.0005, betas="),
        ("adam", {"fused": True}, "optimizer adam has no option fused here"),
        ("adam", {"betas": 0.9}, "have the options .betas=0.9.: 'float' object is not subscript"),
        ("adam", {"betas": [0.9, 0.99, 0.999]}, "0.999]\\): too many values to unpack"),
        ("sgd", {"dampening": "nan"}, "'options.dampening': is 'nan'; expected a number"),
        ("asgd", {"lambd": "a"}, "have the options .lambd=a.: can't multiply"),
        ("adam", {"betas": [0.9, "x"]}, "'options.betas': is 'x'; expected a number"),
        ("adam", {"betas": [0.9, 1.5]}, "1.5]\\): Invalid beta parameter at index 1: 1.5"),
        ("sgd", {"lr": -1.0}, "lr=-1.0\\): Invalid learning rate: -1.0"),
        ("sgd", {"nesterov": True, "momentum": 0}, "Nesterov momentum requires a momentum"),
        ("math:sin", {}, "optimizer 'math:sin' is not a subclass of torch.optim"),
        ("muon", {"lr": -1}, "lr=-1.: Learning rate should be >= 0"),
        ("muon", {"ns_steps": 100}, "ns_steps=100.: Number of steps must be less than 100"),
        ("muon", {"ns_steps": 2.5}, "ns_steps=2.5.: 'float' object cannot be interpreted"),
        ("muon", {"adjust_lr_fn": "none"}, "none is not supported"),
        ("muon", {"fused": True}, "has no option fused"),
    ],
)
def test_optimizers(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        OptimizerSpec.parse(name, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cosine", {}, "schedule 'cosine' is unknown; there are chainedscheduler, constantlr"),
        ("LambdaLR", {}, "lambdalr .*missing 1 required positional argument: 'lr_lambda'"),
        ("steplr", {}, "steplr .* missing 1 required .* 'step_size'; it has step_size, gamma=0.1"),
        ("steplr", {"step_size": 0}, "options .step_size=0.: integer modulo by zero"),
        ("multistep", {"milestones": 2}, ".milestones=2.: 'int' object is not iterable"),
        ("cyclic", {"base_lr": 0.1, "max_lr": 1, "cycle_momentum": True}, "has no option cycle_m"),
        ("exponential", {"gamma": 0.9, "warm_up": -1}, "'warm_up'.*greater than or equal to 0"),
    ],
)
def test_schedules(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        LearningRateSchedule.parse(name, **options)


def test_muon_goes_on_from_a_state_dict() -> None:
    def steps(optimizer: MuonWithAdamW, weights: list[torch.Tensor], count: int) -> None:
        for number in range(count):
            for weight in weights:
                weight.grad = torch.full_like(weight, 1.0 + number)
            optimizer.step()

    def fresh() -> list[torch.Tensor]:
        return [torch.eye(3), torch.ones(3)]

    whole, halves = fresh(), fresh()
    steps(optimizer := MuonWithAdamW(whole), whole, 2)
    state = copy.deepcopy(optimizer.state_dict())
    steps(optimizer, whole, 2)
    steps(MuonWithAdamW(halves), halves, 2)
    (later := MuonWithAdamW(halves)).load_state_dict(state)
    steps(later, halves, 2)
    assert all(map(torch.equal, whole, halves))
    for saved, kept in zip(later.state.values(), optimizer.state.values(), strict=True):
        assert all(torch.equal(saved[name], kept[name]) for name in kept)


class WithoutARate(torch.optim.Optimizer):
    """One of a user, whose rate nobody can set."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})


def test_an_optimizer_without_a_rate_is_refused() -> None:
    with pytest.raises(InvalidInput, match="it has no argument lr"):
        OptimizerSpec.parse(f"{__name__}:WithoutARate")


USABLE = sorted(OptimizerSpec.known().keys() - {"muon", "lbfgs", "sparseadam"})


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


SPEC = OptimizerSpec.parse(
    "adamw",
    [
        ParameterGroup.parse("*.bias", "*norm*", weight_decay=0),
        ParameterGroup.parse("lm_head.weight", lr="1e-4"),
        ParameterGroup.parse("*.weight", lr=0.02),
    ],
    lr=0.001,
    weight_decay=0.1,
)
NAMES = ["wte.weight", "h.0.weight", "h.0.bias", "h.norm.weight", "scale"]
ALIASES = {"lm_head.weight": "wte.weight"}


def test_the_first_group_that_matches_any_of_its_names_has_a_parameter() -> None:
    spec = settled(SPEC, NAMES, ALIASES)
    found = {group.names: group for group in divided(spec, NAMES)}
    assert [*found] == [("h.0.bias", "h.norm.weight"), ("wte.weight",), ("h.0.weight",), ("scale",)]
    decay = [group.optimizer.complete.get("weight_decay") for group in found.values()]
    assert decay == [0, 0.1, 0.1, 0.1]
    assert [group.rate for group in found.values()] == [0.001, 1e-4, 0.02, 0.001]
    assert {group.base_rate for group in found.values()} == {0.001}
    # A stage that holds some of them says the same of these.
    assert [group.names for group in divided(spec, ["scale", "wte.weight"])] == [
        ("wte.weight",),
        ("scale",),
    ]


def test_a_schedule_multiplies_every_rate() -> None:
    spec = settled(SPEC, NAMES, ALIASES)
    rates = {group.names[0]: list(group.rates([0.001, 0.003])) for group in divided(spec, NAMES)}
    assert rates == {
        "h.0.bias": [0.001, 0.003],
        "wte.weight": [1e-4, pytest.approx(3e-4)],
        "h.0.weight": [0.02, pytest.approx(0.06)],
        "scale": [0.001, 0.003],
    }
    doubled = SPEC.with_rate(0.002)
    assert [doubled.of_group(group).rate for group in doubled.groups] == [0.002, 2e-4, 0.04]


def test_what_a_file_says_is_read_again_and_absent_groups_are_not_written() -> None:
    written = SPEC.model_dump(mode="json", exclude_none=True)
    assert OptimizerSpec.model_validate(written) == SPEC
    assert written["groups"][0] == {
        "parameters": ["*.bias", "*norm*"],
        "options": {"weight_decay": 0},
    }
    assert OptimizerSpec().model_dump() == {"name": "sgd", "options": {}}
    assert OptimizerSpec().settings == {"name": "sgd", "options": {}}
    assert "; *.bias *norm*: weight_decay=0; lm_head.weight: lr=0.0001; *.weight: lr=0.02" in str(
        SPEC
    )
    # What is said with other words is the same.
    group = ParameterGroup.parse("*.bias", "*norm*", weight_decay=0.0)
    again = OptimizerSpec.parse(
        "adamw", [group, *SPEC.groups[1:]], lr=0.001, weight_decay=0.1, betas=[0.9, 0.999]
    )
    assert again.settings == SPEC.settings
    assert again.changed(None, {}, SPEC.groups[:1]).settings != SPEC.settings


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([ParameterGroup.parse("*.biases", lr=1)], r"'\*.biases' .* no trained .* h.0.bias"),
        (
            [ParameterGroup.parse("*", lr=1), ParameterGroup.parse("h.0.wait", lr=1)],
            "'h.0.wait' of a parameter group matches no",
        ),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(
    groups: list[ParameterGroup], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        settled(OptimizerSpec.parse("sgd", groups), NAMES, ALIASES)


def test_a_rate_relative_to_nothing_is_refused() -> None:
    spec = OptimizerSpec.parse("sgd", [ParameterGroup.parse("scale", lr=1)], lr=0.0)
    with pytest.raises(InvalidInput, match="is 0, and that of scale is 1: a schedule moves both"):
        settled(spec, NAMES, ALIASES)


SHAPES = {
    "both": [(6, 4), (5,), (), (3, 7), (2, 3, 3, 3)],
    "matrices": [(6, 4), (3, 7)],
    "others": [(5,), (2, 3, 3, 3)],
}
RATES = [0.02, 0.01, 0.03]


def _weights(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kinds", SHAPES)
def test_is_torchs_muon_and_torchs_adamw(kinds: str, fused: bool) -> None:
    options: dict[str, Any] = {"weight_decay": 0.1, "momentum": 0.8, "nesterov": False}
    spec = OptimizerSpec.parse("muon", lr=0.02, betas=(0.8, 0.9), **options)
    ours, theirs = _weights(SHAPES[kinds]), _weights(SHAPES[kinds])
    one = build_optimizer(spec, ours, fused=fused)
    matrices = [weight for weight in theirs if weight.dim() == 2]
    others = [weight for weight in theirs if weight.dim() != 2]
    pair: list[torch.optim.Optimizer] = []
    if matrices:
        muon = torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw", **options)
        pair.append(muon)
    if others:
        adamw = AdamW(others, betas=(0.8, 0.9), weight_decay=0.1, fused=fused)
        pair.append(adamw)
    for step, rate in enumerate(RATES):
        generator = torch.Generator().manual_seed(step)
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        # A weight that no path reaches.
        ours[0].grad = theirs[0].grad = None if step == 1 else ours[0].grad
        one.param_groups[0]["lr"] = rate
        one.step()
        for part in pair:
            part.param_groups[0]["lr"] = rate
            part.step()
    for mine, other, before in zip(ours, theirs, _weights(SHAPES[kinds]), strict=True):
        assert torch.equal(mine, other)
        assert not torch.equal(mine, before)
    # What a checkpoint finds.
    keys = {weight.dim() == 2: one.state[weight].keys() for weight in ours}
    wanted = {True: {"momentum_buffer"}, False: {"exp_avg", "exp_avg_sq", "step"}}
    assert keys == {is_matrix: wanted[is_matrix] for is_matrix in keys}
