"""How a placement is run: the schedule and weight policy, and the optimizer."""

from __future__ import annotations

import math
from typing import Literal, get_args

from pydantic import Field, ValidationError, model_validator

from drlpp.errors import InvalidInput
from drlpp.files import Record, first_problem

PolicyName = Literal["sync", "vanilla", "stash", "pipeoptim"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)

OptimizerName = Literal["sgd", "adam", "adamw"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)

_DEFAULTS: dict[OptimizerName, dict[str, float]] = {
    "sgd": {"lr": 0.01, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0},
    "adam": {"lr": 0.0005, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    "adamw": {"lr": 0.0005, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
}


class Method(Record):
    """A schedule and the weight policy on it.

    ``microbatches`` is 1 unless the schedule is ``gpipe``.
    """

    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    policy: PolicyName = "pipeoptim"
    microbatches: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Method:
        if self.schedule == "gpipe" and self.policy != "sync":
            raise ValueError(f"policy {self.policy} has no meaning on schedule gpipe; use sync")
        if self.schedule == "1f1b" and self.microbatches > 1:
            raise ValueError("schedule 1f1b has no microbatches; use gpipe for them")
        return self

    def __str__(self) -> str:
        parts = f", {self.microbatches} microbatches" if self.microbatches > 1 else ""
        return f"{self.schedule}{parts}, {self.policy}"


def asynchronous_method(policy: str) -> Method:
    """1F1B with a weight policy as a user names it.

    Raises:
        InvalidInput: if there is no such policy, or it needs a flush.
    """
    choices = [name for name in POLICIES if name != "sync"]
    if policy not in choices:
        raise InvalidInput(f"policy {policy!r} is unknown; there are {', '.join(choices)}")
    return Method.model_validate({"policy": policy})


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
