"""What a race to a loss says, and when plain PyTorch is to be used."""

from drlpp.placement.placement import Placement
from drlpp.racing.contenders import Contender
from drlpp.racing.halving import Final, Goal, Result
from drlpp.racing.rivals import PLAIN
from drlpp.racing.training_race import RaceEnd, is_plain_as_good, race_lines
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from tests.support.training.races import race_of

TWO = Placement.from_assignment([0, 1], [0, 1])
RACE = race_of(
    (
        Contender(found_by=PLAIN, method=Method(), threads=1),
        Contender(found_by="even split", placement=TWO, method=Method()),
        Contender(
            found_by="even split",
            placement=TWO,
            method=choose_method("stash", {"microbatches": 2}),
        ),
    ),
    rates=(0.01,),
)


def ended(*seconds: float | None, arrived: bool = True) -> RaceEnd:
    """An end in which candidates took so long in the final; None: not in it."""
    costs = {number: cost for number, cost in enumerate(seconds) if cost is not None}
    finals = {
        number: [Final(cost * wobble, arrived or number != 0) for wobble in (0.99, 1.0, 1.01)]
        for number, cost in costs.items()
    }
    finalists = sorted(costs, key=costs.__getitem__)
    result = Result(dict.fromkeys(range(3), 0.01), {}, costs, finalists, finals)
    return RaceEnd(Goal(0.5, 60.0), result)


def test_the_gain_over_plain_pytorch_is_told_first_and_once() -> None:
    end = ended(10, 8, 5)
    assert list(race_lines(RACE, end)) == [
        "even split (1-1, M = 2, 1f1b, 2 microbatches, stash) reached the loss 2.00× faster than "
        "plain PyTorch (1 thread) (95% CI 2.00–2.00)",
        "the first at held-out loss 0.5: even split (1-1, M = 2, 1f1b, 2 microbatches, stash)",
        "even split (1-1, M = 2, 1f1b, 2 microbatches, stash) reached the loss 1.60× faster than "
        "even split (1-1, 1f1b, pipeoptim) (95% CI 1.60–1.60)",
    ]
    assert not is_plain_as_good(RACE, end)


def test_where_no_candidate_is_significantly_better_plain_pytorch_is_to_be_used() -> None:
    for end in (ended(4, 8), ended(5.02, 8, 5)):
        lines = list(race_lines(RACE, end))
        assert any(line.startswith("use plain PyTorch") for line in lines)
        assert is_plain_as_good(RACE, end)
    assert lines[0].startswith("no significant difference: even split (1-1, M = 2,")


def test_what_did_not_reach_the_loss_is_named() -> None:
    *_, last = race_lines(RACE, ended(None, 6, 5))
    assert last == "plain PyTorch did not reach it"
    *_, last = race_lines(RACE, ended(15, 5, arrived=False))
    assert last == "plain PyTorch (1 thread) did not reach it in 3 of 3 trainings"
    assert next(race_lines(RACE, ended(None, 5))) == "no other candidate reached the loss"
    assert next(race_lines(RACE, ended(5))).startswith("use plain PyTorch: no other")
    (none,) = race_lines(RACE, ended())
    assert none.startswith("no candidate reached held-out loss 0.5 within 60 s")
