"""PipeDream's planner (pipedream §3.1): replicated stages, on clusters of several levels.

Three readings of it are here. With m replicas, T the forward and backward seconds of the stage's
operators, W its parameter bytes, a the bytes that cross a cut, and B the bandwidth of the level:

===========  ============================  ====================================================
``variant``  a stage                       a cut
===========  ============================  ====================================================
``paper``    max(T, 4(m − 1) W / (m B))/m  2 a / B
``printed``  max(T, 2(m − 1) W / B) / m    2 a / B
``code``     (T + 4(m − 1) W / (m B)) / m  the larger 2 a / (m B) of those before and behind a stage
===========  ============================  ====================================================

* ``printed`` is the formula as the paper prints it. Its time for the all-reduce is not that of the
  (m − 1)/m · W bytes that the text before it says every worker sends and receives.
* ``paper`` has the volume of a ring all-reduce instead, and the paper's maximum, since compute and
  communication overlap. On the published profiles, planned flat, this gives the configurations of
  the paper's table 1 (on 16 accelerators 15-1 for VGG-16 and AlexNet, 16 for ResNet-50; on four
  straight for GNMT-8, in its graph); ``printed`` splits ResNet-50 into 8-8.
* ``code`` is what the authors released, in which the two add up. It charges a stage for its cuts
  only if another stands before it. Where a component of a higher level begins with a replicated
  stage, the all-reduce of this one is shared by the components one level below. It breaks ties at
  random, and in a pipeline within a component it may come upon stages between sets of operators of
  which none includes the other; neither is so here.

Cuts are those of a ``chain``, what is left when branches are compressed
(:mod:`drlpp.planners.pipedream.branch_compression`), or of the ``graph``, wherever a set of
operators can be computed before all others
(:func:`~drlpp.planners.pipedream.cut_points.graph_states`), as in the released code. A model with
long skip connections has hardly any chain: GNMT's is of two layers, and the straight pipelines that
the paper reports for it are found only in its graph. 2 a are the activations and gradients of all
tensors that are still needed behind the cut; the released code counts a few more
(:func:`~drlpp.planners.pipedream.cut_points.released_states`).

T on a level is what the best pipeline takes within one component of the level below. Latency and
the optimizer's time do not count, and where accelerators differ, all count as the slowest.

Memory is a constraint where the cluster limits it; all accelerators count as the smallest. With
``paper`` and ``printed`` a stage needs what :mod:`drlpp.costs.memory` says, with as many
minibatches in flight as there are workers from it to the end for each of its replicas (NOAM,
pipedream §3.2), or as many more as the problem's memory has for each link; accelerators that a
straight pipeline leaves idle in later hosts count as workers there. ``code`` counts the stage's
outputs and weights once for every further minibatch in flight, and nothing for the first.
"""

from __future__ import annotations

from fractions import Fraction
from math import isinf
from typing import Literal

from drlpp.costs.workload import Workload
from drlpp.errors import NothingFits
from drlpp.placement.placement import Placement, Stage
from drlpp.placement.plan import Plan
from drlpp.planners.pipedream.cut_points import States, chain_states, graph_states, released_states
from drlpp.planners.pipedream.formulas import (
    CodeBytes,
    CodeSeconds,
    Formula,
    PaperBytes,
    PaperSeconds,
    Variant,
    bytes_of,
)
from drlpp.planners.pipedream.hierarchical_program import HierarchicalProgram
from drlpp.planners.pipedream.levels import Level, levels_of
from drlpp.planners.problem.problem import PlanningProblem

__all__ = ["Cuts", "Variant", "pipedream"]

Cuts = Literal["chain", "graph"]


def pipedream(
    problem: PlanningProblem,
    variant: Variant = "paper",
    cuts: Cuts | None = None,
    flat: bool = False,
) -> Plan:
    """Plan the pipeline whose slowest stage or cut is the fastest, by PipeDream's formula.

    It uses all accelerators. Without replication it is a straight pipeline with a stage for each,
    or for fewer where that is as fast; a component of a higher level then holds a part of it.
    Accelerators are numbered along the pipeline, so that those of a host stay together. Ties are
    broken as :class:`~drlpp.planners.pipedream.hierarchical_program.HierarchicalProgram` says:
    fewer stages, then earlier cuts.

    Args:
        problem: its rule of costs does not matter, this planner has its own.
        variant: the formula.
        cuts: where there may be some; by default of the chain, and for ``code`` of the graph.
        flat: whether to plan for one level with the slowest bandwidth of the cluster, as is done
            for irregular clusters (:func:`~drlpp.planners.pipedream.levels.levels_of`). PipeDream's
            15-1 on four hosts of four is such a plan: on levels, the replicas of a stage fill hosts
            or stay within one.

    Raises:
        NothingFits: if none of these pipelines fits into the memory.
        InvalidInput: if the graph can be cut in too many places.
    """
    levels = levels_of(problem.cluster, flat)
    states = _states(problem.workload, variant, cuts or ("graph" if variant == "code" else "chain"))
    formula = _seconds(problem, variant, states, levels)
    program = HierarchicalProgram(formula, levels, len(states), problem.replicate)
    seconds = program.best()
    if isinf(seconds):
        raise _nothing_fits(problem, variant, states, levels)
    return Plan(
        placement=Placement(
            stages=tuple(
                Stage(
                    operators=states.operators(stage.begin, stage.end),
                    accelerators=stage.accelerators,
                )
                for stage in program.plan()
            )
        ),
        own_seconds=seconds,
        note=f"PipeDream's formula ({variant}), on "
        + " × ".join(str(level.components) for level in reversed(levels))
        + " accelerators",
    )


def _states(workload: Workload, variant: Variant, cuts: Cuts) -> States:
    if cuts == "chain":
        return chain_states(workload)
    return released_states(workload) if variant == "code" else graph_states(workload)


def _smallest_memory(problem: PlanningProblem) -> float | None:
    limits = [limit for limit in problem.cluster.memory_bytes if limit is not None]
    return min(limits, default=None)


def _seconds(
    problem: PlanningProblem, variant: Variant, states: States, levels: tuple[Level, ...]
) -> Formula:
    speed = min(problem.cluster.speeds)
    limit = _smallest_memory(problem)
    if variant == "code":
        return CodeSeconds(states, speed, levels, limit)
    if limit is None:
        return PaperSeconds(states, speed, variant, None)
    needs, most = bytes_of(states, problem.memory), limit
    return PaperSeconds(states, speed, variant, lambda behind: needs(behind) <= most)


def _nothing_fits(
    problem: PlanningProblem, variant: Variant, states: States, levels: tuple[Level, ...]
) -> NothingFits:
    """Tell which stage misses the memory in the plan that misses it by the least."""
    limit = _smallest_memory(problem)
    assert limit is not None
    formula: Formula
    needed: list[tuple[float, int, int]]
    if variant == "code":
        formula = bytes_ = CodeBytes(states)
        program = HierarchicalProgram(formula, levels, len(states), problem.replicate)
        needed = [
            (float(bytes_.copies(share.replicas, share.after)[share.begin, share.end]), *share[:2])
            for share in program.outermost()
        ]
    else:
        needs = bytes_of(states, problem.memory)
        formula = PaperBytes(states, needs)
        program = HierarchicalProgram(formula, levels, len(states), problem.replicate)
        needed, workers = [], 0
        for stage in reversed(program.plan()):
            behind = Fraction(workers, len(stage.accelerators))
            workers += len(stage.accelerators)
            bytes_of_stage = float(needs(behind)[stage.begin, stage.end])
            needed.append((bytes_of_stage, stage.begin, stage.end))
    most, begin, end = max(needed)
    operators = states.operators(begin, end)
    names = problem.workload.names
    return NothingFits(
        f"no pipeline of PipeDream's fits into the memory: in the one that comes closest, the "
        f"stage of operators {operators[0]} ({names[operators[0]]}) to {operators[-1]} "
        f"({names[operators[-1]]}) needs {most:.0f} bytes on each accelerator, "
        f"{most - limit:.0f} more than the {limit:.0f} that the smallest has; expected more "
        "memory, a smaller batch, or a method that keeps less"
    )
