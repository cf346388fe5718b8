"""What a race says, where several are plain PyTorch, each with its own optimizer."""

from drlpp.placement.placement import Placement
from drlpp.racing.contenders import Contender
from drlpp.racing.halving import Final, Goal, Result
from drlpp.racing.rivals import PLAIN
from drlpp.racing.training_race import RaceEnd, is_plain_as_good, race_lines
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.races import race_of

RMSPROP = OptimizerSpec.parse("rmsprop", lr=0.02)
TWO = Placement.from_assignment([0, 1], [0, 1])
STASH = choose_method("stash", {"microbatches": 2})
RACE = race_of(
    (
        Contender(found_by=PLAIN, method=Method(), threads=1),
        Contender(found_by="even split", placement=TWO, method=STASH),
        Contender(found_by=PLAIN, method=Method(), threads=1, optimizer=RMSPROP),
        Contender(found_by="even split", placement=TWO, method=STASH, optimizer=RMSPROP),
    ),
    rates=(0.01,),
)


def ended(**seconds: float) -> RaceEnd:
    """Return an end in which some were there in the final after so many seconds."""
    numbers = {"plain": 0, "stash": 1, "plain_rmsprop": 2, "stash_rmsprop": 3}
    costs = {numbers[name]: cost for name, cost in seconds.items()}
    finals = {
        number: [Final(cost * wobble, True) for wobble in (0.99, 1.0, 1.01)]
        for number, cost in costs.items()
    }
    finalists = sorted(costs, key=costs.__getitem__)
    result = Result(dict.fromkeys(range(4), 0.01), {}, costs, finalists, finals)
    return RaceEnd(Goal(0.5, 60.0), result)


def test_where_plain_pytorch_with_another_optimizer_wins_it_is_to_be_used() -> None:
    end = ended(plain=10, stash=8, plain_rmsprop=4)
    first, second, third, *_ = race_lines(RACE, end)
    assert first.startswith("plain PyTorch (1 thread, rmsprop) reached the loss 2.00× faster than")
    assert second.startswith("use plain PyTorch")
    assert third == "the first at held-out loss 0.5: plain PyTorch (1 thread, rmsprop)"
    assert is_plain_as_good(RACE, end)


def test_a_pipeline_has_to_beat_plain_pytorch_with_every_optimizer() -> None:
    """Twice as fast as with Adam is nothing, if plain PyTorch with RMSprop is as fast."""
    end = ended(plain=10, plain_rmsprop=5.02, stash_rmsprop=5)
    first, second, *_ = race_lines(RACE, end)
    assert first.startswith("no significant difference: even split (1-1, M = 2, rmsprop,")
    assert second.startswith("use plain PyTorch")
    assert is_plain_as_good(RACE, end)
    better = ended(plain=10, plain_rmsprop=8, stash_rmsprop=5)
    first, second, *others = race_lines(RACE, better)
    assert "reached the loss 1.60× faster than plain PyTorch (1 thread, rmsprop)" in first
    assert second == (
        "the first at held-out loss 0.5: even split (1-1, M = 2, rmsprop, 1f1b, 2 microbatches, "
        "stash)"
    )
    assert not any("use plain PyTorch" in line for line in others)
    assert not is_plain_as_good(RACE, better)


def test_those_of_equal_stages_and_microbatches_are_told_apart() -> None:
    *lines, last = race_lines(RACE, ended(stash=5, stash_rmsprop=6))
    assert last == "plain PyTorch did not reach it"
    assert "than even split (1-1, M = 2, rmsprop, 1f1b, 2 microbatches, stash)" in " ".join(lines)
