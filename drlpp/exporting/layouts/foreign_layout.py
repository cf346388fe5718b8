"""Layouts of other projects as placements of a model: what :mod:`drlpp.exporting` writes, read.

=======================  =========================================================================
``megatron:Et*3|tt|tL``  Megatron-Core's layout; a part between ``|`` is a stage
``torchtitan:FILE``      a TOML file with ``module_fqns_per_model_part``
``deepspeed:0,3,5``      the parts of a ``PipelineModule``: stage k has layers 0 to 2, then 3 and 4
``vllm:9,10,9``          layers of every stage
``modules:a.1,b``        modules at which stages begin, as in torch's ``split_spec``
=======================  =========================================================================

Stage k stands on accelerator k. What the model itself computes between its modules goes with what
it reads.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

from torch import nn

from drlpp.capturing.graph import OpGraph
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.exporting.layouts import deepspeed
from drlpp.exporting.layouts.module_layout import Unit, layers_of, units_of
from drlpp.io.documents import read_text
from drlpp.placement.placement import Placement

_LONGEST_LAYOUT = 10_000


def read_layout(text: str, module: nn.Module, graph: OpGraph, accelerators: int) -> Placement:
    """Return the placement that a layout means.

    Args:
        text: ``FORMAT:LAYOUT``.
        module: the model.
        graph: its operators.
        accelerators: of the cluster.

    Raises:
        InvalidInput: what is wrong with it, and what would be right.
    """
    name, colon, layout = text.partition(":")
    if not colon or name not in _FORMATS:
        known = ", ".join(f"{known}:…" for known in _FORMATS)
        raise InvalidInput(f"layout {text!r}: expected FORMAT:LAYOUT, one of {known}")
    try:
        stage_of = _FORMATS[name](layout.strip(), module, graph)
        stages = 1 + max(stage_of)
        if empty := sorted(set(range(stages)) - set(stage_of)):
            raise InvalidInput(
                f"stage {empty[0]} computes nothing; give it a module or leave it out"
            )
        if stages > accelerators:
            raise InvalidInput(
                f"it has {stages} stages, and there are {accelerators} accelerators; a stage needs "
                "one of its own"
            )
        placement = Placement.from_assignment(stage_of, range(stages))
        placement.validate_for(graph, accelerators)
    except InvalidPlacement as error:
        raise InvalidPlacement(f"layout {text!r}: {error}") from None
    except InvalidInput as error:
        raise InvalidInput(f"layout {text!r}: {error}") from None
    return placement


def megatron_stages(layout: str) -> list[str]:
    """Return the letters of every stage, with what is repeated written out.

    Raises:
        InvalidInput: it has another letter than ``E``, ``t`` and ``L``.
    """
    layout = layout.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^()]+)\)\*(\d{1,4})", r"([^()*\d])\*(\d{1,4})"):
        layout = re.sub(pattern, lambda found: found[1] * int(found[2]), layout)
        if len(layout) > _LONGEST_LAYOUT:
            raise InvalidInput(f"it is longer than {_LONGEST_LAYOUT} layers")
    for letter in layout:
        if letter not in "EtL|":
            raise InvalidInput(
                f"{letter!r} is no layer; there are E (embedding), t (a layer of the decoder), "
                "L (loss) and | between stages"
            )
    return layout.split("|")


def _megatron(layout: str, module: nn.Module, graph: OpGraph) -> list[int]:
    stages = megatron_stages(layout)
    order = "".join(stages)
    if not re.fullmatch("Et*L", order):
        raise InvalidInput("expected one E at the beginning, then layers t, and one L at the end")
    return _by_layers([stage.count("t") for stage in stages], module, graph)


def _vllm(layout: str, module: nn.Module, graph: OpGraph) -> list[int]:
    return _by_layers(_numbers(layout), module, graph)


def _by_layers(counts: Sequence[int], module: nn.Module, graph: OpGraph) -> list[int]:
    """Return the stage of every operator; what stands around the layers is at the ends."""
    before, *layers, behind = layers_of(module, graph)
    if sum(counts) != len(layers):
        raise InvalidInput(f"it has {sum(counts)} layers, and {graph.model} has {len(layers)}")
    stages = [stage for stage, count in enumerate(counts) for _ in range(count)]
    assigned = [(before, 0), *zip(layers, stages, strict=True), (behind, len(counts) - 1)]
    return _with_the_rest(assigned, graph)


def _deepspeed(layout: str, module: nn.Module, graph: OpGraph) -> list[int]:
    parts = _numbers(layout)
    units = units_of(module, graph, deepspeed.CONTAINERS)
    names = [name for unit in units for name in unit.modules]
    if parts[0] != 0 or sorted(parts) != parts or parts[-1] != len(names):
        raise InvalidInput(
            f"expected numbers from 0 to {len(names)}, the layers {names[0]} to {names[-1]}, each "
            "above the one before"
        )
    ends = list(accumulate(len(unit.modules) for unit in units))
    # Of modules that compute nothing and the one that does, the last has the operators.
    assigned = [
        (unit, bisect_right(parts, end - 1) - 1) for unit, end in zip(units, ends, strict=True)
    ]
    return _with_the_rest(assigned, graph)


def _torchtitan(layout: str, module: nn.Module, graph: OpGraph) -> list[int]:
    path = Path(layout)
    try:
        content = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is no TOML: {error}") from None
    section = content.get("parallelism", content)
    parts = section.get("module_fqns_per_model_part") if isinstance(section, dict) else None
    if not isinstance(parts, list) or not all(
        isinstance(part, list) and all(isinstance(name, str) for name in part) for part in parts
    ):
        raise InvalidInput(
            f"{path} has no module_fqns_per_model_part in [parallelism]: a list of names of "
            "modules for every stage"
        )
    stage_of: dict[str, int] = {}
    for stage, names in enumerate(parts):
        for name in names:
            if name in stage_of:
                raise InvalidInput(f"{name} is in stages {stage_of[name]} and {stage}")
            _check_module(name, module)
            stage_of[name] = stage
    assigned = []
    for name, stage in stage_of.items():
        owned = tuple(op.id for op in graph.operators if _owner(op.module, stage_of) == name)
        assigned.append((Unit((name,), owned), stage))
    return _with_the_rest(assigned, graph)


def _modules(layout: str, module: nn.Module, graph: OpGraph) -> list[int]:
    begins = []
    for name in filter(None, (name.strip() for name in layout.split(","))):
        _check_module(name, module)
        owned = [op.id for op in graph.operators if _owner(op.module, (name,))]
        if not owned:
            raise InvalidInput(f"{name} computes nothing, so no stage can begin there")
        begins.append(owned[0])
    if sorted(set(begins)) != begins:
        raise InvalidInput("name modules in the order in which they compute, each once")
    if begins[:1] == [0]:
        raise InvalidInput("the first stage begins at the model's beginning; leave its module out")
    return [bisect_right(begins, operator) for operator in range(len(graph))]


def _check_module(name: str, module: nn.Module) -> None:
    try:
        module.get_submodule(name)
    except AttributeError:
        raise InvalidInput(f"the model has no module {name!r}") from None


def _owner(path: str, names: Sequence[str] | dict[str, int]) -> str | None:
    """Return the innermost of some modules that a module belongs to."""
    while path and path not in names:
        path = path.rpartition(".")[0]
    return path or None


def _with_the_rest(assigned: Sequence[tuple[Unit, int]], graph: OpGraph) -> list[int]:
    """Return the stage of every operator; what no unit owns goes with what it reads."""
    stage_of = [-1] * len(graph)
    for unit, stage in assigned:
        for operator in unit.operators:
            stage_of[operator] = stage
    for operator, known in enumerate(stage_of):
        if known < 0:
            read = (stage_of[source] for source in graph.predecessors[operator])
            stage_of[operator] = max(read, default=0)
    return stage_of


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 7 for part in parts):
        raise InvalidInput("expected numbers separated by commas")
    return [int(part) for part in parts]


_FORMATS: dict[str, Callable[[str, nn.Module, OpGraph], list[int]]] = {
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "deepspeed": _deepspeed,
    "vllm": _vllm,
    "modules": _modules,
}
