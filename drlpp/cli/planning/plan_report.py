"""A plan explained: as a table and sentences for readers, and as plain data for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table

from drlpp.costs.analytic_model import Prediction, pipeline_of
from drlpp.costs.profile import Profile
from drlpp.io.formatting import ranges_of, seconds_text
from drlpp.placement.plan import Plan
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.shared_weights import shared_weights
from drlpp.report.tables import table_of
from drlpp.schedule.analysis.staleness import staleness_text

_CLEARLY = 1.001
"""Times as slow as another: less is nothing to speak of."""

_RULES = {
    "overlapped": "the slower of a stage's compute, with what is left of its all-reduce, and its "
    "messages",
    "serial": "compute, all-reduce and messages of a stage, added up",
}


@dataclass(frozen=True)
class PlanReport:
    """What there is to say of a plan.

    Attributes:
        plan: what was found.
        problem: that it is a plan of, under the plan's method.
        prediction: by the problem's rule, which is a bound.
        staleness: how late gradients are, as training with it will; None if they are not.
        cut_at: what it costs to cut between modules alone, if it was asked for.
    """

    plan: Plan
    problem: PlanningProblem
    prediction: Prediction
    staleness: str | None = None
    cut_at: str | None = None

    @classmethod
    def of(cls, plan: Plan, problem: PlanningProblem, profile: Profile) -> PlanReport:
        """Look at a plan of a problem, which is made of a profile, under the plan's method."""
        pipeline = pipeline_of(problem.workload, plan.placement)
        late = staleness_text(pipeline, plan.method, profile.batch_size)
        return cls(plan, problem, problem.predict(plan.placement), late)

    def lines(self) -> Iterator[str]:
        """Yield sentences that may be long."""
        yield from (line for line in (self.staleness, self.cut_at) if line is not None)

    def text(self) -> RenderableType:
        """Return the stages, what rules, how sure it is, and what else was proposed."""
        plan, problem = self.plan, self.problem
        return Group(
            f"{problem.workload.model} on {problem.cluster.accelerators} accelerators, planned by "
            f"{plan.found_by} in {seconds_text(plan.planner_seconds)}: {plan.configuration}, "
            f"{plan.method}",
            *self._simulated(),
            self._stages(),
            *self._explanations(),
        )

    def record(self) -> dict[str, Any]:
        """Return the same as plain data.

        ``seconds_per_minibatch`` is by ``rule``, what the planner minimises, which for PipeDream's
        is a formula of its own; ``predicted_seconds_per_minibatch`` by that of the problem for
        every planner, which is a bound. ``error_bar`` is how far off the simulated seconds may be,
        as a share of them, and null where no short runs tell it.
        """
        plan, prediction = self.plan, self.prediction
        names = self.problem.workload.names
        own = plan.own_seconds
        record = {
            **_short_record(plan),
            "steadiness": plan.steadiness,
            "seconds_per_minibatch": prediction.seconds_per_minibatch if own is None else own,
            "rule": self.problem.costs if own is None else plan.note,
            "predicted_seconds_per_minibatch": prediction.seconds_per_minibatch,
            "bottleneck": prediction.bottleneck,
            "planner_seconds": plan.planner_seconds,
            "proven_optimal": plan.proven_optimal,
            "lower_bound": plan.lower_bound,
            "missing_bytes": prediction.missing_bytes,
            "note": plan.note,
            "others": [_short_record(other) for other in plan.others],
            "shared_weights": [
                asdict(shared) for shared in shared_weights(self.problem, plan.placement)
            ],
            "stages": [
                {
                    "operators": [names[operator] for operator in stage.operators],
                    **predicted.model_dump(),
                }
                for stage, predicted in zip(plan.placement.stages, prediction.stages, strict=True)
            ],
        }
        said = {"staleness": self.staleness, "cut_at": self.cut_at}
        return record | {name: line for name, line in said.items() if line is not None}

    def _simulated(self) -> Iterator[str]:
        plan, bound = self.plan, self.prediction.seconds_per_minibatch
        seconds = plan.seconds_per_minibatch
        above = f", {max(seconds / bound - 1, 0):.1%} above the rule's bound" if bound else ""
        yield f"simulated: {plan.text} per minibatch in steady state{above}"
        if plan.steadiness < 1:
            yield (
                "(no period was found: over a long window, in which the fastest worker took "
                f"{plan.steadiness:.0%} of the slowest's time)"
            )
        if plan.others and seconds > _CLEARLY * plan.others[0].seconds_per_minibatch:
            faster = plan.others[0]
            change = faster.seconds_per_minibatch / seconds - 1
            yield (
                f"{faster.found_by} {faster.configuration} is faster than this plan: "
                f"{faster.text} per minibatch instead of {plan.text} ({change:+.1%}, simulated); "
                "leave out --planner to search for the fastest"
            )

    def _stages(self) -> Table:
        names = self.problem.workload.names
        rows = []
        for number, (stage, predicted) in enumerate(
            zip(self.plan.placement.stages, self.prediction.stages, strict=True)
        ):
            first, last = names[stage.operators[0]], names[stage.operators[-1]]
            rows.append(
                [
                    str(number),
                    _ranges(stage.accelerators),
                    f"{len(stage.operators)}: {first}" + (f" … {last}" if last != first else ""),
                    seconds_text(predicted.compute_seconds),
                    seconds_text(predicted.all_reduce_seconds),
                    seconds_text(predicted.message_seconds),
                    str(predicted.in_flight),
                    decimal(round(predicted.memory_bytes)),
                ]
            )
        columns = ["stage", "accelerators", "operators"]
        columns += [">compute", ">all-reduce", ">messages", ">in flight", ">memory"]
        return table_of(columns, rows)

    def _explanations(self) -> Iterator[str]:
        """Tell what limits the speed and the memory, how good the plan is, and what else was."""
        plan, prediction = self.plan, self.prediction
        yield (
            f"bound: {seconds_text(prediction.seconds_per_minibatch)} per minibatch, "
            f"{prediction.bottleneck} (the rule: {_RULES[self.problem.costs]})"
        )
        if plan.own_seconds is not None:
            yield f"by the planner's own formula: {seconds_text(plan.own_seconds)}"
        worst = prediction.worst_memory
        stage = prediction.stages[worst]
        spare = stage.spare_bytes
        room = "no limit is known"
        if spare is not None:
            room = f"{decimal(round(abs(spare)))} {'to spare' if spare >= 0 else 'too much'}"
        most = max(one.memory_bytes for one in prediction.stages)
        why = "needs the most" if stage.memory_bytes == most else "has the least to spare"
        yield (
            f"memory: stage {worst} {why}, {decimal(round(stage.memory_bytes))} on each of "
            f"its accelerators; {room}"
        )
        if plan.proven_optimal:
            yield "proven: no placement has a smaller bound"
        elif plan.lower_bound:
            above = plan.seconds_per_minibatch / plan.lower_bound - 1
            yield (
                f"gap: no placement takes less than {seconds_text(plan.lower_bound)}, by the rule; "
                f"this one is at most {max(above, 0):.1%} slower than the best"
            )
        if plan.note:
            yield plan.note
        for shared in shared_weights(self.problem, plan.placement):
            several = len(shared.names) > 1
            yield (
                f"{_names(shared.names)} {'are' if several else 'is'} on stages "
                f"{' and '.join(map(str, shared.stages))}: {decimal(round(shared.bytes_))} summed "
                f"for each update, {seconds_text(shared.seconds)} of messages for a minibatch"
            )
        best: dict[str, Plan] = {}
        for other in plan.others:
            best.setdefault(other.found_by, other)
        if best:
            found = ", ".join(
                f"{name} {one.configuration} {one.text}" for name, one in best.items()
            )
            yield f"also proposed (simulated): {found}"


def _short_record(plan: Plan) -> dict[str, Any]:
    return {
        "method": plan.found_by,
        "configuration": plan.configuration,
        "in_flight_per_link": plan.method.in_flight_per_link,
        "simulated_seconds_per_minibatch": plan.seconds_per_minibatch,
        "error_bar": plan.error_bar or None,
    }


def _names(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"


def _ranges(numbers: Sequence[int]) -> str:
    """Return ``0–3, 7`` for 0, 1, 2, 3, 7."""
    ranges = ranges_of(sorted(numbers))
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in ranges)
