"""Who takes part if a user names policies and optimizers: what PipeOptim and plain PyTorch have."""

from collections import Counter
from collections.abc import Mapping

import pytest

from drlpp.cli.learning.named_candidates import NAMED_POLICIES, named_methods, other_optimizer_of
from drlpp.comparison.contenders import PLAIN, Contender
from drlpp.costs.profile import Profile
from drlpp.errors import InvalidInput
from drlpp.io.documents import content_of
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.cluster import Cluster, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec
from drlpp.training_race.candidates import with_optimizers, with_policy
from drlpp.training_race.training_race_file import Racer, TrainingRace
from tests.support.models.classified_points import BATCH
from tests.support.training.pipelines import in_a_row
from tests.support.training.races import race_of

RMSPROP = OptimizerSpec.parse("rmsprop", lr=0.02)
NAG = OptimizerSpec.parse("nadam", betas=[0.99, 0.999])


@pytest.fixture(scope="module")
def costs(session: ClusterSession) -> tuple[Profile, Cluster]:
    return session.profile(repeats=2)


@pytest.mark.parametrize("policy", NAMED_POLICIES)
def test_a_policy_takes_part_with_what_it_can_be_run_with(
    session: ClusterSession, costs: tuple[Profile, Cluster], policy: str
) -> None:
    """Two stages on two workers, with 1, 2 and 4 microbatches: 2BW needs two in flight."""
    found = with_policy(session, *costs, choose_method(policy))
    assert {contender.method.policy for contender in found} == {policy}
    even = [c for c in found if c.found_by == "even split"]
    wanted = [2, 4] if policy.startswith("2bw") else [2, 4, 1]
    assert [contender.method.microbatches for contender in even] == wanted
    assert [c.method.microbatches for c in found if c.found_by == "exact"] == [2]
    assert all(BATCH % contender.method.microbatches == 0 for contender in found)


def test_a_policy_that_cannot_be_run_is_refused(
    session: ClusterSession, costs: tuple[Profile, Cluster]
) -> None:
    """No room for any placement: else the exact planner may propose one stage, without a link."""
    profile, cluster = costs
    crowded = local_cluster(2, cluster.within_host, memory_bytes=1)
    deep = choose_method("2bw", {"in_flight_per_link": 7})
    with pytest.raises(
        InvalidInput, match=r"policy 2bw cannot take part in this race: .*in flight"
    ):
        with_policy(session, profile, crowded, deep)


def contenders(session: ClusterSession) -> list[Contender]:
    pipeline = Contender(found_by="mine", placement=in_a_row(session.graph, 0, 1), method=Method())
    return [Contender(found_by=PLAIN, method=Method(), threads=1), pipeline]


def test_everybody_takes_part_with_every_optimizer(session: ClusterSession) -> None:
    racers = with_optimizers(contenders(session), [RMSPROP, NAG])
    assert Counter((one.found_by, one.optimizer_text) for one in racers) == Counter(
        (found_by, text)
        for found_by in (PLAIN, "mine")
        for text in ("", "rmsprop", "nadam betas=[0.99, 0.999]")
    )
    assert [one.configuration for one in racers[::2]] == [
        "1 thread",
        "1 thread, rmsprop",
        "1 thread, nadam betas=[0.99, 0.999]",
    ]
    # As when a race is resumed: nobody twice.
    assert with_optimizers([*racers, *contenders(session)], [RMSPROP, NAG]) == racers


def test_rates_are_tried_around_everybodys_own(session: ClusterSession) -> None:
    race = race_of(with_optimizers(contenders(session), [RMSPROP, NAG]), (0.001, 0.01, 0.1))
    assert race.plain == {0, 2, 4}
    nadam = NAG.value("lr")
    assert race.scales == pytest.approx({2: 2.0, 3: 2.0, 4: nadam / 0.01, 5: nadam / 0.01})


def test_files_without_optimizers_are_as_they_were(session: ClusterSession) -> None:
    """Those that an older drlpp wrote are read, and such are written."""
    race = race_of(with_optimizers(contenders(session), []), (0.01,))
    content = content_of(race)
    assert [sorted(one) for one in content["candidates"]] == [
        ["found_by", "measurements", "method", "threads"],
        ["found_by", "measurements", "method", "placement"],
    ]
    fields = {key: value for key, value in content.items() if key not in ("kind", "version")}
    assert TrainingRace.model_validate(fields) == race


@pytest.mark.parametrize("options", [{}, {"lr": 0}, {"lr": "fast"}])
def test_an_optimizer_in_a_file_has_a_learning_rate(options: dict[str, object]) -> None:
    fields = {"found_by": PLAIN, "method": {}, "optimizer": {"name": "a.b:C", "options": options}}
    with pytest.raises(ValueError, match=r"a.b:C of plain PyTorch has lr = .*above 0"):
        Racer.model_validate(fields)


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
        ("pipeoptim", {}, "pipeoptim takes part in every race"),
        ("paci", {}, "'paci' is unknown; there are"),
        ("stash", {"annealing_minibatches": 4}, "belong to policy pipemare"),
    ],
)
def test_policies_that_cannot_be_named(
    policy: str, options: Mapping[str, object], told: str
) -> None:
    with pytest.raises(InvalidInput, match=told):
        named_methods([policy], options)


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        ("", {}, "expected 'NAME KEY=VALUE …'"),
        ("lr=0.1", {}, "expected 'NAME KEY=VALUE …'"),
        ("rmsprop lr", {}, "expected KEY=VALUE"),
        ("nadamm", {}, "'nadamm' is unknown"),
        ("adam lr=0.01", {}, "candidates have that one already"),
        ("rmsprop lr=0", {}, "above 0"),
        ("adagrad", {"stage_momentum": 0.99}, "has no momentum"),
    ],
)
def test_optimizers_that_cannot_be_named(
    text: str, options: Mapping[str, object], told: str
) -> None:
    usual, method = OptimizerSpec.parse("adam", lr=0.01), choose_method(None, options)
    with pytest.raises(InvalidInput, match=told):
        other_optimizer_of(text, usual, method)
