"""The nearest layout that cuts between modules, for formats that know nothing smaller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from drlpp.capturing.graph import OpGraph
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.exporting.nearest import Nearest, Unit
from drlpp.placement.placement import Placement

_ANY_MODEL = "drlpp export --to torch takes any model, and --compare modules:NAME,… any modules"
"""What is left where layers cannot be counted, for messages."""


def units_of(
    module: nn.Module, graph: OpGraph, containers: tuple[type[nn.Module], ...]
) -> tuple[Unit, ...]:
    """Return the modules at the top of a model, and those in ``containers`` there, as they run.

    One that owns no operator stands with the one before it.
    """
    names: list[str] = []
    for name, child in module.named_children():
        inner = [f"{name}.{part}" for part, _ in child.named_children()]
        names += inner if isinstance(child, containers) and inner else [name]
    owned: dict[str, list[int]] = {name: [] for name in names}
    for operator in graph.operators:
        path = operator.module.split(".")
        for length in (1, 2):
            prefix = ".".join(path[:length])
            if len(path) >= length and prefix in owned:
                owned[prefix].append(operator.id)
    units: list[Unit] = []
    for name in names:
        unit = Unit((name,), tuple(owned[name]))
        if units and not (unit.operators and units[-1].operators):
            before = units.pop()
            unit = Unit(before.modules + unit.modules, before.operators + unit.operators)
        units.append(unit)
    return tuple(sorted(units, key=lambda unit: unit.operators[:1]))


def layers_of(module: nn.Module, graph: OpGraph) -> tuple[Unit, ...]:
    """Return what stands before the layers of a decoder, every layer, and what stands behind.

    The layers are the children of the list with the most of them.

    Raises:
        InvalidInput: there is no such list.
    """
    lists = {
        name: [part for part, _ in child.named_children()]
        for name, child in module.named_modules()
        if name
        and isinstance(child, nn.ModuleList | nn.ModuleDict | nn.Sequential)
        and len({type(layer) for layer in child.children()}) == 1
    }
    if not lists:
        raise InvalidInput(
            f"{graph.model} has no list of equal layers, which is all that this format divides; "
            f"{_ANY_MODEL}"
        )
    name = max(lists, key=lambda known: len(lists[known]))
    others = [other for other in lists if not f"{other}.".startswith(f"{name}.")]
    if rival := next((other for other in others if len(lists[other]) > 1), None):
        raise InvalidInput(
            f"{graph.model} has layers in {name} and in {rival}, and this format divides those of "
            f"one decoder; {_ANY_MODEL}"
        )
    owned: dict[str, list[int]] = {part: [] for part in lists[name]}
    for operator in graph.operators:
        if operator.module.startswith(f"{name}."):
            owned[operator.module.removeprefix(f"{name}.").split(".")[0]].append(operator.id)
    found = [Unit((f"{name}.{part}",), tuple(numbers)) for part, numbers in owned.items()]
    if not all(unit.operators for unit in found):
        idle = next(unit for unit in found if not unit.operators)
        raise InvalidInput(f"layer {idle.modules[0]} of {graph.model} computes nothing")
    first, last = found[0].operators[0], found[-1].operators[-1]
    before = tuple(op.id for op in graph.operators if op.module and op.id < first)
    behind = tuple(op.id for op in graph.operators if op.module and op.id > last)
    return (Unit(("before",), before), *found, Unit(("behind",), behind))


def with_what_they_read(graph: OpGraph, units: Sequence[Unit], numbers: Sequence[int]) -> list[int]:
    """Return the number of every operator: its unit's, or the largest of those that it reads."""
    found = [-1] * len(graph)
    for unit, number in zip(units, numbers, strict=True):
        for operator in unit.operators:
            found[operator] = number
    for operator, known in enumerate(found):
        if known < 0:
            found[operator] = max((found[p] for p in graph.predecessors[operator]), default=0)
    return found


def nearest_layout(
    nearest: Nearest, graph: OpGraph, units: Sequence[Unit], seconds: Sequence[float]
) -> Nearest:
    """Return the layout by whole units in which the fewest seconds of operators change stage.

    An operator between units, which the model itself computes, goes with what it reads.

    Args:
        nearest: a chain of single workers, cut anywhere.
        graph: its operators.
        units: in the order in which they run.
        seconds: of every operator.

    Raises:
        InvalidInput: there are fewer units than stages.
        InvalidPlacement: a module is used again where it cannot be.
    """
    placement = nearest.candidate.placement
    stages = len(placement.stages)
    stage_of = placement.stage_of_operator(len(graph))
    computing = [unit for unit in units if unit.operators]
    if len(computing) < stages:
        raise InvalidInput(
            f"{graph.model} has {len(computing)} modules to divide and the placement has {stages} "
            "stages; plan for fewer accelerators, or export for torch, which cuts anywhere"
        )
    chosen = _fewest_moved(computing, stage_of, seconds, stages)
    new = with_what_they_read(graph, computing, chosen)
    operators = ([i for i, k in enumerate(new) if k == stage] for stage in range(stages))
    moved = Placement.of(operators, placement.holders)
    try:
        moved.validate_for(graph, 1 + max(moved.accelerators))
    except InvalidPlacement as error:
        raise InvalidPlacement(f"{graph.model} cannot be cut between modules: {error}") from None
    notes, assigned = list(nearest.notes), list(zip(computing, chosen, strict=True))
    for unit, stage in assigned:
        before = sorted({stage_of[operator] for operator in unit.operators})
        if before != [stage]:
            what = "is cut inside, over stages" if len(before) > 1 else "is in stage"
            notes.append(
                f"{unit.modules[-1]} {what} {' and '.join(map(str, before))}; in the export it is "
                f"in stage {stage} as a whole"
            )
    return Nearest(
        replace(nearest.candidate, placement=moved),
        tuple(notes),
        tuple(tuple(unit for unit, stage in assigned if stage == k) for k in range(stages)),
    )


def _fewest_moved(
    units: Sequence[Unit], stage_of: Sequence[int], seconds: Sequence[float], stages: int
) -> list[int]:
    """Return the stage of every unit: none goes back, every stage has one, the fewest seconds move.

    ``best[k]`` is the least of all choices for the units so far of which the last is in stage k.
    """
    infinite = float("inf")
    best, ways = [0.0, *[infinite] * (stages - 1)], []
    for number, unit in enumerate(units):
        moved = [
            sum(seconds[operator] for operator in unit.operators if stage_of[operator] != stage)
            for stage in range(stages)
        ]
        came = [k - 1 if number and k and best[k - 1] < best[k] else k for k in range(stages)]
        best = [best[came[k]] + moved[k] for k in range(stages)]
        ways.append(came)
    stage, chosen = stages - 1, []
    for came in reversed(ways):
        chosen.append(stage)
        stage = came[stage]
    return chosen[::-1]
