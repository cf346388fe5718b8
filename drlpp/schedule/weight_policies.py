"""What a weight policy is: one table, which everything but the implementations asks.

The workers' implementation is :mod:`drlpp.runtime.weights.policies`, the reference executor's is
:mod:`drlpp.runtime.reference.reference_weights`. A new policy is a row here and a class or a
formula in each.

W_t are the weights of a stage after t updates. A part meets W_t at its forward and W_{t+s} at its
backward, s updates later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WeightUse:
    """Which weights a weight policy uses for one microbatch on one worker.

    Attributes:
        newest_in_forward: the newest version at its forward.
        newest_in_backward: the newest version at its backward.
        stashed: the version that both passes use, under policies that stash versions.
        forward_lead: how many updates the forward looks ahead of the newest version.
        backward_lead: how many the backward (and recomputation) does; it looks back if negative.
    """

    newest_in_forward: int
    newest_in_backward: int
    stashed: int
    forward_lead: int = 0
    backward_lead: int = 0


@dataclass(frozen=True, slots=True)
class PartCounts:
    """What a schedule says of one part on one worker, in versions of the stage's weights.

    Attributes:
        newest_in_forward: the newest version at its forward.
        newest_in_backward: the newest version at its backward.
        at_input: the newest that contains no minibatch that the weights of the input stage did not
            contain when the part entered.
        started_from: the newest that contains only minibatches before the part's.
        until_input: updates of the stage between its backward and the input stage's, ⌊rank/2⌋.
        still_to_come: updates after its backward and before the one that it contributes to: none,
            but of weights that a stage holds with others, whose gradients come later.
    """

    newest_in_forward: int
    newest_in_backward: int
    at_input: int = 0
    started_from: int = 0
    until_input: int = 0
    still_to_come: int = 0

    @property
    def difference(self) -> int:
        """s: updates between the forward and the backward (pipeoptim eq. 4)."""
        return self.newest_in_backward - self.newest_in_forward

    @property
    def lateness(self) -> int:
        """Updates between the forward and the update that the part contributes to."""
        return self.difference + self.still_to_come


Count = Callable[[PartCounts], int]


def _none(counts: PartCounts) -> int:
    return 0


@dataclass(frozen=True)
class Lookahead:
    """How many updates a pass looks ahead of the newest weights; it looks back if negative.

    A recomputation uses the weights of its backward.
    """

    forward: Count = _none
    backward: Count = _none


@dataclass(frozen=True)
class PolicyFacts:
    """One weight policy.

    Attributes:
        name: as users write it.
        title: what the papers call it.
        version: the version that both passes use, of a policy that keeps versions.
        lookahead: how far passes look ahead; None for policies that never move weights.
        copies: tensors as large as the weights that it keeps, besides these.
        stashes: whether it keeps every version that a part in flight needs.
        writes_in_place: whether weights change, in place, between a forward and its backward.
            Autocast's copies of a forward's weights would be outdated, so passes in 16 bits have
            to recompute.
        synchronous: whether no update may come between a forward and its backward.
        updates_all_in_flight: whether an update needs as many parts as are in flight.
        own_options: fields of :class:`drlpp.schedule.method.Method` that no other policy has, of
            which it needs one at least, with the values where a user gives none.
    """

    name: str
    title: str
    version: Count = lambda counts: counts.newest_in_forward
    lookahead: Lookahead | None = None
    copies: int = 0
    stashes: bool = False
    writes_in_place: bool = False
    synchronous: bool = False
    updates_all_in_flight: bool = False
    own_options: Mapping[str, float] = field(default_factory=dict)

    @property
    def copies_on_time(self) -> int:
        """The copies of a stage where no update comes between a forward and its backward.

        There only what looks ahead of the input stage moves weights.
        """
        if (ahead := self.lookahead) is None:
            return self.copies
        on_time = PartCounts(0, 0, until_input=1)
        return self.copies if ahead.forward(on_time) or ahead.backward(on_time) else 0


SUGGESTED_CORRECTION_DECAY = 0.135
"""D ≈ exp(−2), which pipemare derives in appendix B.4."""

# At the backward of a stage's own weights there is nothing left to look ahead.
_TO_THE_UPDATE = Lookahead(
    forward=lambda counts: counts.lateness, backward=lambda counts: counts.still_to_come
)
_TO_THE_INPUT_STAGE = Lookahead(
    forward=lambda counts: counts.lateness + counts.until_input,
    backward=lambda counts: counts.still_to_come + counts.until_input,
)


def _predicting(name: str, title: str, lookahead: Lookahead) -> PolicyFacts:
    """Return a policy that moves weights for a pass, and keeps W_t or W_{t−1} meanwhile."""
    return PolicyFacts(name, title, lookahead=lookahead, copies=1, writes_in_place=True)


SYNC = PolicyFacts("sync", "synchronous", synchronous=True)
# pipedream §3.3.
STASH = PolicyFacts("stash", "PipeDream", stashes=True)
# pipeoptim §III, algorithm 1: forwards use W_t − lr·s·ΔW_t.
PIPEOPTIM = _predicting("pipeoptim", "PipeOptim", _TO_THE_UPDATE)
# pipeoptim §II. A delay of one: w^(t+1) = w^(t) − ν · ∇f(w^(t−1)).
_TWO_VERSIONS = PolicyFacts(
    "2bw",
    "PipeDream-2BW",
    version=lambda counts: max(counts.started_from - 1, 0),
    copies=1,
    updates_all_in_flight=True,
)

WEIGHT_POLICIES: dict[str, PolicyFacts] = {
    facts.name: facts
    for facts in (
        SYNC,
        PolicyFacts("vanilla", "vanilla", writes_in_place=True),
        STASH,
        PolicyFacts(
            "stash-vertical",
            "vertical sync",
            version=lambda counts: min(counts.newest_in_forward, counts.at_input),
            stashes=True,
        ),
        _TWO_VERSIONS,
        # pipeoptim eq. 6, along the momentum and along Adam's step.
        _predicting("spectrain", "SpecTrain", _TO_THE_INPUT_STAGE),
        _predicting("xpipe", "XPipe", _TO_THE_INPUT_STAGE),
        PIPEOPTIM,
        # After pipeoptim §III: W_t + s·(W_t − W_{t−1}).
        _predicting("last-step", "last applied step", _TO_THE_UPDATE),
        # pipemare §3: backwards use W_{t+s} − s·δ.
        PolicyFacts(
            "pipemare",
            "PipeMare",
            lookahead=Lookahead(backward=lambda counts: -counts.difference),
            # W_{t+s}, while a backward runs with others, and δ.
            copies=2,
            writes_in_place=True,
            own_options={
                "annealing_minibatches": 0,
                "correction_decay": SUGGESTED_CORRECTION_DECAY,
            },
        ),
    )
}


def policy_help() -> str:
    """Return the help of an option: every name, with the papers' where it is another."""
    names = [
        facts.name if facts.name == facts.title.lower() else f"{facts.name} ({facts.title})"
        for facts in WEIGHT_POLICIES.values()
    ]
    return f"Weight policy: {', '.join(names[:-1])}, or {names[-1]}"
