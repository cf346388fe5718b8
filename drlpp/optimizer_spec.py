"""An optimizer by name and options: any of torch's, or a class of the user's own."""

from __future__ import annotations

from inspect import Parameter, isclass, signature
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from drlpp.class_options import (
    OptionValue,
    check_options,
    find_class,
    option_defaults,
    option_text,
)
from drlpp.errors import InvalidInput
from drlpp.files import Record, first_problem

if TYPE_CHECKING:
    from torch.optim import Optimizer

# Which kernels run is the runtime's business, and nothing differentiates or records an update.
_HIDDEN = frozenset({"params", "capturable", "differentiable", "foreach", "fused"})

_DEFAULTS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.01, "momentum": 0.9},
    "adam": {"lr": 0.0005},
    "adamw": {"lr": 0.0005},
}

class OptimizerSpec(Record):
    """An optimizer by name and its options.

    What is not given is as in torch, but for a learning rate of 0.01 and a momentum of 0.9 for
    sgd, and for adam and adamw half of torch's learning rate, since stale gradients want smaller
    steps.

    An optimizer of torch is checked when its description is made, a class of the user's own only
    by :meth:`parse` and :meth:`check`, so that reading a file imports nothing that it names.

    Attributes:
        name: of a class of ``torch.optim`` in lower case, such as ``adam``, or
            ``package.module:Class``.
        options: arguments of the class.
    """

    name: str = "sgd"
    options: dict[str, OptionValue] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _in_lower_case(cls, name: str) -> str:
        return name if ":" in name else name.lower()

    @model_validator(mode="after")
    def _is_usable(self) -> OptimizerSpec:
        if ":" not in self.name:
            self.check()
        return self

    @classmethod
    def parse(cls, name: str, /, **options: object) -> OptimizerSpec:
        """Build from a name as a user types it; options that are None are left at their default.

        Raises:
            InvalidInput: if there is no such optimizer or option, or it cannot work here.
        """
        given = {key: value for key, value in options.items() if value is not None}
        try:
            spec = cls.model_validate({"name": name, "options": given})
        except ValidationError as error:
            cause = error.errors()[0].get("ctx", {}).get("error")
            if isinstance(cause, InvalidInput):
                raise cause from None
            raise InvalidInput(f"optimizer {name}: {first_problem(error)}") from None
        spec.check()
        return spec

    def check(self) -> None:
        """Make the optimizer once, for a parameter that nobody uses.

        Raises:
            InvalidInput: if there is no such optimizer or option, or it cannot work here.
        """
        import torch

        kind = self.find()
        check_options(f"optimizer {self.name}", kind, self.options, _HIDDEN)
        try:
            kind([torch.zeros(1, requires_grad=True)], **self.complete)
        except Exception as error:
            raise InvalidInput(f"optimizer {self.name}: {error}") from error

    def find(self) -> type[Optimizer]:
        """The class that ``name`` names.

        Raises:
            InvalidInput: if there is none, or it cannot work here.
        """
        from torch.optim import Optimizer

        if ":" in self.name:
            kind = find_class(self.name, Optimizer, "optimizer")
        else:
            known = _optimizers_of_torch()
            if self.name not in known:
                usable = sorted(name for name in known if not _why_unusable(known[name]))
                raise InvalidInput(
                    f"optimizer {self.name!r} is unknown; there are {', '.join(usable)}, "
                    "and a class of your own as 'package.module:Class'"
                )
            kind = known[self.name]
        if reason := _why_unusable(kind):
            raise InvalidInput(f"optimizer {self.name} cannot train a pipeline: {reason}")
        return kind

    def value(self, option: str) -> Any:
        """The value of an option, given or default."""
        return self.complete[option]

    @property
    def complete(self) -> dict[str, Any]:
        """All options with their values; what is a list in a file is a tuple, as in torch."""
        declared = option_defaults(self.find(), _HIDDEN)
        defaults = {key: value for key, value in declared.items() if value is not Parameter.empty}
        given = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in self.options.items()
        }
        return {**defaults, **_DEFAULTS.get(self.name, {}), **given}

    def __str__(self) -> str:
        """Name and options, without those that are switched off."""
        options = self.options if ":" in self.name else self.complete
        shown = [
            f"{key}={option_text(value)}"
            for key, value in options.items()
            if value is not None and value is not False
        ]
        return f"{self.name} ({', '.join(shown)})" if shown else self.name


def _optimizers_of_torch() -> dict[str, type[Optimizer]]:
    """By lower-case name."""
    from torch import optim

    return {
        name.lower(): kind
        for name, kind in vars(optim).items()
        if isclass(kind) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer
    }


def _why_unusable(kind: type[Optimizer]) -> str | None:
    """Why no stage of a pipeline can be updated by ``kind``, if so."""
    from torch import optim

    closure = signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        return "a step of it evaluates the model several times"
    if kind is optim.SparseAdam:
        return "it takes sparse gradients only"
    if kind is optim.Muon:
        return "it takes matrices only, and a model has vectors too, such as its biases"
    return None
