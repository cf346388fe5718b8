"""Plans of models that share weights, against every placement and by numbers written by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.costs.analytic_model import predict
from drlpp.costs.memory import MemoryModel
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.planners import Space, best_plan, exact
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.shared_weights import join_sharing, planned_together, shared_weights
from drlpp.schedule.method import Method
from drlpp.simulator import simulate
from drlpp.specs.cluster import Link, local_cluster
from tests.support.planning.brute_force import every_placement
from tests.support.strategies.graphs import cluster_of, tied_chain
from tests.support.strategies.problems import check_placement, workloads

STASH = Method(policy="stash")


def problem_of(profile: Profile, accelerators: int, bandwidth: float) -> PlanningProblem:
    cluster = local_cluster(accelerators, Link(bandwidth_bytes_per_second=bandwidth))
    return PlanningProblem(Workload.of(profile), cluster, memory=MemoryModel.with_state(STASH))


def test_a_stage_has_one_copy_and_exchanges_those_that_others_have() -> None:
    workload = Workload.of(tied_chain([6, 6, 6], 8))
    whole = workload.stage([0, 1, 2], last=True)
    # 8 bytes once, 2 in the middle; half a second for each.
    assert (whole.parameter_bytes, whole.update_seconds, whole.tied_bytes) == (10, 5, 0)
    first, last = workload.stage([0, 1], last=False), workload.stage([2], last=True)
    assert (first.parameter_bytes, first.update_seconds, first.tied_bytes) == (10, 5, 8)
    assert (last.parameter_bytes, last.update_seconds, last.tied_bytes) == (8, 4, 8)
    frozen = Workload.of(tied_chain([6, 6, 6], 8, trained=False))
    assert frozen.stage([0, 1], last=False).tied_bytes == 0
    assert frozen.stage([0, 1, 2], last=True).parameter_bytes == 10


def test_copies_take_messages_and_memory() -> None:
    problem = problem_of(tied_chain([6, 6, 6], 8), 2, bandwidth=0.5)
    first, last = problem.predict(Placement.from_assignment([0, 0, 1], (0, 1))).stages
    # One byte goes on and one comes back; 8 of the gradient go each way: (1 + 8) / 0.5.
    assert (first.message_seconds, last.message_seconds) == (18, 18)
    # Weights, gradients, momentum and an older version; two parts' messages; the contribution that
    # comes, and one that came a minibatch earlier. A byte is made, and another read, of which the
    # loss has two.
    assert first.memory_bytes == 4 * 10 + 2 + 2 * 8 + 2
    assert last.memory_bytes == 3 * 8 + 2 + 8 + 2


@given(st.data())
@settings(max_examples=25)
def test_joined_operators_cost_what_they_do_apart(data: st.DataObject) -> None:
    """And no placement with the weights on one stage is lost."""
    workload = data.draw(workloads(max_operators=5))
    joined = join_sharing(workload)
    assert not any(tie.trained for tie in joined.workload.ties)
    assert sorted(op for group in joined.members for op in group) == list(range(len(workload)))
    problem = PlanningProblem(workload, local_cluster(2, Link(bandwidth_bytes_per_second=2.0)))
    smaller = replace(problem, workload=joined.workload)
    kept = {
        problem.predict(placement).seconds_per_minibatch
        for placement in every_placement(workload, 2, replicate=True)
        if not workload.ties_between(placement.stage_of_operator(len(workload)))
    }
    found = {
        smaller.predict(placement).seconds_per_minibatch
        for placement in every_placement(joined.workload, 2, replicate=True)
    }
    assert sorted(found) == pytest.approx(sorted(kept)) or min(found) == pytest.approx(min(kept))
    best = planned_together(exact, problem).placement
    check_placement(problem, best)
    assert problem.predict(best).seconds_per_minibatch == pytest.approx(min(kept))


METHODS = [
    STASH,
    Method(policy="pipeoptim", microbatches=2),
    Method(schedule="1f1b-flush", policy="sync", microbatches=4),
]


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize(
    ("bytes_", "bandwidth", "slack"), [(4, 16.0, 1.0), (16, 1.0, 1.4), (40, 0.5, 1.0)]
)
def test_the_choice_against_every_placement_in_the_simulator(
    method: Method, bytes_: int, bandwidth: float, slack: float
) -> None:
    """It is the best where sharing is cheap, or ruins any pipeline.

    In between, sums that take as long as a stage keep stages waiting, which the rule does not see.
    """
    profile = tied_chain([6, 9, 6, 6], bytes_)
    problem = replace(problem_of(profile, 3, bandwidth), replicate=False)
    problem = replace(problem, workload=Workload.of(profile, method))
    chosen = best_plan(problem, Space(method, frozenset()), "exact")
    best = min(
        simulate(problem.workload, problem.cluster, placement, method).seconds_per_minibatch
        for placement in every_placement(problem.workload, 3, replicate=False)
    )
    found = chosen.seconds_per_minibatch
    # Flushed pipelines have bubbles, which the rule does not count.
    assert found <= best * max(slack, 1.6 * method.flushes)


def test_what_sharing_costs_is_said_in_numbers() -> None:
    problem = problem_of(tied_chain([6, 6, 6], 8), 3, bandwidth=16.0)
    problem = replace(problem, replicate=False)
    found = best_plan(problem, Space(STASH, frozenset()), "exact")
    (shared,) = shared_weights(problem, found.placement)
    assert shared.names == ("wte",)
    assert shared.stages[0] == 0
    assert (shared.bytes_, shared.seconds) == (8, 0.5)
    # All operators stand between the two: one stage.
    assert found.others[0].configuration == "1"
    assert found.others[0].seconds_per_minibatch == pytest.approx(18 + 5)
    assert found.seconds_per_minibatch < found.others[0].seconds_per_minibatch


def test_copies_are_updated_together() -> None:
    """With 2 and 1 replicas once in two minibatches, by both: 8 bytes each way to every replica."""
    workload = Workload.of(tied_chain([6, 6, 6], 8))
    first, last = predict(
        workload, cluster_of(3), Placement.from_assignment([0, 0, 1], (0, 0, 1))
    ).stages
    # A round of two: 24 s of passes, 2 bytes and 8 updated by each replica, all of them summed.
    assert first.compute_seconds == (12 + 1 + 4) / 2
    assert first.all_reduce_seconds == (2 * 2 / 2 + 2 * 8 / 2) / 2
    # The ring of 2 bytes hides behind 4 s of a backward each; nobody computes during that of 8.
    assert first.all_reduce_left_seconds == 8 / 2
    assert last.compute_seconds == 6 + 4 / 2
    # A byte for each minibatch, which replicas take in turns, and 8 for two to each.
    assert first.message_seconds == 1 / 2 + 8 / 2
    assert last.message_seconds == 1 + 2 * 8 / 2


@given(workloads(max_operators=4), st.booleans(), st.booleans())
@settings(max_examples=60)
def test_the_exact_plan_against_every_placement(
    workload: Workload, replicate: bool, flushes: bool
) -> None:
    """It is the optimum of the rule where a stage knows when its copies are updated."""
    workload = replace(workload, flushes=flushes)
    cluster = local_cluster(3, Link(bandwidth_bytes_per_second=2.0))
    problem = PlanningProblem(workload, cluster, replicate=replicate)
    best = min(
        problem.predict(placement).seconds_per_minibatch
        for placement in every_placement(workload, 3, replicate=replicate)
    )
    solution = exact(problem)
    found = problem.predict(solution.placement).seconds_per_minibatch
    assert solution.lower_bound <= best * (1 + 1e-9)
    assert found >= best * (1 - 1e-9)
    sent_once = all(len(transfer.members) == 2 for transfer in workload.transfers)
    copies = any(tie.trained for tie in workload.ties)
    if sent_once and (not copies or flushes or not replicate):
        assert solution.proven_optimal
        assert found == pytest.approx(best)
