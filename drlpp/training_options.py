"""How a placement is run: the schedule and the weight policy on it."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from drlpp.errors import InvalidInput
from drlpp.files import Record

PolicyName = Literal["sync", "vanilla", "stash", "pipeoptim"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


class Method(Record):
    """A schedule and the weight policy on it.

    ``microbatches`` is 1 unless the schedule is ``gpipe``.
    """

    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    policy: PolicyName = "pipeoptim"
    microbatches: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Method:
        if self.schedule == "gpipe" and self.policy != "sync":
            raise ValueError(f"policy {self.policy} has no meaning on schedule gpipe; use sync")
        if self.schedule == "1f1b" and self.microbatches > 1:
            raise ValueError("schedule 1f1b has no microbatches; use gpipe for them")
        return self

    def __str__(self) -> str:
        parts = f", {self.microbatches} microbatches" if self.microbatches > 1 else ""
        return f"{self.schedule}{parts}, {self.policy}"


def asynchronous_method(policy: str) -> Method:
    """1F1B with a weight policy as a user names it.

    Raises:
        InvalidInput: if there is no such policy, or it needs a flush.
    """
    choices = [name for name in POLICIES if name != "sync"]
    if policy not in choices:
        raise InvalidInput(f"policy {policy!r} is unknown; there are {', '.join(choices)}")
    return Method.model_validate({"policy": policy})
