"""What takes part in a race to a loss, by itself and if a user names weight policies."""

from collections.abc import Mapping

import pytest

from drlpp.cli.learning.race_command import NAMED_POLICIES, named_methods
from drlpp.errors import InvalidInput
from drlpp.planners import Space
from drlpp.racing.rivals import DATA_PARALLEL, PLAIN, Grounds, usual_candidates, with_policy
from drlpp.runtime import ClusterSession
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.cluster import local_cluster
from tests.support.models.classified_points import BATCH


@pytest.fixture(scope="module")
def grounds(session: ClusterSession) -> Grounds:
    return Grounds(session, *session.profile(repeats=2), Space(session.method))


def test_the_usual_candidates_are_what_a_user_has_and_pipelines(grounds: Grounds) -> None:
    plain, *others = usual_candidates(grounds)
    assert (plain.names, plain.placement) == ((PLAIN,), None)
    assert any(DATA_PARALLEL in one.names for one in others)
    assert len({one.key for one in others}) == len(others)
    ways = {(one.method.schedule, one.method.policy) for one in others}
    assert {("1f1b", "pipeoptim"), ("1f1b-flush", "sync"), ("zb-h1", "sync")} <= ways
    assert not any(schedule == "gpipe" for schedule, _ in ways)
    assert {1, 2, 4} <= {c.method.microbatches for c in others if c.method.policy == "pipeoptim"}


@pytest.mark.parametrize("policy", NAMED_POLICIES)
def test_a_policy_takes_part_with_what_it_can_be_run_with(grounds: Grounds, policy: str) -> None:
    """Two stages on two workers, with 1, 2 and 4 microbatches: 2BW needs two in flight."""
    found = with_policy(grounds, choose_method(policy))
    assert {contender.method.policy for contender in found} == {policy}
    even = [c for c in found if c.found_by == "even split"]
    wanted = [2, 4] if policy.startswith("2bw") else [2, 4, 1]
    assert [contender.method.microbatches for contender in even] == wanted
    assert [c.method.microbatches for c in found if c.found_by == "exact"] == [2]
    assert all(BATCH % contender.method.microbatches == 0 for contender in found)


def test_a_policy_that_cannot_be_run_is_refused(grounds: Grounds) -> None:
    """No room for any placement: else the exact planner may propose one stage, without a link."""
    crowded = local_cluster(2, grounds.cluster.within_host, memory_bytes=1)
    deep = choose_method("2bw", {"in_flight_per_link": 7})
    with pytest.raises(
        InvalidInput, match=r"policy 2bw cannot take part in this race: .*in flight"
    ):
        with_policy(Grounds(grounds.session, grounds.profile, crowded, grounds.space), deep)


def test_options_of_a_policy_go_to_that_policy() -> None:
    given = {"annealing_minibatches": 40, "clip_norm": 1.0}
    common, (pipemare, stash) = named_methods(["pipemare", "stash", "stash"], given)
    assert (common.policy, common.clip_norm, common.annealing_minibatches) == ("pipeoptim", 1.0, 0)
    assert (pipemare.policy, pipemare.clip_norm) == ("pipemare", 1.0)
    assert (pipemare.annealing_minibatches, pipemare.correction_decay) == (40, 0.135)
    assert (stash.policy, stash.annealing_minibatches) == ("stash", 0)


@pytest.mark.parametrize(
    ("policy", "options", "told"),
    [
        ("sync", {}, "sync takes part in every race"),
        ("paci", {}, "'paci' is unknown; there are"),
        ("stash", {"annealing_minibatches": 4}, "belong to policy pipemare"),
    ],
)
def test_policies_that_cannot_be_named(
    policy: str, options: Mapping[str, object], told: str
) -> None:
    with pytest.raises(InvalidInput, match=told):
        named_methods([policy], options)
