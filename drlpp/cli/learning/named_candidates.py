"""What takes part in a race because a user names it: policies and placements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from drlpp.errors import InvalidInput
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import PIPEOPTIM, SYNC, WEIGHT_POLICIES

if TYPE_CHECKING:
    from drlpp.placement.placement_file import PlacementFile
    from drlpp.racing.contenders import Contender
    from drlpp.runtime import ClusterSession

NAMED_POLICIES = tuple(name for name in WEIGHT_POLICIES if name not in (SYNC.name, PIPEOPTIM.name))
"""All but those that take part anyway."""


def named_methods(
    policies: Sequence[str], options: Mapping[str, object]
) -> tuple[Method, list[Method]]:
    """Return the common method, and that of each policy that is named.

    Options that belong to one of these policies alone go to that one.

    Raises:
        InvalidInput: there is no such policy or option, or it takes part anyway.
    """
    from drlpp.schedule.method_choice import choose_method

    own: dict[str, dict[str, object]] = {}
    for policy in dict.fromkeys(policies):
        if policy in (SYNC.name, PIPEOPTIM.name):
            raise InvalidInput(
                f"policy {policy} takes part in every race; leave out --policy {policy}, which is "
                f"for others ({', '.join(NAMED_POLICIES)})"
            )
        facts = WEIGHT_POLICIES.get(policy)
        names = facts.own_options.names if facts and facts.own_options else ()
        own[policy] = {name: options[name] for name in names if name in options}
    taken = {name for given in own.values() for name in given}
    common = choose_method(None, {key: options[key] for key in options.keys() - taken})
    return common, [choose_method(policy, given, common) for policy, given in own.items()]


def named_placements(
    session: ClusterSession, documents: Sequence[PlacementFile]
) -> list[Contender]:
    """Return the candidates of files, as they run on a session's workers.

    Raises:
        InvalidInput: one is of another model, or needs more workers.
    """
    from drlpp.racing.contenders import Contender

    found = []
    for document in documents:
        plan = session.plan(document.plan(session.graph, document.method))
        found.append(Contender.of(plan.candidate, document.found_by))
    return found
