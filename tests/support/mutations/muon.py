"""Muon: what is torch's Muon's, and what is its AdamW's.

Workers and reference call the same optimizer, so that only the rule can tell.
"""

from typing import Any

from torch.optim import AdamW

from drlpp.runtime.weights.displacements import LastStep
from drlpp.schedule.method import Method
from drlpp.specs.muon import MuonWithAdamW
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models import chain
from tests.support.mutations.chained import FLUSHED, of_chain, with_rule
from tests.support.mutations.mutation import Comparison, Mutations
from tests.support.training.plain_steps import Step, adamw, for_matrices, muon

_SPEC = OptimizerSpec.parse("muon", lr=0.02, eps=1e-3, weight_decay=0.1)
_STASH = of_chain(Method(policy="stash", microbatches=2), _SPEC)
_PREDICTED = of_chain(Method(policy="pipeoptim", microbatches=2), _SPEC)


def _step() -> Step:
    return for_matrices(lambda: muon(0.02, 0.1), adamw(0.02, 1e-3, 0.1))


COMPARISONS: dict[str, Comparison] = {
    "Muon flushed with rule": with_rule(
        of_chain(FLUSHED, _SPEC), chain.flushed, chain.stashed, _step
    ),
    "Muon stashing with rule": with_rule(_STASH, chain.straight(2), chain.stashed, _step),
    "Muon predicted with rule": with_rule(_PREDICTED, chain.straight(2), chain.predicted, _step),
    "Muon predicted with reference": _PREDICTED.with_reference,
}
_RULES = ("Muon flushed with rule", "Muon stashing with rule", "Muon predicted with rule")


MUTATIONS = Mutations()
_row = MUTATIONS.row
_BUILT = MuonWithAdamW, "__init__"


@_row("AdamW for matrices too", _RULES, *_BUILT)
def _(init: Any) -> Any:
    def built(self: MuonWithAdamW, *given: Any, **more: Any) -> None:
        init(self, *given, **more)
        muon, others = self._parts
        adamw = AdamW(muon.param_groups[0]["params"], lr=more["lr"])
        adamw.state = self.state
        self._parts = [adamw, others]

    return built


@_row("vectors are left out", _RULES, *_BUILT)
def _(init: Any) -> Any:
    def built(self: MuonWithAdamW, *given: Any, **more: Any) -> None:
        init(self, *given, **more)
        self._parts = self._parts[:1]

    return built


_row("nothing is predicted without a rule", tuple(COMPARISONS)[2:], LastStep, "_move")(
    lambda _: lambda step, lead, rates: None
)
