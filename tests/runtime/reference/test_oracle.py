"""The workers' weights after N minibatches equal the reference executor's for every method."""

from collections.abc import Iterator

import pytest
import torch

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import InvalidInput
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, RunOptions, run_reference
from drlpp.runtime.reference.reference import ReferenceExecutor
from drlpp.runtime.session import minibatch_streamer
from drlpp.schedule.method import Method
from drlpp.specs.data import Samples
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.in_turns import in_turns, words
from tests.support.models.forked import (
    POLICIES,
    SHAPES,
    largest_difference,
    order,
    placements,
    samples,
)
from tests.support.training.against_reference import train_twice

MINIBATCHES = 15
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
    "nadam": OptimizerSpec(name="nadam", options={"lr": 0.01, "eps": 1e-4}),
    "radam": OptimizerSpec(name="radam", options={"lr": 0.01, "eps": 1e-4}),
    "adamax": OptimizerSpec(name="adamax", options={"lr": 0.01, "eps": 1e-4}),
    "rmsprop": OptimizerSpec(name="rmsprop", options={"lr": 0.005, "eps": 1e-2}),
    "adagrad": OptimizerSpec(name="adagrad", options={"lr": 0.01, "eps": 1e-4}),
    "adadelta": OptimizerSpec(name="adadelta", options={"lr": 0.5, "eps": 1e-4}),
    "decoupled-adam": OptimizerSpec(
        name="adam",
        options={"lr": 0.01, "eps": 1e-4, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
    "decoupled-nadam": OptimizerSpec(
        name="nadam",
        options={"lr": 0.01, "eps": 1e-4, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
    "amsgrad": OptimizerSpec(name="adamw", options={"lr": 0.01, "eps": 1e-4, "amsgrad": True}),
    # These have no rule of their own: the direction is that of their last step.
    "asgd": OptimizerSpec(name="asgd", options={"lr": 0.05}),
    "lion": OptimizerSpec.parse("tests.support.models.lion:Lion", lr=0.003),
}
WITHOUT_SIGNS = [name for name in OPTIMIZERS if name != "lion"]


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4) as session:
        session.use_samples(*samples())
        yield session


@pytest.mark.parametrize(
    ("method", "shape", "optimizer"),
    in_turns(ASYNCHRONOUS, SHAPES, ["sgd", "adamw"], one_of=8),
)
def test_asynchronous_weights_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, method: str, shape: str, optimizer: str
) -> None:
    _check(captured, session, shape, ASYNCHRONOUS[method], OPTIMIZERS[optimizer])


@pytest.mark.parametrize(
    ("method", "shape", "microbatches"),
    in_turns(
        ASYNCHRONOUS,
        ["straight", "replicated", "branching"],
        [2, 4],
        one_of=15,
        slow=("stash-vertical", "spectrain", "xpipe"),
    ),
)
def test_weights_of_divided_minibatches_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, method: str, shape: str, microbatches: int
) -> None:
    chosen, optimizer = ASYNCHRONOUS[method], OPTIMIZERS["adamw" if microbatches == 4 else "sgd"]
    # 2BW's update takes what is in flight, now in microbatches.
    accumulate = -(-chosen.accumulate // microbatches)
    changed = {"microbatches": microbatches, "accumulate": accumulate}
    _check(captured, session, shape, chosen.model_copy(update=changed), optimizer)


@pytest.mark.parametrize(
    ("method", "shape", "optimizer"),
    in_turns(SYNCHRONOUS, [*SHAPES, "data-parallel"], ["sgd", "adam"], one_of=4),
)
def test_synchronous_weights_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, method: str, shape: str, optimizer: str
) -> None:
    _check(captured, session, shape, SYNCHRONOUS[method], OPTIMIZERS[optimizer])


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        (Method(schedule="zb-v", policy="sync", microbatches=8), "adam"),
        (Method(schedule="zb-v", policy="sync", microbatches=4, clip_norm=0.5), "sgd"),
        (Method(schedule="zb-v", policy="sync", microbatches=2, accumulate=3), "adamw"),
        (Method(schedule="zb-v", policy="sync", recompute=True, accumulate=2), "sgd"),
    ],
    ids=str,
)
def test_two_stages_on_an_accelerator_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, method: Method, optimizer: str
) -> None:
    _check(captured, session, "folded", method, OPTIMIZERS[optimizer])


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


PREDICTING = [
    ("pipeoptim", "replicated"),
    ("spectrain", "branching"),
    ("last-step", "branching"),
    ("pipeoptim", "straight"),
]


@pytest.mark.parametrize(
    ("predicting", "optimizer"),
    in_turns(PREDICTING, WITHOUT_SIGNS, one_of=8, slow=WITHOUT_SIGNS[6:13]),
    ids=words,
)
def test_predictions_for_every_optimizer_equal_the_reference(
    captured: CapturedModel,
    session: ClusterSession,
    predicting: tuple[str, str],
    optimizer: str,
) -> None:
    method, shape = predicting
    _check(captured, session, shape, ASYNCHRONOUS[method], OPTIMIZERS[optimizer])


MUON_METHODS = {
    "stash": Method(policy="stash"),
    "2bw": Method(policy="2bw", accumulate=5),
    "2bw-ef": Method(policy="2bw-ef", microbatches=4, accumulate=2),
    "last-step": Method(policy="last-step"),
    "pipeoptim": Method(policy="pipeoptim", microbatches=2),
    "spectrain": Method(policy="spectrain"),
    "stage-momentum": Method(policy="stash", stage_momentum=0.99),
    "gpipe": SYNCHRONOUS["gpipe"],
}


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch 2.9 has it")
@pytest.mark.parametrize(("method", "shape"), in_turns(MUON_METHODS, SHAPES, one_of=6))
def test_muon_equals_the_reference(
    captured: CapturedModel, session: ClusterSession, method: str, shape: str
) -> None:
    """Its matrices; stages have the others as well, or some kinds only."""
    rates = [0.01 * (1 + minibatch % 3) for minibatch in range(MINIBATCHES)]
    minibatches = FLUSHED if MUON_METHODS[method].flushes else MINIBATCHES
    options = RunOptions(order=order(minibatches), rates=rates)
    spec = OptimizerSpec.parse("muon", lr=0.01, adamw_lr=0.004, eps=1e-4)
    _check(captured, session, shape, MUON_METHODS[method], spec, options)


@pytest.mark.parametrize(
    ("method", "shape"), in_turns(["stash", "2bw-ef", "last-step", "gpipe"], SHAPES, one_of=4)
)
def test_rotated_adam_equals_the_reference(
    captured: CapturedModel, session: ClusterSession, method: str, shape: str
) -> None:
    """Eigenvectors magnify rounding where eigenvalues are close."""
    spec = OptimizerSpec.parse("basisrotation", lr=0.01, eps=1e-4, frequency=3)
    _check(captured, session, shape, MUON_METHODS[method], spec, precision=1e-7)


@pytest.mark.parametrize("optimizer", ["plain-sgd", "rmsprop", "amsgrad"])
def test_xpipe_predicts_with_adam_whatever_the_optimizer(
    captured: CapturedModel, session: ClusterSession, optimizer: str
) -> None:
    _check(captured, session, "straight", ASYNCHRONOUS["xpipe"], OPTIMIZERS[optimizer])


def test_a_third_party_optimizer_is_predicted_by_its_last_step(
    captured: CapturedModel, session: ClusterSession
) -> None:
    # The biases of attention's keys and before batch normalisation have no gradient but rounding
    # noise, the sign of which is arbitrary.
    ignored = {"attention.in_proj_bias", "conv.bias", "norm.running_mean"}
    method, optimizer = ASYNCHRONOUS["pipeoptim"], OPTIMIZERS["lion"]
    _check(captured, session, "straight", method, optimizer, ignored=ignored)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "plain-sgd"])
def test_data_parallel_weights_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, optimizer: str
) -> None:
    _check(captured, session, "data-parallel", Method(policy="sync"), OPTIMIZERS[optimizer])


OPTIONS = [
    Method(policy="pipeoptim", accumulate=3),
    Method(policy="spectrain", accumulate=2),
    Method(policy="stash", accumulate=2, recompute=True),
    Method(policy="stash-vertical", recompute=True),
    Method(policy="2bw", accumulate=6, recompute=True),
    Method(policy="vanilla", recompute=True),
    Method(policy="pipeoptim", recompute=True),
    Method(policy="xpipe", recompute=True),
    Method(policy="pipemare", correction_decay=0.2, recompute=True),
    Method(policy="vanilla", clip_norm=0.5),
    Method(policy="pipeoptim", microbatches=2, accumulate=2, recompute=True, clip_norm=0.5),
    Method(policy="stash", microbatches=4, in_flight_per_link=1),
    Method(schedule="gpipe", policy="sync", microbatches=2, accumulate=2, recompute=True),
    Method(schedule="1f1b-flush", policy="sync", microbatches=4, clip_norm=0.5),
    Method(schedule="1f1b-flush", policy="sync", microbatches=4, recompute=True),
    Method(schedule="zb-h1", policy="sync", microbatches=4, accumulate=2, clip_norm=0.5),
    Method(schedule="zb-h1", policy="sync", microbatches=2, accumulate=3, recompute=True),
]


@pytest.mark.parametrize(
    ("method", "shape"), in_turns(OPTIONS, SHAPES, one_of=9, slow=OPTIONS[3:8:2]), ids=str
)
def test_options_of_a_method_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, method: Method, shape: str
) -> None:
    _check(captured, session, shape, method, OPTIMIZERS["sgd"])


WITH_STAGE_MOMENTUM = [
    (Method(policy="stash", stage_momentum=0.99), "decoupled-nadam"),
    (Method(policy="stash", stage_momentum=0.99, microbatches=2), "sgd"),
    (Method(policy="pipeoptim", stage_momentum=0.95, in_flight_per_link=1), "adamw"),
]


@pytest.mark.parametrize(
    ("trained", "shape"),
    in_turns(WITH_STAGE_MOMENTUM, ["straight", "replicated", "branching"], one_of=3),
    ids=words,
)
def test_momentum_of_a_stage_equals_the_reference(
    captured: CapturedModel, session: ClusterSession, trained: tuple[Method, str], shape: str
) -> None:
    method, optimizer = trained
    _check(captured, session, shape, method, OPTIMIZERS[optimizer])


@pytest.mark.parametrize(
    ("method", "shape", "per_link"),
    in_turns(["pipeoptim", "stash", "pipemare"], ["straight", "replicated"], [1, 2]),
)
def test_weights_equal_the_reference_at_every_in_flight_depth(
    captured: CapturedModel, session: ClusterSession, method: str, shape: str, per_link: int
) -> None:
    deeper = ASYNCHRONOUS[method].model_copy(update={"in_flight_per_link": per_link})
    _check(captured, session, shape, deeper, OPTIMIZERS["sgd"])


def test_last_gradients_survive_accumulation(
    captured: CapturedModel, session: ClusterSession
) -> None:
    """Plain SGD's direction is read from gradients while new ones are being summed up."""
    for method in (
        Method(policy="pipeoptim", accumulate=3),
        Method(policy="spectrain", accumulate=3),
    ):
        _check(captured, session, "straight", method, OPTIMIZERS["plain-sgd"])


@pytest.mark.parametrize("method", ["stash", "pipeoptim", "pipemare"])
def test_learning_rates_of_a_schedule_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, method: str
) -> None:
    rates = [0.05 * (1 + minibatch % 4) for minibatch in range(MINIBATCHES + 4)]
    options = RunOptions(order=order(MINIBATCHES), rates=rates, asynchronous_before=3)
    _check(captured, session, "straight", ASYNCHRONOUS[method], OPTIMIZERS["sgd"], options)


@pytest.mark.parametrize("policy", ["vanilla", "pipeoptim", "spectrain", "stash"])
def test_bfloat16_equals_the_reference(policy: str) -> None:
    """Where rounding is coarse, equal arithmetic still gives equal bits."""
    captured = capture(ModelReference.named("tests.support.models.small:perceptron"))
    operators = len(captured.graph)
    placement = Placement.from_assignment([3 * i // operators for i in range(operators)], (0, 1, 2))
    # The others' backward needs other weights than autocast's copies in the forward.
    recompute = policy != "stash"
    method = Method.model_validate(
        {"policy": policy, "precision": "bfloat16", "recompute": recompute}
    )
    reference = {}
    for precision in (method, method.model_copy(update={"precision": "float32"})):
        reference[precision.precision] = run_reference(
            captured,
            placement,
            Minibatches(captured.task.inputs, captured.task.targets),
            MINIBATCHES,
            method=precision,
            optimizer=OPTIMIZERS["sgd"],
        ).state
    with ClusterSession(captured, workers=3) as session:
        deployment = session.deploy(placement, method, OPTIMIZERS["sgd"])
        session.run(deployment, MINIBATCHES)
        state, _ = session.collect(deployment)
    assert largest_difference(state, reference["bfloat16"]) < 1e-6
    assert largest_difference(state, reference["float32"]) > 1e-4


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
    assert largest_difference(state, reference.state()) < 1e-9


def test_2bw_tells_how_many_minibatches_it_needs(
    captured: CapturedModel, session: ClusterSession
) -> None:
    placement = placements(captured)["straight"]
    with pytest.raises(InvalidInput, match=r"as are in flight, 4 with this placement; accumulate"):
        session.deploy(placement, Method(policy="2bw", accumulate=2))


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
    minibatches = FLUSHED if method.schedule_kind.flushes else MINIBATCHES
    options = options or RunOptions(order=order(minibatches))
    found = train_twice(
        session, candidate, optimizer, minibatches, Minibatches(*samples()), options
    )
    wanted = {name: value for name, value in found.reference.state.items() if name not in ignored}
    state = {name: value for name, value in found.state.items() if name not in ignored}
    assert largest_difference(state, wanted) < precision
    assert found.losses == pytest.approx(found.reference.losses, rel=precision)
    assert largest_difference(found.state, captured.state) > 1e-3, "training changed nothing"
