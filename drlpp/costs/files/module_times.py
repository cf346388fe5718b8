"""A profile from the times of modules, which somebody has measured in a run of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from drlpp.capturing.graph import OpGraph
from drlpp.costs.files.cost_table import read_cost_table
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.errors import InvalidFile, InvalidInput


@dataclass(frozen=True)
class ModuleTimes:
    """Seconds of a minibatch that modules take, without those modules inside of them that have any.

    Attributes:
        forward, backward: by the dotted names of modules; the model itself is ``""``.
        update: of an optimizer's step, 0 if it is not known.
        minibatches: that they are the median of.
        device: that they were measured on.
    """

    forward: Mapping[str, float]
    backward: Mapping[str, float]
    update: float = 0.0
    minibatches: int = 1
    device: str = "modules"


def profile_of_modules(times: ModuleTimes, graph: OpGraph, batch_size: int) -> Profile:
    """Return what operators cost, from what their modules do.

    A module's seconds are divided among the operators whose innermost module with a time it is, in
    proportion to the bytes that these read and write; most modules that own any own one. Those of a
    module that has none go to the module around it. An operator keeps as much as it gives.

    Args:
        times: of modules of the model.
        graph: its operators.
        batch_size: samples of the minibatch that was timed.

    Raises:
        InvalidInput: no module of the model has a time.
    """
    shares = [cost.forward_seconds for cost in estimate_profile(graph).operators]
    forward, backward = (
        _divided(seconds, graph, shares) for seconds in (times.forward, times.backward)
    )
    if not any(forward):
        raise InvalidInput(f"no module of {graph.model} takes any time")
    bytes_ = graph.parameter_bytes
    return Profile(
        graph=graph,
        device=times.device,
        batch_size=batch_size,
        operators=tuple(
            OperatorProfile(
                forward_seconds=forward[op.id],
                backward_seconds=backward[op.id],
                kept_bytes=op.output_bytes,
            )
            for op in graph.operators
        ),
        update_seconds_per_byte=times.update / bytes_ if bytes_ else 0.0,
    )


def read_module_times(path: Path, modules: Iterable[str]) -> ModuleTimes:
    """Read a table of costs (:mod:`~drlpp.costs.files.cost_table`) whose names are modules.

    A ``*`` stands for any one part of a name, so ``layers.*`` is every layer, and each takes what
    the row says.

    Raises:
        InvalidFile: naming the row that no module matches, or that another row matches as well.
    """
    known = list(modules)
    forward: dict[str, float] = {}
    backward: dict[str, float] = {}
    profile = read_cost_table(path)
    for operator, cost in zip(profile.graph.operators, profile.operators, strict=True):
        pattern = re.escape(operator.name).replace(r"\*", "[^.]+")
        found = [name for name in known if re.fullmatch(pattern, name)]
        if not found:
            raise InvalidFile(f"{path}: no module of the model is called {operator.name!r}")
        for name in found:
            if name in forward:
                raise InvalidFile(f"{path}: two rows are of module {name!r}; leave one out")
            forward[name], backward[name] = cost.forward_seconds, cost.backward_seconds
    return ModuleTimes(forward, backward, device=f"table {path.name}")


def _divided(seconds: Mapping[str, float], graph: OpGraph, shares: list[float]) -> list[float]:
    """Return the seconds of every operator."""
    owned: dict[str, list[int]] = {}
    for operator in graph.operators:
        owned.setdefault(_innermost(operator.module, seconds), []).append(operator.id)
    found = [0.0] * len(graph)
    for module, taken in seconds.items():
        owner = module
        while owner and owner not in owned:
            owner = owner.rpartition(".")[0]
        owners = owned.get(owner, range(len(graph)))
        total = sum(shares[op] for op in owners)
        for op in owners:
            found[op] += taken * (shares[op] / total if total else 1 / len(owners))
    return found


def _innermost(module: str, timed: Mapping[str, float]) -> str:
    """Return the innermost timed module around one; the model itself if there is none."""
    while module and module not in timed:
        module = module.rpartition(".")[0]
    return module
