"""Which parameters of a model an optimizer updates otherwise: groups by patterns of names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from glob import escape

from drlpp.errors import InvalidInput
from drlpp.specs.optimizer_spec import OptimizerSpec

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
                raise InvalidInput(_no_match(pattern, list(known)))
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


def _no_match(pattern: str, known: Sequence[str]) -> str:
    close = get_close_matches(pattern.strip("*."), known, n=3, cutoff=0.3) or list(known[:3])
    return (
        f"the pattern {pattern!r} of a parameter group matches no trained parameter of the model; "
        f"there are {len(known)}, such as {', '.join(close)}"
    )
