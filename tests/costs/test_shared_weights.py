"""What stages that share weights cost, by numbers written by hand."""

from drlpp.costs.memory import MemoryModel
from drlpp.costs.placement_rule import predict
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.planners.problem import PlanningProblem
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster
from tests.support.strategies.graphs import cluster_of, tied_chain

STASH = Method(policy="stash")


def problem_of(profile: Profile, accelerators: int, bandwidth: float) -> PlanningProblem:
    cluster = local_cluster(accelerators, Link(bandwidth_bytes_per_second=bandwidth))
    return PlanningProblem(Workload.of(profile), cluster, memory=MemoryModel(STASH))


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
    # Weights, gradients, momentum and an older version; messages, two each way; the contribution
    # that comes, one that came a minibatch earlier, the last sum, and the place for the next. A
    # byte is made when all gradients are there; on the last stage another is read.
    assert first.memory_bytes == 4 * 10 + 4 + 4 * 8 + 1
    assert last.memory_bytes == 3 * 8 + 4 + 8 + 2


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
