"""An optimizer by name and options: any of torch's, or a class of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, isclass, signature
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import field_validator

from drlpp.errors import InvalidInput
from drlpp.specs.class_options import NamedClass, option_text, without_module
from drlpp.torch_versions import takes_only_matrices

if TYPE_CHECKING:
    from torch.optim import Optimizer

_DEFAULTS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.01, "momentum": 0.9},
    "adam": {"lr": 0.0005},
    "adamw": {"lr": 0.0005},
}


MOMENTUM_OPTIONS = frozenset({"betas", "momentum"})
"""Where classes of torch have their momentum; of ``betas`` it is the first."""


class OptimizerSpec(NamedClass):
    """An optimizer by name and its options.

    What is not given is as in torch, but for a learning rate of 0.01 and a momentum of 0.9 for
    sgd, and for adam and adamw half of torch's learning rate, since stale gradients want smaller
    steps. ``muon`` is torch's for matrices, and AdamW for the other weights. So is
    ``basisrotation``, Adam in a rotated basis (:mod:`drlpp.specs.basis_rotation`).

    Attributes:
        name: of a class of ``torch.optim`` in lower case, such as ``adam``, ``basisrotation``, or
            ``package.module:Class``.
        options: arguments of the class.
    """

    what: ClassVar[str] = "optimizer"
    # Which kernels run is the runtime's business, nothing differentiates or records an update, and
    # a loss is not maximized.
    hidden: ClassVar[frozenset[str]] = frozenset(
        {"params", "capturable", "differentiable", "foreach", "fused", "maximize"}
    )

    name: str = "sgd"

    @field_validator("name")
    @classmethod
    def _in_lower_case(cls, name: str) -> str:
        return without_module(name, "torch.optim", _known_optimizers().keys())

    @classmethod
    def parse(cls, name: str, /, **options: object) -> OptimizerSpec:
        """Build from a name as a user types it; options that are None are left at their default.

        Raises:
            InvalidInput: if there is no such optimizer or option, or it cannot work here.
        """
        return cls._parse(name, options)

    def changed(self, name: str | None, options: Mapping[str, object]) -> OptimizerSpec:
        """Return another optimizer, or without a name this one with other options.

        Raises:
            InvalidInput: if there is no such optimizer or option, or it cannot work here.
        """
        if name is None and not options:
            return self
        if name is None:
            merged = {**self.options, **options}
            return self._parse(self.name, merged, by_user=not self.refused)
        return self.parse(name, **options)

    def with_momentum_towards(self, highest: float, share: float) -> OptimizerSpec:
        """Return it with a momentum of β + ``share`` · (``highest`` − β); Adam's β₁ is one too.

        Raises:
            InvalidInput: if it has no momentum, or more than ``highest``.
        """
        value = self.complete
        momenta = {name: value[name] for name in MOMENTUM_OPTIONS & value.keys() if value[name]}
        if "betas" in momenta:
            momenta["betas"] = value["betas"][0]
        most = max(momenta.values(), default=0)
        if not 0 < most <= highest:
            reason = f"has a momentum of {most:g}" if most else "has no momentum"
            raise InvalidInput(
                f"stage_momentum is {highest:g}, and optimizer {self.name} {reason}; expected an "
                f"optimizer with a momentum, or β₁, of {highest:g} at most, such as nadam"
            )
        changed: dict[str, Any] = {
            name: old + share * (highest - old) for name, old in momenta.items()
        }
        if "betas" in changed:
            changed["betas"] = [changed["betas"], *value["betas"][1:]]
        return self.model_copy(update={"options": {**self.options, **changed}})

    def find(self) -> type[Optimizer]:
        """Return the class that ``name`` names.

        Raises:
            InvalidInput: if there is none, or it cannot work here.
        """
        from torch.optim import Optimizer

        if ":" in self.name:
            kind = self._find_own(Optimizer)
        else:
            known = _known_optimizers()
            if self.name not in known:
                usable = sorted(name for name in known if not _why_unusable(known[name]()))
                raise InvalidInput(
                    f"optimizer {self.name!r} is unknown; there are {', '.join(usable)}, "
                    "and a class of your own as 'package.module:Class'"
                )
            kind = known[self.name]()
        if reason := _why_unusable(kind):
            raise InvalidInput(f"optimizer {self.name} cannot train a pipeline: {reason}")
        return kind

    def _try(self) -> None:
        import torch

        kind: Any = self.find()
        kind([torch.zeros(1, requires_grad=True)], **self.complete)

    def value(self, option: str) -> Any:
        """Return the value of an option, given or default."""
        return self.complete[option]

    @property
    def complete(self) -> dict[str, Any]:
        """All options with their values, as arguments of the class."""
        return {**self.defaults, **self.arguments}

    @property
    def defaults(self) -> dict[str, Any]:
        """The options that need not be given; some of ours are other than torch's."""
        return {**super().defaults, **_DEFAULTS.get(self.name, {})}

    def __str__(self) -> str:
        """Return the name and the options, without those that are switched off."""
        options = self.options if ":" in self.name else self.complete
        shown = [
            f"{key}={option_text(value)}"
            for key, value in options.items()
            if value is not None and value is not False
        ]
        return f"{self.name} ({', '.join(shown)})" if shown else self.name


def _known_optimizers() -> Mapping[str, Callable[[], type[Optimizer]]]:
    """Return how to find the optimizers of torch, and ours, by lower-case name."""
    from torch import optim

    found = {
        name.lower(): partial(_usable, kind)
        for name, kind in vars(optim).items()
        if isclass(kind) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer
    }
    return {**found, "basisrotation": _basis_rotation}


def _usable(kind: type[Optimizer]) -> type[Optimizer]:
    if takes_only_matrices(kind):
        # A model has vectors too, such as its biases.
        from drlpp.specs.muon import MuonWithAdamW

        return MuonWithAdamW
    return kind


def _basis_rotation() -> type[Optimizer]:
    from drlpp.specs.basis_rotation import BasisRotation

    return BasisRotation


def _why_unusable(kind: type[Optimizer]) -> str | None:
    """Return why no stage of a pipeline can be updated by ``kind``, None if one can."""
    from torch import optim

    closure = signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        return "a step of it evaluates the model several times"
    if kind is optim.SparseAdam:
        return "it takes sparse gradients only"
    return None
