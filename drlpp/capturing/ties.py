"""Weights that a module uses again and again, and what that costs: operators that stay together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import fx

from drlpp.capturing.aten import owner
from drlpp.capturing.folding import Group, fold_untied, weight_uses
from drlpp.capturing.graph import common_module

_MOST_NAMES = 3


def tie_notes(module: fx.GraphModule, groups: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence for every operator that weights used more than once made of several.

    Args:
        module: the captured graph.
        groups: its operators, as :func:`drlpp.capturing.folding.fold` gives them.
    """
    shared = [
        (name, readers)
        for name, uses in weight_uses(module).items()
        for readers in uses
        if len(readers) > 1
    ]
    if not shared:
        return
    untied = fold_untied(module)
    group_of = {node: index for index, group in enumerate(groups) for node in group}
    untied_of = {node: index for index, group in enumerate(untied) for node in group}
    parameters: dict[int, list[str]] = {}
    modules: dict[int, set[str]] = {}
    for name, readers in shared:
        if len({untied_of[node] for node in readers}) > 1:
            merged = group_of[readers[0]]
            parameters.setdefault(merged, []).append(name)
            modules.setdefault(merged, set()).update(owner(node) for node in readers)
    for merged, names in parameters.items():
        became_one = len({untied_of[node] for node in groups[merged]})
        # A cell that runs step by step is one layer, unless the model has little else.
        if became_one > len(untied) / 2 or not common_module(map(owner, groups[merged])):
            plural = len(names) > 1
            users = sorted(filter(None, modules[merged])) or ["the model itself"]
            yield (
                f"the parameter{'s' * plural} {_listed(names)} {'are' if plural else 'is'} used "
                f"more than once, by {_listed(users)}: {became_one} of {len(untied)} operators, "
                f"what lies between them included, are one operator, which no placement can "
                f"divide; {len(groups)} {'are' if len(groups) > 1 else 'is'} left. To divide them, "
                "give each use a module and weights of its own"
            )


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        shown.append(f"{len(names) - _MOST_NAMES} more")
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
