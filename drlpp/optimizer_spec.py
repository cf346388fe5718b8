"""An optimizer by name and options."""

from __future__ import annotations

import math
from typing import Literal, get_args

from pydantic import Field, ValidationError, model_validator

from drlpp.errors import InvalidInput
from drlpp.files import Record, first_problem

OptimizerName = Literal["sgd", "adam", "adamw"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)

_DEFAULTS: dict[OptimizerName, dict[str, float]] = {
    "sgd": {"lr": 0.01, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0},
    "adam": {"lr": 0.0005, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    "adamw": {"lr": 0.0005, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
}


class OptimizerSpec(Record):
    """An optimizer by name and its options.

    What is not given is as in torch, but for a momentum of 0.9 for sgd, and for adam and adamw
    half of torch's learning rate, since stale gradients want smaller steps.
    """

    name: OptimizerName = "sgd"
    options: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _knows_its_options(self) -> OptimizerSpec:
        unknown = set(self.options) - set(_DEFAULTS[self.name])
        if unknown:
            raise ValueError(
                f"optimizer {self.name} has no option {sorted(unknown)[0]!r}; "
                f"it has {', '.join(_DEFAULTS[self.name])}"
            )
        for option, value in self.options.items():
            below_one = option in {"momentum", "dampening", "beta1", "beta2"}
            if not (0 <= value < 1 if below_one else 0 <= value < math.inf):
                limit = "0 or more and below 1" if below_one else "0 or more"
                raise ValueError(f"{option} of {self.name} is {value}; expected {limit}")
        return self

    @classmethod
    def parse(cls, name: str, **options: float | None) -> OptimizerSpec:
        """Build from a name as a user types it; options that are None are left at their default.

        Raises:
            InvalidInput: if there is no such optimizer or option.
        """
        if name not in OPTIMIZERS:
            raise InvalidInput(f"optimizer {name!r} is unknown; there are {', '.join(OPTIMIZERS)}")
        given = {key: value for key, value in options.items() if value is not None}
        try:
            return cls(name=name, options=given)
        except ValidationError as error:
            raise InvalidInput(f"optimizer {name}: {first_problem(error)}") from None

    def value(self, option: str) -> float:
        """The value of an option, given or default."""
        return self.options.get(option, _DEFAULTS[self.name][option])

    @property
    def complete(self) -> dict[str, float]:
        """All options with their values."""
        return {**_DEFAULTS[self.name], **self.options}
