"""Comparisons of workers that train a chain of four layers, by every method."""

from collections.abc import Callable
from functools import partial

from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models import chain
from tests.support.models.chain import Lateness, Rule, Use, by_the_rule
from tests.support.mutations.mutation import Comparison
from tests.support.mutations.trained import MOMENTUM, RATE, Subject, Trained
from tests.support.training.pipelines import random_order
from tests.support.training.plain_steps import Step, with_momentum

MINIBATCHES, CLIP_NORM = 8, 0.3
SUBJECT = Subject(
    chain.REFERENCE,
    chain.placements,
    chain.samples(),
    random_order(chain.SAMPLES, MINIBATCHES, chain.BATCH),
)
RATES = tuple(0.02 * (1 + minibatch % 3) for minibatch in range(MINIBATCHES))
ADAMW = OptimizerSpec.parse("adamw", lr=0.02, eps=1e-3, weight_decay=0.5)
FLUSHED = Method(schedule="1f1b-flush", policy="sync", microbatches=4)


of_chain = partial(Trained, SUBJECT)


def with_rule(trained: Trained, late: Lateness, use: Use, step: Callable[[], Step]) -> Comparison:
    rule = Rule(late, use, step)
    microbatches = trained.method.microbatches
    return lambda: trained.with_rule(lambda data: by_the_rule(data, microbatches, rule))


_sgd = partial(with_momentum, RATE, MOMENTUM)


_STASH = of_chain(Method(policy="stash", microbatches=2))
_PACI = of_chain(Method(policy="vanilla", microbatches=4))
_PIPEOPTIM = of_chain(Method(policy="pipeoptim", microbatches=2))
_REPLICATED = of_chain(Method(policy="stash", microbatches=2), placement="replicated")
_2BW = of_chain(Method(policy="2bw", microbatches=4))
_LAST_STEP = of_chain(Method(policy="last-step"), ADAMW, rates=RATES)
_ZB_H1 = of_chain(Method(schedule="zb-h1", policy="sync", microbatches=4, clip_norm=CLIP_NORM))
_ZB_V = of_chain(
    Method(schedule="zb-v", policy="sync", microbatches=4, clip_norm=CLIP_NORM), placement="folded"
)
_SINGLE = of_chain(Method(policy="pipeoptim", microbatches=4), placement="single")

_two, _four = chain.straight(2), chain.straight(4)

COMPARISONS: dict[str, Comparison] = {
    "one stage with PyTorch": _SINGLE.with_pytorch,
    "stashing with rule": with_rule(_STASH, _two, chain.stashed, _sgd),
    "stashing with reference": _STASH.with_reference,
    "PACI with rule": with_rule(_PACI, _four, chain.newest, _sgd),
    "PACI with reference": _PACI.with_reference,
    "PipeOptim with rule": with_rule(_PIPEOPTIM, _two, chain.predicted, _sgd),
    "PipeOptim with reference": _PIPEOPTIM.with_reference,
    "replicated with rule": with_rule(_REPLICATED, chain.replicated, chain.stashed, _sgd),
    "replicated with reference": _REPLICATED.with_reference,
    "2BW with rule": with_rule(_2BW, _four, chain.before_the_newest, _sgd),
    "last step with reference": _LAST_STEP.with_reference,
    "ZB-H1 with PyTorch": _ZB_H1.with_pytorch,
    "ZB-H1 with reference": _ZB_H1.with_reference,
    "ZB-V with PyTorch": _ZB_V.with_pytorch,
    "ZB-V with reference": _ZB_V.with_reference,
}
