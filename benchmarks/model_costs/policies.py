"""Versions, memory and time of today's models under weight policies, next to what is promised."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.model_costs.models import MODELS
from drlpp.capturing.capture import capture
from drlpp.costs.memory import MemoryModel
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.simulator import simulate
from drlpp.specs.optimizer_spec import OptimizerSpec

STAGES = 4
SPEED = 0.2
_ADAMW = OptimizerSpec.parse("adamw", lr=1e-4)
METHODS = {
    "flushed 1F1B, M = 4": Method(schedule="1f1b-flush", policy="sync", microbatches=4),
    "stash": Method(policy="stash"),
    "2bw": Method(policy="2bw", accumulate=4),
    "pipeoptim": Method(policy="pipeoptim"),
    "pipeoptim, M = 4": Method(policy="pipeoptim", microbatches=4),
}
_ROUNDS = 3

CONDITIONS = (
    f"models of 1.5 to 2.5 million weights, float32, AdamW, {STAGES} stages with equal numbers of "
    f"operators on emulated accelerators of {SPEED:g} of a core; versions of stages 0 to "
    f"{STAGES - 1}, counted by storage, and what the planners count; memory beyond that of a whole "
    "minibatch at a time, of all stages together; medians of "
    f"{_ROUNDS} rounds in turns"
)


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yield a row of the table for every method."""
    captured = capture(MODELS[name])
    count = len(captured.graph)
    placement = Placement.from_assignment(
        [operator * STAGES // count for operator in range(count)], range(STAGES)
    )
    naive = Method(schedule="gpipe", policy="sync")
    with ClusterSession(captured, STAGES, optimizer=_ADAMW, speeds=[SPEED] * STAGES) as session:
        profile, cluster = session.profile()

        def promised(method: Method) -> list[float]:
            plan, model = session.plan(placement, method), MemoryModel.of(method, _ADAMW)
            workload = Workload.of(profile, method)
            return [
                float(
                    model.stage_bytes(
                        workload.stage(stage.operators, last=index == STAGES - 1),
                        1 if method.flushes else plan.in_flight[index],
                        1,
                    )
                )
                for index, stage in enumerate(placement.stages)
            ]

        def peaks(method: Method) -> tuple[list[int], list[float]]:
            deployment = session.deploy(placement, method)
            _, results = session.run(deployment, 3 * STAGES)
            by_stage = [results[workers[0]] for workers in deployment.pipeline.stages]
            held = [result.peak_weight_bytes / result.weight_bytes for result in by_stage]
            return [result.peak_memory_bytes for result in by_stage], held

        seconds: dict[str, list[float]] = {label: [] for label in METHODS}
        for turn in range(_ROUNDS):
            for label in list(METHODS)[:: 1 if turn % 2 == 0 else -1]:
                outcome = session.measure(Candidate(placement, METHODS[label]), 20)
                assert isinstance(outcome, Measurement), outcome
                seconds[label].append(outcome.seconds_per_minibatch)
        plain, _ = peaks(naive)
        plain_promised = promised(naive)
        for label, method in METHODS.items():
            peak, held = peaks(method)
            more = sum(peak) - sum(plain)
            expected = sum(promised(method)) - sum(plain_promised)
            plan = session.plan(placement, method)
            copies = [
                1
                + method.policy_facts.copies
                + method.policy_facts.stashes
                * MemoryModel.of(method, _ADAMW).older_versions(plan.in_flight[index], 1)
                for index in range(STAGES)
            ]
            simulated = simulate(
                Workload.of(profile, method), cluster, placement, method
            ).seconds_per_minibatch
            median = statistics.median(seconds[label])
            yield {
                "model": name,
                "method": label,
                "versions held": ", ".join(f"{one:.1f}" for one in held),
                "promised": ", ".join(f"{one:g}" for one in copies),
                "MB more": f"{more / 1e6:.0f}",
                "by the formula": f"{expected / 1e6:.0f}",
                "ms per minibatch": f"{1e3 * median:.0f}",
                "simulated": f"{1e3 * simulated:.0f}",
            }
