"""Parameters in groups: workers equal the reference, and torch's own groups in a plain loop."""

from fnmatch import fnmatchcase

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import InvalidInput
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.runtime import ClusterSession, Minibatches, RunOptions
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup
from tests.support.in_turns import in_turns
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

MINIBATCHES = 10
VECTORS = ("*bias*", "norm.*")
RATES = [0.01 * (1 + minibatch % 3) for minibatch in range(MINIBATCHES)]

SGD = OptimizerSpec.parse(
    "sgd",
    [
        ParameterGroup.parse(*VECTORS, weight_decay=0),
        ParameterGroup.parse("embedding.*", lr=0.2, momentum=0.5, nesterov=True),
    ],
    lr=0.05,
    weight_decay=0.1,
)
ADAMW = OptimizerSpec.parse(
    "adamw",
    [
        ParameterGroup.parse(*VECTORS, weight_decay=0),
        ParameterGroup.parse("embedding.*", "head.*", lr=0.003, betas=[0.8, 0.99]),
    ],
    lr=0.01,
    eps=1e-4,
    weight_decay=0.1,
)
ADAM = OptimizerSpec.parse(
    "adam",
    [ParameterGroup.parse("hidden.*", "lstm.*", lr=0.02, amsgrad=True)],
    lr=0.01,
    eps=1e-4,
)
MUON = OptimizerSpec.parse(
    "muon",
    [ParameterGroup.parse(*VECTORS, "embedding.*", weight_decay=0)],
    lr=0.01,
    weight_decay=0.1,
    eps=1e-4,
)
LION = OptimizerSpec.parse(
    "tests.support.models.lion:Lion", [ParameterGroup.parse("stem.*", lr=0.003)], lr=0.001
)
OPTIMIZERS = {"sgd": SGD, "adamw": ADAMW, "adam": ADAM, "muon": MUON, "lion": LION}

METHODS = {
    **POLICIES,
    "pipemare": Method(policy="pipemare", annealing_minibatches=9, correction_decay=0.2),
    "accumulating": Method(policy="pipeoptim", microbatches=2, accumulate=3, clip_norm=0.5),
    "gpipe": Method(schedule="gpipe", policy="sync", microbatches=4, clip_norm=0.5),
    "zb-h1": Method(schedule="zb-h1", policy="sync", microbatches=4),
}


@pytest.mark.parametrize(
    ("method", "shape", "optimizer"),
    in_turns(METHODS, SHAPES, OPTIMIZERS, slow=(*LIKE_OTHERS, "last-step", "gpipe")),
)
def test_groups_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, method: str, shape: str, optimizer: str
) -> None:
    """Under a schedule of learning rates, that each group follows from its own."""
    candidate = Candidate(placements(captured)[shape], METHODS[method])
    options = RunOptions(order(MINIBATCHES), rates=RATES)
    found = train_twice(
        session, candidate, OPTIMIZERS[optimizer], MINIBATCHES, Minibatches(*samples()), options
    )
    # Lion takes the sign of these, whose gradient is rounding noise.
    noise = {"attention.in_proj_bias", "conv.bias", "norm.running_mean"}
    names = found.state.keys() - (noise if optimizer == "lion" else ())
    two = ({n: state[n] for n in names} for state in (found.state, found.reference.state))
    assert largest_difference(*two) < 1e-9
    assert largest_difference(found.state, captured.state) > 1e-3, "training changed nothing"


def test_a_profile_has_updates_and_predictions_of_all_groups(captured: CapturedModel) -> None:
    with ClusterSession(captured, workers=1, optimizer=ADAMW) as session:
        profile, _ = session.profile(repeats=2)
    assert profile.update_seconds_per_byte > 0
    assert profile.prediction_seconds_per_byte > 0
    groups = [ParameterGroup.parse("embeding.*", lr=0.1)]
    with pytest.raises(InvalidInput, match=r"'embeding.\*' of .* embedding.weight"):
        ClusterSession(captured, workers=1, optimizer=OptimizerSpec.parse("adam", groups))


def test_flushed_groups_equal_torchs_own() -> None:
    """The user's module, torch's ``param_groups`` and a ``LambdaLR``: nothing here is ours."""
    captured = capture(ModelReference.named("tests.support.models.small:forked", dropout=0.0))
    module = captured.reference.build().module.train()
    named = list(module.named_parameters())
    vectors = [w for name, w in named if any(fnmatchcase(name, pattern) for pattern in VECTORS)]
    embedding = [w for name, w in named if name.startswith("embedding")]
    known = {id(weight) for weight in (*vectors, *embedding)}
    groups = [
        {"params": vectors, "weight_decay": 0},
        {"params": embedding, "lr": 0.2, "momentum": 0.5, "nesterov": True},
        {"params": [w for _, w in named if id(w) not in known]},
    ]
    plain = torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.1)
    factors = [1 + minibatch % 3 for minibatch in range(MINIBATCHES)]
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        plain, lambda step: factors[min(step, MINIBATCHES - 1)]
    )
    (tokens,), targets = samples()
    for indices in order(MINIBATCHES):
        module.zero_grad()
        F.cross_entropy(module(tokens[indices]), targets[indices]).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        plain.step()
        scheduler.step()
    method = Method(schedule="gpipe", policy="sync", clip_norm=0.5)
    rates = [0.05 * factor for factor in factors]
    with ClusterSession(captured, workers=4) as session:
        session.use_samples([tokens], targets)
        deployment = session.deploy(placements(captured)["straight"], method, SGD)
        session.run(deployment, MINIBATCHES, RunOptions(order(MINIBATCHES), rates=rates))
        state, _ = session.collect(deployment)
    assert largest_difference(state, module.state_dict()) < 1e-9
