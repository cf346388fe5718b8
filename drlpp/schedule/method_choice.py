"""Choosing a method as a user asks for it: by a policy's name and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from drlpp.errors import InvalidInput
from drlpp.io.documents import first_problem
from drlpp.schedule.kinds.alternating import GPIPE
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS, training_kinds
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import PIPEOPTIM, SYNC, WEIGHT_POLICIES


def choose_method(
    policy: str | None = None,
    options: Mapping[str, object] | None = None,
    base: Method | None = None,
) -> Method:
    """Return a method as a user asks for it: ``base`` with another policy, or other options.

    What belongs to another policy or schedule is left behind: a policy other than sync means 1F1B,
    a schedule that flushes means sync. PipeMare has its discrepancy correction unless
    ``correction_decay`` is 0.

    Raises:
        InvalidInput: if there is no such policy or option, or they do not fit together.
    """
    given = dict(options or {})
    if "policy" in given:
        raise InvalidInput("policy is not an option of a method, but its name; use --policy")
    unknown = sorted(given.keys() - Method.model_fields.keys())
    if unknown:
        known = ", ".join(name for name in Method.model_fields if name != "policy")
        raise InvalidInput(f"a method has no option {unknown[0]!r}; it has {known}")
    if policy is not None and policy not in WEIGHT_POLICIES:
        raise InvalidInput(f"policy {policy!r} is unknown; there are {', '.join(WEIGHT_POLICIES)}")
    schedule = given.get("schedule")
    if schedule is not None and schedule not in (kinds := training_kinds()):
        raise InvalidInput(f"schedule {schedule!r} is unknown; there are {', '.join(kinds)}")
    base = base or Method()
    values = base.model_dump()
    if not base.recompute or base.needs_recomputation:
        # Nobody has asked for it, or against it: the precision may have.
        del values["recompute"]
    chosen = policy or _policy_of(given.get("schedule"), values)
    facts = WEIGHT_POLICIES[chosen]
    if chosen != values["policy"]:
        # Of the other policy; options of its own belong to some only.
        kept = ["accumulate", "recompute", "precision", "compiled", "loss_scale", "clip_norm"]
        if not facts.synchronous:
            kept.append("in_flight_per_link")
            if not WEIGHT_POLICIES[values["policy"]].synchronous:
                kept.append("microbatches")
        values = {"policy": chosen} | {key: values[key] for key in kept if key in values}
        if facts.synchronous:
            values["schedule"] = GPIPE.name
    for option, value in facts.own_options.items():
        values.setdefault(option, value)
    if given.get("precision", "float16") != "float16":
        values.pop("loss_scale", None)
    try:
        return Method.model_validate({**values, **given})
    except ValidationError as error:
        problem = first_problem(error)
        where = f"policy {chosen}"
        raise InvalidInput(
            problem if problem.startswith(where) else f"{where}: {problem}"
        ) from None


def _policy_of(schedule: Any, values: Mapping[str, Any]) -> str:
    policy: str = values["policy"]
    if schedule in (None, values["schedule"]):
        return policy
    if SCHEDULE_KINDS[schedule].flushes:
        return SYNC.name
    return PIPEOPTIM.name if WEIGHT_POLICIES[policy].synchronous else policy
