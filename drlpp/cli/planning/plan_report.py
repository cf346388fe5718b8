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
from drlpp.io.formatting import seconds_text
from drlpp.placement.plan import Plan
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.shared_weights import shared_weights
from drlpp.report.tables import table_of
from drlpp.schedule.analysis.staleness import staleness_text

_CLEARLY = 1.001
"""Times as slow as another: less is nothing to speak of."""


@dataclass(frozen=True)
class PlanReport:
    """What there is to say of a plan.

    Attributes:
        plan: what was found.
        problem: that it is a plan of, under the plan's method.
        prediction: by the problem's rule, which is a bound.
        staleness: how late gradients are, as training with it will; None if they are not.
    """

    plan: Plan
    problem: PlanningProblem
    prediction: Prediction
    staleness: str | None = None

    @classmethod
    def of(cls, plan: Plan, problem: PlanningProblem, profile: Profile) -> PlanReport:
        """Look at a plan of a problem, which is made of a profile, under the plan's method."""
        pipeline = pipeline_of(problem.workload, plan.placement)
        late = staleness_text(pipeline, plan.method, profile.batch_size)
        return cls(plan, problem, problem.predict(plan.placement), late)

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
        stages = zip(plan.placement.stages, prediction.stages, strict=True)
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
                {"operators": [names[op] for op in stage.operators], **predicted.model_dump()}
                for stage, predicted in stages
            ],
        }
        return record if self.staleness is None else record | {"staleness": self.staleness}

    def _simulated(self) -> Iterator[str]:
        plan, bound = self.plan, self.prediction.seconds_per_minibatch
        seconds = plan.seconds_per_minibatch
        above = f", {max(seconds / bound - 1, 0):.1%} above the rule's bound" if bound else ""
        yield f"simulated: {plan.text} per minibatch in steady state{above}"
        if plan.others and seconds > _CLEARLY * plan.others[0].seconds_per_minibatch:
            faster = plan.others[0]
            change = faster.seconds_per_minibatch / seconds - 1
            yield (
                f"{faster.found_by} {faster.configuration} is faster than this plan: "
                f"{faster.text} per minibatch ({change:+.1%}, simulated); leave out --planner to "
                "search for the fastest"
            )

    def _stages(self) -> Table:
        names = self.problem.workload.names
        rows = []
        stages = zip(self.plan.placement.stages, self.prediction.stages, strict=True)
        for number, (stage, predicted) in enumerate(stages):
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
            f"{prediction.bottleneck}"
        )
        worst = prediction.worst_memory
        stage = prediction.stages[worst]
        room, spare = "no limit is known", stage.spare_bytes
        if spare is not None:
            room = f"{decimal(round(abs(spare)))} {'to spare' if spare >= 0 else 'too much'}"
        yield (
            f"memory: stage {worst} is the tightest, {decimal(round(stage.memory_bytes))} on each "
            f"of its accelerators; {room}"
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
            yield (
                f"{', '.join(shared.names)} on stages {' and '.join(map(str, shared.stages))}: "
                f"{decimal(round(shared.bytes_))} summed for each update, "
                f"{seconds_text(shared.seconds)} of messages for a minibatch"
            )
        best: dict[str, Plan] = {}
        for other in plan.others:
            best.setdefault(other.found_by, other)
        if best:
            found = ", ".join(
                f"{name} {one.configuration} {one.text}" for name, one in best.items()
            )
            yield f"also proposed (simulated): {found}"
        if self.staleness is not None:
            yield self.staleness


def _short_record(plan: Plan) -> dict[str, Any]:
    return {
        "method": plan.found_by,
        "configuration": plan.configuration,
        "in_flight_per_link": plan.method.in_flight_per_link,
        "simulated_seconds_per_minibatch": plan.seconds_per_minibatch,
        "error_bar": plan.error_bar or None,
    }


def _ranges(numbers: Sequence[int]) -> str:
    """Return ``0–3, 7`` for 0, 1, 2, 3, 7."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in found)
