"""The workers' weights after N minibatches equal the reference executor's for every method."""

import pytest

from drlpp.capturing.capture import CapturedModel
from drlpp.placement.candidate import Candidate
from drlpp.runtime import ClusterSession, Minibatches, RunOptions
from drlpp.runtime.reference.reference import ReferenceExecutor
from drlpp.runtime.session import minibatch_streamer
from drlpp.schedule.actions import Recompute
from drlpp.schedule.analysis.weight_versions import stage_delay
from drlpp.schedule.method import Method
from drlpp.specs.data import Samples
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.in_turns import in_turns, words
from tests.support.models.forked import (
    LIKE_OTHERS,
    POLICIES,
    SHAPES,
    largest_difference,
    order,
    placements,
    samples,
)
from tests.support.training.against_reference import train_twice

MINIBATCHES = 15
SETTLED = 10
"""Minibatches that show all that repeats, where an update takes one and nothing is far ahead."""

FLUSHED = 6
"""Minibatches of a schedule that flushes after each of its updates: all of them are alike."""

ASYNCHRONOUS = {
    **POLICIES,
    "pipemare-t1": Method(policy="pipemare", annealing_minibatches=9),
    "pipemare-t2": Method(policy="pipemare", correction_decay=0.2),
    "pipemare": Method(policy="pipemare", annealing_minibatches=9, correction_decay=0.2),
}
SYNCHRONOUS = {
    "naive": Method(schedule="gpipe", policy="sync"),
    "gpipe": Method(schedule="gpipe", policy="sync", microbatches=4),
    "1f1b-flush": Method(schedule="1f1b-flush", policy="sync", microbatches=4),
    "zb-h1": Method(schedule="zb-h1", policy="sync", microbatches=4),
}

# The bias of attention's keys has no gradient but rounding noise, which a tiny ε would blow up.
OPTIMIZERS = {
    "sgd": OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "plain-sgd": OptimizerSpec(
        name="sgd", options={"lr": 0.1, "momentum": 0.0, "weight_decay": 0.1}
    ),
    "dampened-sgd": OptimizerSpec(name="sgd", options={"lr": 0.1, "dampening": 0.3}),
    "nesterov": OptimizerSpec(name="sgd", options={"lr": 0.05, "nesterov": True}),
    "adam": OptimizerSpec(name="adam", options={"lr": 0.01, "weight_decay": 0.01, "eps": 1e-4}),
    "adamw": OptimizerSpec(name="adamw", options={"lr": 0.01, "eps": 1e-4}),
    "decoupled-adam": OptimizerSpec(
        name="adam",
        options={"lr": 0.01, "eps": 1e-4, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
    "amsgrad": OptimizerSpec(name="adamw", options={"lr": 0.01, "eps": 1e-4, "amsgrad": True}),
    # These are not in Table I: the direction is that of their last step.
    "nadam": OptimizerSpec(name="nadam", options={"lr": 0.01, "eps": 1e-4}),
    "rmsprop": OptimizerSpec(name="rmsprop", options={"lr": 0.005, "eps": 1e-2}),
    "decoupled-nadam": OptimizerSpec(
        name="nadam",
        options={"lr": 0.01, "eps": 1e-4, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
    "asgd": OptimizerSpec(name="asgd", options={"lr": 0.05}),
    "lion": OptimizerSpec.parse("tests.support.models.lion:Lion", lr=0.003),
}
# Its matrices; stages have the others as well, or some kinds only.
OPTIMIZERS["muon"] = OptimizerSpec.parse("muon", lr=0.01, eps=1e-4)
WITHOUT_SIGNS = [name for name in OPTIMIZERS if name not in {"lion", "muon"}]

OPTIONS = [
    Method(policy="pipeoptim", accumulate=3),
    Method(policy="stash", accumulate=2, recompute=True),
    Method(policy="vanilla", clip_norm=0.5),
    Method(policy="pipeoptim", microbatches=2, accumulate=2, recompute=True, clip_norm=0.5),
    Method(schedule="gpipe", policy="sync", microbatches=2, accumulate=2, recompute=True),
    Method(schedule="zb-h1", policy="sync", microbatches=4, accumulate=2, clip_norm=0.5),
]
RARER = [
    Method(policy="spectrain", accumulate=2),
    Method(policy="stash-vertical", recompute=True),
    Method(policy="2bw", accumulate=6, recompute=True),
    Method(policy="vanilla", recompute=True),
    Method(policy="pipeoptim", recompute=True),
    Method(policy="xpipe", recompute=True),
    Method(policy="pipemare", correction_decay=0.2, recompute=True),
    Method(policy="stash", microbatches=4, in_flight_per_link=1),
    Method(policy="pipeoptim", in_flight_per_link=2),
    Method(schedule="1f1b-flush", policy="sync", microbatches=4, clip_norm=0.5),
    Method(schedule="1f1b-flush", policy="sync", microbatches=4, recompute=True),
    Method(schedule="zb-h1", policy="sync", microbatches=2, accumulate=3, recompute=True),
]


def _divided(method: Method, microbatches: int) -> Method:
    # 2BW's update takes what is in flight, now in microbatches.
    accumulate = -(-method.accumulate // microbatches)
    return method.model_copy(update={"microbatches": microbatches, "accumulate": accumulate})


DIVIDED = [
    _divided(method, 2 + number % 2 * 2) for number, method in enumerate(ASYNCHRONOUS.values())
]
FOLDED = [
    Method(schedule="zb-v", policy="sync", microbatches=4, clip_norm=0.5),
    Method(schedule="zb-v", policy="sync", microbatches=2, accumulate=3),
]
CASES = [
    *in_turns(ASYNCHRONOUS.values(), SHAPES, ["sgd", "adamw"]),
    *in_turns(
        DIVIDED,
        ["straight", "replicated", "branching"],
        ["adamw", "sgd"],
        slow=[one for one in DIVIDED if one.policy in LIKE_OTHERS or one.annealing_minibatches],
    ),
    *in_turns(SYNCHRONOUS.values(), ["data-parallel", *SHAPES], ["adam", "sgd"]),
    *in_turns(FOLDED, ["folded"], ["adam", "sgd"]),
    # Predictions for every optimizer, by its state or its last step.
    *in_turns(
        [POLICIES[name] for name in ("pipeoptim", "spectrain", "last-step", "xpipe")],
        ["replicated"],
        WITHOUT_SIGNS,
        slow={*WITHOUT_SIGNS} - {"plain-sgd", "nesterov", "amsgrad", "rmsprop", "decoupled-nadam"},
    ),
    *in_turns(
        [POLICIES["pipeoptim"], *(POLICIES[name] for name in ("stash", "2bw", "last-step"))],
        ["replicated"],
        ["muon"],
        slow=[POLICIES[name] for name in ("stash", "2bw", "last-step")],
    ),
    *in_turns([*OPTIONS, *RARER], SHAPES, ["sgd"], slow=RARER),
]

UNEVEN = {
    "stash": Method(
        policy="stash", in_flight_per_link=(2, 0, 1), recompute=(False, True, False, True)
    ),
    "pipeoptim": Method(in_flight_per_link=(0, 2, 1), recompute=(True, False, True, False)),
    "2bw": Method(
        policy="2bw",
        accumulate=8,
        in_flight_per_link=(0, 0, 2),
        recompute=(True, False, False, True),
    ),
    "spectrain": Method(policy="spectrain", in_flight_per_link=(0, 1, 0), microbatches=2),
    "pipemare": Method(
        policy="pipemare",
        annealing_minibatches=9,
        correction_decay=0.2,
        in_flight_per_link=(1, 0, 2),
        recompute=(False, True, True, False),
    ),
}
"""For fewer stages lists are stretched."""


@pytest.mark.parametrize(("method", "shape", "optimizer"), CASES, ids=words)
def test_weights_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, method: Method, shape: str, optimizer: str
) -> None:
    _check(captured, session, shape, method, OPTIMIZERS[optimizer])


@pytest.mark.parametrize(
    ("name", "shape"), in_turns(UNEVEN, SHAPES[1:], slow=("pipeoptim", "spectrain"))
)
def test_links_of_uneven_depth_and_stages_that_recompute_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, name: str, shape: str
) -> None:
    placement = placements(captured)[shape]
    method = UNEVEN[name].for_stages(len(placement.stages))
    _check(captured, session, shape, method, OPTIMIZERS["sgd"])
    plan = session.plan(placement, method)
    schedule = plan.schedule(MINIBATCHES)
    # What is told of a steady state is what was trained with.
    assert [stage_delay(schedule, k) for k in range(len(plan.delays))] == list(plan.delays)


@pytest.mark.parametrize(("schedule", "shape"), [("1f1b-flush", "straight"), ("zb-v", "folded")])
def test_flushed_stages_some_of_which_recompute_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, schedule: str, shape: str
) -> None:
    recompute = (True, False, False, True)
    method = Method(schedule=schedule, policy="sync", microbatches=4, recompute=recompute)
    _check(captured, session, shape, method, OPTIMIZERS["sgd"])
    written = session.plan(placements(captured)[shape], method).schedule(MINIBATCHES)
    recomputing = {
        written.pipeline.stages_of(worker)[action.chunk]
        for worker, actions in written.actions.items()
        for action in actions
        if isinstance(action, Recompute)
    }
    # The last stage has nothing to gain where its backward follows at once.
    assert {0} <= recomputing <= {0, 3}


def test_two_stages_on_an_accelerator_read_data_as_it_comes(
    captured: CapturedModel, session: ClusterSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stage reads inputs long before the last, on the same worker, reads targets."""
    monkeypatch.setattr(minibatch_streamer, "chunk_minibatches", lambda bytes_: 1)
    (inputs,), targets = samples()
    chosen = order(30)
    loaded = (Samples((inputs[indices],), targets[indices]) for indices in chosen)
    method = Method(schedule="zb-v", policy="sync", microbatches=4)
    deployment = session.deploy(placements(captured)["folded"], method, OPTIMIZERS["sgd"])
    in_memory = session.evaluate(deployment, 30, RunOptions(order=chosen))
    assert session.evaluate(deployment, 30, RunOptions(loaded=loaded)).losses == in_memory.losses


def test_a_third_party_optimizer_is_predicted_by_its_last_step(
    captured: CapturedModel, session: ClusterSession
) -> None:
    # The biases of attention's keys and before batch normalisation have no gradient but rounding
    # noise, the sign of which is arbitrary.
    ignored = {"attention.in_proj_bias", "conv.bias", "norm.running_mean"}
    method, optimizer = ASYNCHRONOUS["pipeoptim"], OPTIMIZERS["lion"]
    _check(captured, session, "straight", method, optimizer, ignored=ignored)


@pytest.mark.parametrize("method", ["pipeoptim", "pipemare"])
def test_learning_rates_of_a_schedule_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, method: str
) -> None:
    rates = [0.05 * (1 + minibatch % 4) for minibatch in range(MINIBATCHES + 4)]
    options = RunOptions(order=order(MINIBATCHES), rates=rates, asynchronous_before=3)
    _check(captured, session, "straight", ASYNCHRONOUS[method], OPTIMIZERS["sgd"], options)


def test_pipemares_warm_up_switches_without_a_restart(
    captured: CapturedModel, session: ClusterSession
) -> None:
    """W: minibatches that flush, then asynchronous ones, on the same workers (pipemare §4)."""
    method, optimizer = ASYNCHRONOUS["pipemare"], OPTIMIZERS["sgd"]
    placement = placements(captured)["straight"]
    reference = ReferenceExecutor(captured, placement, Minibatches(*samples()), method, optimizer)
    deployment = session.deploy(placement, method, optimizer)
    first = RunOptions(order=order(4), synchronous=True)
    second = RunOptions(order=order(MINIBATCHES), first_minibatch=4)
    for count, options in ((4, first), (MINIBATCHES, second)):
        reference.run(count, options)
        session.run(deployment, count, options)
    state, _ = session.collect(deployment)
    assert largest_difference(state, reference.state) < 1e-9


def _check(
    captured: CapturedModel,
    session: ClusterSession,
    shape: str,
    method: Method,
    optimizer: OptimizerSpec,
    options: RunOptions | None = None,
    ignored: frozenset[str] | set[str] = frozenset(),
    precision: float = 1e-9,
) -> None:
    candidate = Candidate(placements(captured)[shape], method)
    minibatches = MINIBATCHES
    if method.schedule_kind.flushes:
        minibatches = FLUSHED
    elif options is None and method.accumulate == 1 and not method.annealing_minibatches:
        minibatches = MINIBATCHES if method.in_flight_per_link else SETTLED
    options = options or RunOptions(order=order(minibatches))
    found = train_twice(
        session, candidate, optimizer, minibatches, Minibatches(*samples()), options
    )
    wanted = {name: value for name, value in found.reference.state.items() if name not in ignored}
    state = {name: value for name, value in found.state.items() if name not in ignored}
    assert largest_difference(state, wanted) < precision
    assert found.losses == pytest.approx(found.reference.losses, rel=precision)
    assert largest_difference(found.state, captured.state) > 1e-3, "training changed nothing"
