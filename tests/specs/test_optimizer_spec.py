"""Optimizers by name: what is accepted, what is refused, and in which words."""

import inspect
import subprocess
import sys

import pytest
import torch

from drlpp.errors import InvalidInput
from drlpp.specs.optimizer_spec import OptimizerSpec

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
