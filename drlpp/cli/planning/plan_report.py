"""A plan explained: as a table and sentences for readers, and as plain data for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table

from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.profile import Profile
from drlpp.costs.ways_of_training import LOCAL_STEPS, WaysOfTraining
from drlpp.io.formatting import seconds_text
from drlpp.placement.plan import Plan
from drlpp.planners.problem import PlanningProblem
from drlpp.report.tables import table_of
from drlpp.schedule.analysis.staleness import mean_staleness, samples_needed, staleness_text

_CLEARLY = 1.001
"""Times as slow as another: less is nothing to speak of."""


class PlanReport:
    """What there is to say of a plan.

    Args:
        plan: what was found.
        problem: that it is a plan of, under the plan's method.
        profile: that the problem is made of.
        ways: of training it without a pipeline.
    """

    def __init__(
        self, plan: Plan, problem: PlanningProblem, profile: Profile, ways: WaysOfTraining
    ) -> None:
        self._plan, self._problem = plan, problem
        self._ways, self._best_ways = ways, ways.best()
        self._prediction = problem.predict(plan.placement)
        placed = PlacedStages(problem.workload, plan.placement)
        self._staleness = staleness_text(placed.pipeline, plan.method, profile.batch_size)
        late = mean_staleness(placed.pipeline, plan.method)
        self._samples = samples_needed(late, plan.method.policy) if late else 1.0
        self._together = plan.method.minibatches_together(placed.pipeline)
        stages = zip(plan.placement.stages, self._prediction.stages, strict=True)
        self._stages = [
            ([problem.workload.names[op] for op in stage.operators], stage.accelerators, predicted)
            for stage, predicted in stages
        ]

    def record(self) -> dict[str, Any]:
        """Return the plan as plain data.

        ``seconds_per_minibatch`` is by ``rule``, what the planner minimises, which for PipeDream's
        is a formula of its own; ``predicted_seconds_per_minibatch`` by that of the problem for
        every planner, which is a bound. ``error_bar`` is how far off the simulated seconds may be,
        as a share of them, and null where no short runs tell it.
        """
        plan, prediction, own = self._plan, self._prediction, self._plan.own_seconds
        late = {} if self._staleness is None else {"staleness": self._staleness}
        return {
            **short_record(plan),
            "steadiness": plan.steadiness,
            "seconds_per_minibatch": prediction.seconds_per_minibatch if own is None else own,
            "rule": "overlapped" if own is None else plan.note,
            "predicted_seconds_per_minibatch": prediction.seconds_per_minibatch,
            "bottleneck": prediction.bottleneck,
            "planner_seconds": plan.planner_seconds,
            "proven_optimal": plan.proven_optimal,
            "lower_bound": plan.lower_bound,
            "missing_bytes": prediction.missing_bytes,
            "note": plan.note,
            "others": [short_record(other) for other in plan.others],
            "weights_ratio": self._ways.weights_ratio,
            "memory_ratio": self._ways.memory_ratio,
            "ways_of_training": [asdict(one) for one in self._best_ways],
            "stages": [
                {"operators": names, **predicted.model_dump()}
                for names, _, predicted in self._stages
            ],
            **late,
        }

    def text(self) -> RenderableType:
        """Return the stages, what limits speed and memory, how sure it is, what else was found."""
        plan, problem, bound = self._plan, self._problem, self._prediction.seconds_per_minibatch
        above = plan.seconds_per_minibatch / bound - 1 if bound else 0
        return Group(
            f"{problem.workload.model} on {problem.cluster.accelerators} accelerators, planned by "
            f"{plan.found_by} in {seconds_text(plan.planner_seconds)}: {plan.configuration}, "
            f"{plan.method}",
            f"simulated: {plan.text} per minibatch in steady state"
            + (f", {max(above, 0):.1%} above the rule's bound" if bound else ""),
            self._table(),
            f"bound: {seconds_text(bound)} per minibatch, {self._prediction.bottleneck}",
            *self._explanations(),
        )

    def text_of_ways(self) -> RenderableType:
        """Return what this plan and other ways of training take, and which one to take."""
        return Group(self._table_of_ways(), *self._advice())

    def _table_of_ways(self) -> Table:
        """Return what this plan and other ways of training take, the fastest first."""
        plan, notes = self._plan, []
        if self._samples > 1:
            notes.append(f"about {self._samples:.1f}× the samples")
        if self._together > 1:
            notes.append(f"{self._together} minibatches an update")
        memory = max(stage.memory_bytes for stage in self._prediction.stages)
        here, count = plan.seconds_per_minibatch, len(plan.placement.accelerators)
        rows = [("this plan", count, here, memory, True, ", ".join(notes))]
        for one in self._best_ways:
            note = f"{one.passes} passes" if one.passes > 1 else ""
            if not one.way.same_updates:
                note = f"weights averaged every {LOCAL_STEPS} minibatches"
            number, seconds = len(one.accelerators), one.seconds_per_minibatch
            rows.append((one.name, number, seconds, one.memory_bytes, one.fits, note))
        rows.sort(key=lambda row: (not row[4], row[2]))
        best = rows[0][2] or 1.0
        columns = ["predicted", ">accelerators", ">a minibatch", ">over the best"]
        return table_of(
            [*columns, ">memory of each", "fits", ""],
            [
                [
                    name,
                    str(number),
                    seconds_text(seconds),
                    f"{seconds / best:.2f}",
                    decimal(round(bytes_)),
                    "yes" if fits else "no",
                    note,
                ]
                for name, number, seconds, bytes_, fits, note in rows
            ],
        )

    def _advice(self) -> Iterator[str]:
        """Yield what links cost data parallelism, and which way of the same updates to take."""
        ratio, of_all = float(f"{self._ways.weights_ratio:.2g}"), self._ways.of_all()
        waits = ""
        if of_all is not None:
            waits = (
                f": data parallelism over all {len(of_all.accelerators)} waits for its links "
                f"{of_all.waiting_share:.0%} of the time"
            )
        yield f"R_w = {ratio:g} (all weights over a link / a minibatch on one){waits}"
        usable = [one for one in self._best_ways if one.fits and one.way.same_updates]
        seconds = self._plan.seconds_per_minibatch * self._samples
        if not usable:
            yield "no other way of the same updates fits into memory"
            return
        other = min(usable, key=lambda one: one.seconds_per_minibatch)
        faster = seconds / other.seconds_per_minibatch if other.seconds_per_minibatch else 1.0
        if faster > _CLEARLY:
            yield (
                f"use {other.name} ({other.way.torch}) on {len(other.accelerators)}: predicted "
                f"{faster:.2f}× faster to the same loss than this plan"
            )
        elif faster * _CLEARLY > 1:
            yield f"use {other.name} ({other.way.torch}): this plan is predicted no faster"
        else:
            yield (
                f"this plan is predicted {1 / faster:.2f}× faster to the same loss than "
                f"{other.name}, the next"
            )

    def _table(self) -> Table:
        rows = [
            [
                str(number),
                ", ".join(map(str, accelerators)),
                f"{len(names)}: {names[0]}" + (f" … {names[-1]}" if len(names) > 1 else ""),
                seconds_text(predicted.compute_seconds),
                seconds_text(predicted.all_reduce_seconds),
                seconds_text(predicted.message_seconds),
                str(predicted.in_flight),
                decimal(round(predicted.memory_bytes)),
            ]
            for number, (names, accelerators, predicted) in enumerate(self._stages)
        ]
        columns = ["stage", "accelerators", "operators"]
        columns += [">compute", ">all-reduce", ">messages", ">in flight", ">memory"]
        return table_of(columns, rows)

    def _explanations(self) -> Iterator[str]:
        plan, worst = self._plan, self._prediction.worst_memory
        stage = self._prediction.stages[worst]
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
        best: dict[str, Plan] = {}
        for other in plan.others:
            best.setdefault(other.found_by, other)
        if best:
            found = ", ".join(
                f"{name} {one.configuration} {one.text}" for name, one in best.items()
            )
            yield f"also proposed (simulated): {found}"
        fastest = min((one.seconds_per_minibatch for one in plan.others), default=0)
        if fastest and plan.seconds_per_minibatch > _CLEARLY * fastest:
            yield "one of these is faster than this plan; leave out --planner for the fastest"
        if self._staleness is not None:
            yield self._staleness


def short_record(plan: Plan) -> dict[str, Any]:
    """Return a plan among others, as plain data."""
    return {
        "method": plan.found_by,
        "configuration": plan.configuration,
        "in_flight_per_link": plan.method.in_flight_per_link,
        "simulated_seconds_per_minibatch": plan.seconds_per_minibatch,
        "error_bar": plan.error_bar or None,
    }
