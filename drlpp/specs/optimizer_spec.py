"""An optimizer by name and options: any of torch's, or a class of the user's own.

And which parameters of a model it updates otherwise: groups by patterns of names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from glob import escape
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationError

from drlpp.errors import InvalidInput
from drlpp.io.documents import Record, first_problem
from drlpp.specs.class_options import NamedClass, OptionValue, options_text

_DEFAULTS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.01, "momentum": 0.9},
    "adam": {"lr": 0.0005},
    "adamw": {"lr": 0.0005},
}


class ParameterGroup(Record):
    """Parameters with options of their own.

    Attributes:
        parameters: patterns of their names as in the module's ``named_parameters``, such as
            ``*.bias`` (:mod:`fnmatch`, in which ``*`` matches dots too, and case counts).
        options: of the optimizer, those that differ.
    """

    parameters: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    options: dict[str, OptionValue] = Field(default_factory=dict)

    @classmethod
    def parse(cls, *parameters: str, **options: object) -> Self:
        """Build from patterns, and options as a user types them.

        Raises:
            InvalidInput: if no pattern is given, or an option is none.
        """
        try:
            return cls.model_validate({"parameters": parameters, "options": options})
        except ValidationError as error:
            what = f"parameter group {' '.join(parameters)}"
            raise InvalidInput(f"{what}: {first_problem(error)}") from None


class OptimizerSpec(NamedClass):
    """An optimizer by name and its options, and what differs for groups of parameters.

    What is not given is as in torch, but for a learning rate of 0.01 and a momentum of 0.9 for
    sgd, and for adam and adamw half of torch's learning rate, since stale gradients want smaller
    steps. ``muon`` is torch's for matrices, and AdamW for the other weights.

    Attributes:
        name: of a class of ``torch.optim`` in lower case, such as ``adam``, or
            ``package.module:Class``.
        options: arguments of the class.
        groups: parameters that are updated otherwise; one belongs to the first group that has a
            pattern for it.
    """

    what: ClassVar[str] = "optimizer"
    _option: ClassVar[str] = "--optimizer"
    _in_python: ClassVar[str] = "optimizer=OptimizerSpec.parse({0!r})"
    module: ClassVar[str] = "torch.optim"
    base_name: ClassVar[str] = "Optimizer"
    # Which kernels run is the runtime's business, nothing differentiates or records an update, and
    # a loss is not maximized.
    hidden: ClassVar[frozenset[str]] = frozenset(
        {"params", "capturable", "differentiable", "foreach", "fused", "maximize"}
    )

    name: str = "sgd"
    groups: tuple[ParameterGroup, ...] = Field(default=(), exclude_if=lambda groups: not groups)

    @classmethod
    def parse(
        cls, name: str, groups: Iterable[ParameterGroup] = (), /, **options: object
    ) -> OptimizerSpec:
        """Build from a name as a user types it; options that are None are left at their default.

        Raises:
            InvalidInput: if there is no such optimizer or option, or it cannot work here.
        """
        return cls._parse(name, options, groups=tuple(groups))

    def changed(
        self,
        name: str | None,
        options: Mapping[str, object],
        groups: Iterable[ParameterGroup] = (),
    ) -> OptimizerSpec:
        """Return another optimizer, or this one with other options.

        It is this one without a name, and with the name of the user's own class that it has: a file
        alone names no class to be imported. Groups that are given replace all its groups.

        Raises:
            InvalidInput: if there is no such optimizer or option, or it cannot work here.
        """
        groups = tuple(groups)
        if name is not None and not (name == self.name and ":" in name):
            return self.parse(name, groups, **options)
        if name is None and not options and not groups:
            return self
        by_user = name is not None or not self.refused
        merged = {**self.options, **options}
        return self._parse(self.name, merged, by_user=by_user, groups=groups or self.groups)

    def check(self) -> None:
        """Check that there are such classes with these options, for every group.

        Raises:
            InvalidInput: if not, or if one cannot work here.
        """
        super().check()
        for group in self.groups:
            self.of_group(group).check()

    def of_group(self, group: ParameterGroup) -> OptimizerSpec:
        """Return the optimizer of a group's parameters, which has no groups."""
        options = {**self.options, **group.options}
        return self.model_copy(update={"options": options, "groups": ()})

    def with_rate(self, rate: float) -> OptimizerSpec:
        """Return it with a learning rate; those of groups keep their ratio to it.

        Raises:
            InvalidInput: if it cannot be the rate.
        """
        ratio = rate / self.rate if self.rate else 1.0
        scaled = [
            group.model_copy(
                update={"options": {**group.options, "lr": self.of_group(group).rate * ratio}}
            )
            if "lr" in group.options
            else group
            for group in self.groups
        ]
        return self.changed(None, {"lr": rate}, scaled)

    @classmethod
    def known(cls) -> dict[str, type]:
        """Return torch's optimizers by lower-case name; ours is Muon, of which torch has a half."""
        from drlpp.specs.muon import MuonWithAdamW

        return {**super().known(), "muon": MuonWithAdamW}

    def _try(self) -> None:
        import torch

        kind: Any = self.find()
        if "lr" not in self.complete:
            raise TypeError("it has no argument lr, by which learning rates are given")
        weight = torch.zeros(1, 1, requires_grad=True)
        weight.grad = torch.zeros(1, 1)
        # Some are wrong only in a step: three betas, a class that needs a closure.
        kind([weight], **self.complete).step()

    @property
    def rate(self) -> float:
        """The learning rate, given or default."""
        return float(self.complete["lr"])

    @property
    def complete(self) -> dict[str, Any]:
        """All options with their values, as arguments of the class."""
        return {**self.defaults, **self.arguments}

    @property
    def defaults(self) -> dict[str, Any]:
        """The options that need not be given; some of ours are other than torch's."""
        return {**super().defaults, **_DEFAULTS.get(self.name, {})}

    @property
    def settings(self) -> dict[str, Any]:
        """All fields, of the options only those that differ from the defaults: its identity."""
        found = super().settings
        if self.groups:
            found["groups"] = [
                {"parameters": list(group.parameters), "optimizer": self.of_group(group).settings}
                for group in self.groups
            ]
        return found

    def __str__(self) -> str:
        """Return the name and the options, without those that are switched off, and the groups."""
        groups = "".join(
            f"; {' '.join(group.parameters)}: {options_text(group.options)}"
            for group in self.groups
        )
        options = self.options if ":" in self.name else self.complete
        on = {k: v for k, v in options.items() if v is not None and v is not False}
        return (f"{self.name} ({options_text(on)})" if on else self.name) + groups


_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class GroupMembers:
    """Parameters that one optimizer updates with the same options.

    Attributes:
        names: of the parameters.
        optimizer: without groups.
        rate: its learning rate.
        base_rate: that of the optimizer of all other parameters, which a schedule is made for.
    """

    names: tuple[str, ...]
    optimizer: OptimizerSpec
    rate: float
    base_rate: float

    def rates(self, rates: Sequence[float]) -> Sequence[float]:
        """Return the learning rates of these parameters where ``rates`` are those of the others."""
        if self.rate == self.base_rate:
            return rates
        return [self.rate * (rate / self.base_rate) for rate in rates]


def settled(
    optimizer: OptimizerSpec, names: Iterable[str], aliases: Mapping[str, str]
) -> OptimizerSpec:
    """Return ``optimizer`` with the names that they match in the place of patterns.

    So workers, which know the parameters of a stage by one name each, agree about what is whose.

    Args:
        optimizer: for a whole model.
        names: of the parameters that are trained.
        aliases: for every further name of a tied parameter the one in ``names``.

    Raises:
        InvalidInput: if a pattern matches no parameter, or a group's rate cannot follow a schedule.
    """
    if not optimizer.groups:
        return optimizer
    called: dict[str, list[str]] = {name: [name] for name in names}
    for alias, name in aliases.items():
        if name in called:
            called[name].append(alias)
    known = {alias: name for name, several in called.items() for alias in several}
    groups = []
    for group in optimizer.groups:
        found: set[str] = set()
        for pattern in group.parameters:
            matching = {known[name] for name in _matching(pattern, known)}
            if not matching:
                close = get_close_matches(pattern.strip("*."), known, n=3, cutoff=0.3)
                raise InvalidInput(
                    f"the pattern {pattern!r} of a parameter group matches no trained parameter of "
                    f"the model; there are {len(known)}, such as {', '.join(close or [*known][:3])}"
                )
            found |= matching
        exact = tuple(escape(name) for name in called if name in found)
        groups.append(group.model_copy(update={"parameters": exact}))
    result = optimizer.model_copy(update={"groups": tuple(groups)})
    divided(result, called)
    return result


def divided(optimizer: OptimizerSpec, names: Iterable[str]) -> list[GroupMembers]:
    """Return the groups of some parameters of a model, each in the order of ``names``.

    Args:
        optimizer: for the whole model; what its patterns match does not depend on other parameters.
        names: of the parameters.

    Raises:
        InvalidInput: if a group has a learning rate, and all others have none to compare it with.
    """
    left = dict.fromkeys(names)
    specs = [(group.parameters, optimizer.of_group(group)) for group in optimizer.groups]
    specs.append((("*",), optimizer.model_copy(update={"groups": ()})))
    base_rate = optimizer.rate
    found = []
    for patterns, spec in specs:
        matching = {name for pattern in patterns for name in _matching(pattern, left)}
        own = tuple(name for name in left if name in matching)
        for name in own:
            del left[name]
        rate = spec.rate
        if own and rate != base_rate == 0:
            raise InvalidInput(
                f"the learning rate of optimizer {optimizer.name} is 0, and that of {own[0]} is "
                f"{rate:g}: a schedule moves both alike; expected a rate above 0 for all others"
            )
        if own:
            found.append(GroupMembers(own, spec, rate, base_rate))
    return found


def _matching(pattern: str, names: Collection[str]) -> Collection[str]:
    """Return the names that a pattern matches."""
    if not _WILDCARDS & set(pattern):
        return [pattern] if pattern in names else []
    return [name for name in names if fnmatchcase(name, pattern)]
