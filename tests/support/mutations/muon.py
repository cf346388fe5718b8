"""Muon: its momentum, the orthogonalised step, what is AdamW's. Needs a torch that has it.

Workers and reference call the same optimizer, so that only the rule can tell.
"""

from typing import Any

from torch.optim import AdamW, _muon

from drlpp.runtime.weights.displacements import LastStep
from drlpp.schedule.method import Method
from drlpp.specs.matrices_apart import MatricesApart
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models import chain
from tests.support.mutations.chained import FLUSHED, of_chain, with_rule
from tests.support.mutations.mutation import Comparison, Mutation, instead
from tests.support.training.plain_steps import Step, adamw, for_matrices, muon

# A larger rate for vectors, so that whose it is shows.
_SPEC = OptimizerSpec.parse("muon", lr=0.02, adamw_lr=0.05, eps=1e-3, weight_decay=0.1)
_STASH = of_chain(Method(policy="stash", microbatches=2), _SPEC)
_PREDICTED = of_chain(Method(policy="pipeoptim", microbatches=2), _SPEC)


def _step() -> Step:
    return for_matrices(lambda: muon(0.02, 0.1, 0.95), adamw(0.05, 1e-3, 0.1))


COMPARISONS: dict[str, Comparison] = {
    "Muon flushed with rule": with_rule(
        of_chain(FLUSHED, _SPEC), chain.flushed, chain.stashed, _step
    ),
    "Muon stashing with rule": with_rule(_STASH, chain.straight(2), chain.stashed, _step),
    "Muon predicted with rule": with_rule(_PREDICTED, chain.straight(2), chain.predicted, _step),
    "Muon predicted with reference": _PREDICTED.with_reference,
}
_RULES = ("Muon flushed with rule", "Muon stashing with rule", "Muon predicted with rule")


def _of_matrices(**options: object) -> Any:
    def broken(init: Any) -> Any:
        def built(self: MatricesApart, *given: Any, of_matrices: Any, **more: Any) -> None:
            init(self, *given, of_matrices={**of_matrices, **options}, **more)

        return built

    return broken


def _one_rate(init: Any) -> Any:
    def built(
        self: MatricesApart, params: Any, kind: Any, lr: float, _: Any, *given: Any, **more: Any
    ) -> None:
        init(self, params, kind, lr, None, *given, **more)

    return built


def _adamw_for_all(init: Any) -> Any:
    def built(self: MatricesApart, params: Any, kind: Any, *given: Any, **more: Any) -> None:
        init(self, params, lambda weights, lr, **_: AdamW(weights, lr=lr), *given, **more)

    return built


def _matrices_only(init: Any) -> Any:
    def built(self: MatricesApart, *given: Any, **more: Any) -> None:
        init(self, *given, **more)
        self._parts = self._parts[:1]

    return built


_BUILT = MatricesApart, "__init__"
MUTATIONS = (
    Mutation("Muon without momentum", instead(*_BUILT, _of_matrices(momentum=0.0)), _RULES),
    Mutation("Muon without Nesterov's", instead(*_BUILT, _of_matrices(nesterov=False)), _RULES),
    Mutation("a Newton–Schulz step short", instead(*_BUILT, _of_matrices(ns_steps=4)), _RULES),
    Mutation(
        "steps are not orthogonalised",
        instead(_muon, "_zeropower_via_newtonschulz", lambda _: lambda gradient, *given: gradient),
        _RULES,
    ),
    Mutation(
        "steps of Muon's size", instead(*_BUILT, _of_matrices(adjust_lr_fn="original")), _RULES
    ),
    Mutation("AdamW at Muon's rate", instead(*_BUILT, _one_rate), _RULES),
    Mutation("AdamW for matrices too", instead(*_BUILT, _adamw_for_all), _RULES),
    Mutation("vectors are left out", instead(*_BUILT, _matrices_only), _RULES),
    Mutation(
        "nothing is predicted without a rule",
        instead(LastStep, "move_", lambda _: lambda step, lead, rates: None),
        ("Muon predicted with rule", "Muon predicted with reference"),
    ),
)
