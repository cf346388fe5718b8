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
    whole, groups = (one.stage(range(len(one)), last=True) for one in (workload, joined.workload))
    assert groups.parameter_bytes == pytest.approx(whole.parameter_bytes)
    assert groups.update_seconds == pytest.approx(whole.update_seconds)
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
