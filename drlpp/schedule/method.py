"""How a placement is run: the schedule, the weight policy on it, and what goes with them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from drlpp.io.documents import StrictRecord
from drlpp.io.quantities import Count, one_of
from drlpp.schedule.kinds.alternating import FLUSHED_1F1B, ONE_F_ONE_B
from drlpp.schedule.kinds.kind import ScheduleKind
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS, training_kinds
from drlpp.schedule.per_stage import (
    PerLink,
    PerStage,
    links_text,
    most,
    recomputing_text,
    stretched,
)
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule, build_schedule
from drlpp.schedule.ties import Tie, ties_of
from drlpp.schedule.weight_policies import (
    PIPEOPTIM,
    SYNC,
    WEIGHT_POLICIES,
    Lookahead,
    PolicyFacts,
)


def _needs_recomputation(facts: PolicyFacts, precision: object) -> bool:
    """Return whether what autocast keeps of a forward is of no use to its backward."""
    return facts.writes_in_place and precision in ("bfloat16", "float16")


PolicyName = Annotated[str, one_of(lambda: WEIGHT_POLICIES)]
KindName = Annotated[str, one_of(training_kinds)]

Precision = Literal["float32", "bfloat16", "float16"]

SUGGESTED_LOSS_SCALE = 1024.0
"""2¹⁰ of the factors from 8 to 2¹⁵ that Mixed Precision Training (2018) trained with."""


class Method(StrictRecord):
    """A schedule, the weight policy on it, and how passes are computed.

    Attributes:
        schedule: ``1f1b`` is asynchronous; ``1f1b-flush``, ``zb-h1``, ``zb-v`` and ``gpipe`` empty
            the pipeline before every update. ``zb-v`` needs two stages on every accelerator. All
            are listed in :mod:`drlpp.schedule.kinds.registry`.
        policy: which weights the passes of a stage use; ``sync`` where they never change between
            a forward and its backward. All are listed in :mod:`drlpp.schedule.weight_policies`.
        microbatches: parts of a minibatch, up to 10,000, whose gradients make one update together.
            On an asynchronous schedule they follow each other without a pause, and s is divided by
            their number, rounded up: with as many as stages it is one at most.
        accumulate: minibatches whose gradients make one update, up to 10,000: it divides the number
            of updates. A measurement takes whole updates. Policy ``2bw`` needs as many
            microbatches in an update as are in flight.
        in_flight_per_link: parts in flight beyond NOAM, which has one for each worker: this many
            for each link between stages, up to 100, or a list with a number for the links into
            every stage but the first. They hide the time that messages are on their way, and make s
            and memory larger (:meth:`drlpp.schedule.pipeline.Pipeline.in_flight`).
        recompute: compute activations again for the backward pass instead of keeping them: on all
            stages, or a list that says it of each. Left out, it is true where ``precision`` needs
            it. A list of equal values is that value.
        precision: ``bfloat16`` and ``float16`` run the passes under torch's autocast; weights,
            gradients and updates stay as they are. Autocast keeps copies of a forward's weights,
            so policies whose backward uses other weights need ``recompute`` with it.
        compiled: compile every stage, forward and backward, as ``torch.compile`` does. A stage for
            which that is not possible runs as it is, and a note says why. So does evaluation.
        loss_scale: of ``float16`` only: losses are multiplied with it before their backward, so
            that small gradients are not rounded to 0, and gradients divided by it before their
            update. A power of two rounds nothing. None takes :data:`SUGGESTED_LOSS_SCALE`. It
            stays as it is, unlike that of ``torch.amp.GradScaler``: asynchronous stages have
            backwards in flight, which would mix gradients of different scales. An update whose
            gradients are not finite is skipped: on schedules that flush by all stages, otherwise by
            the stage whose they are.
        clip_norm: gradients whose norm is larger are scaled down to it. On schedules that flush it
            is the norm over all stages; an asynchronous stage cannot wait for the others, and
            takes the norm of its own gradients. 0 does not clip.
        annealing_minibatches: K of PipeMare's learning-rate rescheduling (T1, pipemare eq. 4);
            0 leaves it out.
        correction_decay: D of PipeMare's discrepancy correction (T2, pipemare §3.2); 0 leaves it
            out.
    """

    schedule: KindName = ONE_F_ONE_B.name
    policy: PolicyName = PIPEOPTIM.name
    microbatches: int = Field(default=1, ge=1, le=10_000)
    accumulate: int = Field(default=1, ge=1, le=10_000)
    in_flight_per_link: PerLink = 0
    recompute: PerStage = False
    precision: Precision = "float32"
    compiled: bool = False
    loss_scale: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    clip_norm: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    annealing_minibatches: Count = 0
    correction_decay: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _recomputes_where_it_has_to(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "recompute" not in values:
            policy = values.get("policy", PIPEOPTIM.name)
            facts = WEIGHT_POLICIES.get(policy) if isinstance(policy, str) else None
            if facts is not None and _needs_recomputation(facts, values.get("precision")):
                return {**values, "recompute": True}
        return values

    @model_validator(mode="after")
    def _fits_together(self) -> Method:
        kind, facts = self.schedule_kind, self.policy_facts
        if kind.flushes and not facts.synchronous:
            raise ValueError(
                f"policy {self.policy} has no meaning on schedule {self.schedule}; use {SYNC.name}"
            )
        if self.in_flight_per_link and kind.flushes:
            raise ValueError(
                f"schedule {kind.name} empties the pipeline before every update, so "
                f"in_flight_per_link has no meaning on it; use {ONE_F_ONE_B.name}"
            )
        if self.needs_recomputation and self.recompute is not True:
            raise ValueError(
                f"in {self.precision}, autocast keeps copies of the weights of a forward, and "
                f"policy {self.policy} needs newer ones in the backward; leave out "
                f"recompute{'=false' if not self.recompute else ', or let every stage do it'}"
            )
        if self.compiled and kind.splits_backward:
            raise ValueError(
                f"schedule {kind.name} makes backwards in two halves, and those of compiled stages "
                f"are made in one; use {FLUSHED_1F1B.name}, or leave out compiled"
            )
        if self.loss_scale is not None and self.precision != "float16":
            raise ValueError(
                f"loss_scale has no meaning in {self.precision}, whose range is wide enough; leave "
                "it out, or use precision=float16"
            )
        for policy in WEIGHT_POLICIES.values():
            given = any(getattr(self, name) for name in policy.own_options)
            if policy.name == self.policy and policy.own_options and not given:
                raise ValueError(
                    f"policy {policy.name} needs {' or '.join(policy.own_options)}, or both; "
                    "without them it is vanilla"
                )
            if given and policy.name != self.policy:
                raise ValueError(
                    f"{' and '.join(policy.own_options)} belong to policy {policy.name}, not to "
                    f"{self.policy}"
                )
        return self

    @property
    def schedule_kind(self) -> ScheduleKind:
        """What the schedule can do."""
        return SCHEDULE_KINDS[self.schedule]

    @property
    def policy_facts(self) -> PolicyFacts:
        """What the weight policy is."""
        return WEIGHT_POLICIES[self.policy]

    @property
    def flushes(self) -> bool:
        """Whether the pipeline is empty at every update."""
        return self.schedule_kind.flushes

    @property
    def lookahead(self) -> Lookahead | None:
        """How far passes look ahead of the newest weights, or back; None if they never do."""
        facts = self.policy_facts
        # PipeMare's T1 alone moves no weights.
        return None if facts.own_options and not self.correction_decay else facts.lookahead

    def __str__(self) -> str:
        parts: list[str] = [self.schedule]
        if self.microbatches > 1:
            parts.append(f"{self.microbatches} microbatches")
        parts.append(self.policy)
        if self.annealing_minibatches:
            parts.append(f"T1 over {self.annealing_minibatches} minibatches")
        if self.correction_decay:
            parts.append(f"T2 with D={self.correction_decay:g}")
        if self.accumulate > 1:
            parts.append(f"updates of {self.accumulate} minibatches")
        if self.in_flight_per_link:
            parts.append(f"{links_text(self.in_flight_per_link)} in flight per link beyond NOAM")
        if self.recompute:
            parts.append(recomputing_text(self.recompute))
        if self.clip_norm:
            parts.append(f"gradients clipped to {self.clip_norm:g}")
        if self.precision != "float32":
            parts.append(self.precision)
        if self.compiled:
            parts.append("compiled")
        if self.precision == "float16":
            parts.append(f"losses scaled by {self.applied_loss_scale:g}")
        return ", ".join(parts)

    def unlike(self, usual: Method, stages: int) -> Iterator[str]:
        """Yield in short what of schedule, policy, depth and recomputation is not as usual.

        With one of ``stages``, the order of passes, policy and depth do not matter. A policy is not
        said where it is the only one that the schedule could have.
        """
        if stages > 1 and self.schedule != usual.schedule:
            yield self.schedule
        synchronous = self.policy_facts.synchronous
        if stages > 1 and self.policy != usual.policy and not synchronous:
            yield self.policy
        if stages > 1 and not self.flushes and self.in_flight_per_link != usual.in_flight_per_link:
            yield f"+{links_text(self.in_flight_per_link)} in flight"
        if self.recompute != usual.recompute:
            yield recomputing_text(self.recompute)

    @property
    def needs_recomputation(self) -> bool:
        """Whether what autocast keeps of a forward is of no use to its backward."""
        return _needs_recomputation(self.policy_facts, self.precision)

    def recomputes(self, stage: int) -> bool:
        """Return whether a stage computes its activations again."""
        return self.recompute[stage] if isinstance(self.recompute, tuple) else self.recompute

    @property
    def for_any_stages(self) -> Method:
        """The same for any number of stages.

        What differs between stages has the most in flight of all links, and recomputes everywhere.
        """
        if not self.has_lists:
            return self
        return self.model_copy(
            update={
                "in_flight_per_link": most(self.in_flight_per_link),
                "recompute": most(self.recompute),
            }
        )

    @property
    def has_lists(self) -> bool:
        """Whether it is for one number of stages alone."""
        return isinstance(self.in_flight_per_link, tuple) or isinstance(self.recompute, tuple)

    def for_stages(self, stages: int) -> Method:
        """Return the same for so many stages, lists stretched to fit."""
        if not self.has_lists:
            return self
        return self.model_copy(
            update={
                "in_flight_per_link": stretched(self.in_flight_per_link, stages - 1),
                "recompute": stretched(self.recompute, stages),
            }
        )

    @property
    def recomputation_text(self) -> str | None:
        """Say in one line why activations are computed again, where the precision asks for it."""
        if not self.needs_recomputation:
            return None
        return (
            f"in {self.precision}, activations are computed again for the backward, a forward more "
            f"for each minibatch: autocast keeps copies of a forward's weights, and {self.policy} "
            "needs newer ones in the backward (a policy that stashes weights does not: stash)"
        )

    @property
    def applied_loss_scale(self) -> float:
        """What losses are multiplied with before their backward: 1 but in float16."""
        if self.precision != "float16":
            return 1.0
        return SUGGESTED_LOSS_SCALE if self.loss_scale is None else self.loss_scale

    @property
    def skips_updates(self) -> bool:
        """Whether an update is left out if its gradients are not finite."""
        return self.precision == "float16"

    @property
    def needs_norm(self) -> bool:
        """Whether updates need the norm of their gradients, to clip them or to be skipped."""
        return self.clip_norm > 0 or self.skips_updates

    def in_flight(self, pipeline: Pipeline) -> tuple[int, ...]:
        """Return for every stage the parts that a replica has in flight in steady state."""
        return pipeline.in_flight(self.in_flight_per_link)

    def parts_in_between(self, pipeline: Pipeline) -> list[int]:
        """Return for every stage the parts between a part's forward and its backward: (d − 1)·m.

        In steady state the forward of a part stands just before its replica's backward of the one
        d − 1 of its own earlier, with d in flight; with m replicas those are (d − 1)·m parts.
        """
        return [
            (depth - 1) * len(workers)
            for depth, workers in zip(self.in_flight(pipeline), pipeline.stages, strict=True)
        ]

    def schedule_for(
        self, pipeline: Pipeline, minibatches: int, through: int | None = None
    ) -> Schedule:
        """Return the actions of every worker for ``minibatches`` minibatches.

        With ``through`` they are only those up to the update that contains the minibatches below.
        """
        return build_schedule(
            pipeline,
            minibatches,
            self.schedule,
            self.microbatches,
            accumulate=self.accumulate,
            in_flight_per_link=self.in_flight_per_link,
            recompute=self.recompute,
            share_norm=self.needs_norm and self.flushes,
            through=through,
        )

    def ties(self, pipeline: Pipeline) -> tuple[Tie, ...]:
        """Return the weights that several stages hold copies of, and how these are updated."""
        together = [self.minibatches_of_update(len(workers)) for workers in pipeline.stages]
        return ties_of(pipeline, self.in_flight(pipeline), together)

    def minibatches_together(self, pipeline: Pipeline) -> int:
        """Return the fewest minibatches after which all stages have made whole updates."""
        return math.lcm(*(self.minibatches_of_update(len(stage)) for stage in pipeline.stages))

    def minibatches_of_update(self, replicas: Any) -> Any:
        """Return how many minibatches make one update of a stage of ``replicas``, or an array."""
        kind = self.schedule_kind
        return kind.minibatches_of_update(replicas, self.accumulate, self.microbatches)

    def parts_of_update(self, replicas: Any) -> Any:
        """Return how many parts of minibatches make one update of a stage of ``replicas``."""
        return self.minibatches_of_update(replicas) * self.microbatches

    def minibatches_in_flight(self, pipeline: Pipeline) -> int:
        """Return how many minibatches the most parts that a stage has in flight make."""
        parts = max(
            depth * len(workers)
            for depth, workers in zip(self.in_flight(pipeline), pipeline.stages, strict=True)
        )
        return -(-parts // self.microbatches)

    def synchronous(self, pipeline: Pipeline) -> Method:
        """Return the same with a flush before every update: PipeMare's warm-up (W, pipemare §4).

        All stages make one update of as many minibatches as make whole updates of each of them.
        """
        return self.model_copy(
            update={
                "schedule": FLUSHED_1F1B.name,
                "policy": SYNC.name,
                "accumulate": self.minibatches_together(pipeline),
                "in_flight_per_link": 0,
                "annealing_minibatches": 0,
                "correction_decay": 0.0,
            }
        )


DEFAULT_METHOD = Method()
