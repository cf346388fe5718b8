"""Methods trained to a loss: their rates, the loss to reach, and what waits for what."""

import math
from collections.abc import Iterator, Mapping, Sequence

import pytest
import torch
from pandas import DataFrame

from benchmarks.learning import study as learning
from benchmarks.learning.study import (
    Case,
    Late,
    Learned,
    LearningStudy,
    Point,
    next_powers,
    reached,
    shuffled,
)
from benchmarks.learning.tasks import TASKS
from benchmarks.learning.to_loss import DIVIDED, PLAIN
from benchmarks.learning.to_loss import STUDY as TO_LOSS
from drlpp.schedule.method import Method

GPIPE = Method(schedule="gpipe", policy="sync")
METHODS_OF_STUDY = {"GPipe": GPIPE, **dict.fromkeys(("soon", "late", "lost"), Method())}


class MadeUp(LearningStudy):
    """The least losses with a rate of 0.004; one method hardly learns."""

    name = "made-up"
    question = "What would come out?"

    def methods(self, case: Case) -> Mapping[str, Late]:
        return {name: Late(method) for name, method in METHODS_OF_STUDY.items()}

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        return []

    def table(self, rows: Sequence[Learned]) -> Mapping[str, DataFrame]:
        return {}


def case_of(method: str, *, own_rate: bool = True) -> Case:
    stages = 1 if method == "GPipe" else 4
    return Case(
        task="digits", optimizer="sgd", method=method, stages=stages, planned=16, own_rate=own_rate
    )


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int, int]]:
    """Fake trainings, and return which were made: method, power, seed and longest."""
    made: list[tuple[str, int, int, int]] = []

    def train(
        case: Case, row: Late, power: int, seed: int, longest: int, goal: float | None = None
    ) -> Iterator[Point]:
        made.append((case.method, power, seed, longest))
        slow = {"GPipe": 1.0, "late": 1.5, "lost": 9.0}.get(case.method, 0.8)
        for done in range(1, longest + 1):
            loss = slow * 16 / done + abs(power - 2) + 0.01 * seed
            yield Point(minibatches=done, loss=loss, score=1 / loss)
            if done >= case.planned and goal is not None and loss <= goal:
                return

    monkeypatch.setattr(learning, "_train", train)
    return made


def complete(study: LearningStudy, cases: Sequence[Case]) -> dict[str, Learned]:
    found: list[Learned] = []
    while wanted := study.wanted(cases, found):
        found += map(study.run, wanted)
    return {row.case.method: row for row in found}


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        ({}, [1]),
        ({1: 2.0}, [0, 2]),
        ({0: 2.2, 1: 2.0, 2: 1.9}, [3]),
        ({0: 2.2, 1: 2.0, 2: 1.9, 3: 2.4}, []),
        ({1: math.inf}, [0]),
        ({1: math.inf, 0: math.inf, -1: 3.0}, [-2]),
        ({power: float(power) for power in range(-4, 7)}, []),
    ],
)
def test_a_walk_ends_where_both_neighbours_are_worse(
    losses: dict[int, float], wanted: list[int]
) -> None:
    assert next_powers(losses, 1) == wanted


def test_every_method_has_its_own_rate_and_trains_to_the_baseline_s_loss(
    trained: list[tuple[str, int, int, int]],
) -> None:
    study = MadeUp()
    found = complete(study, [case_of(name) for name in ("late", "soon", "lost")])
    assert {row.power for row in found.values()} == {2}
    # After 12 of 16 minibatches, the mean over seeds.
    (target,) = {target for row in found.values() for target in row.targets}
    assert target == pytest.approx(16 / 12 + 0.01)
    assert [run.reached for run in found["late"].runs] == pytest.approx([17.9, 18, 18.2], abs=0.1)
    # One that is given up counts as if it had been there in the end.
    assert study.counted(found["lost"]) == {0: 32, 1: 32, 2: 32}
    assert study.reached_text(found["lost"]) == "32 ± 0 (3 of 3 not there)"
    # What was there while it tried its rate trains no second time, and no training is repeated.
    assert [run for run in trained if run[:2] == ("soon", 2)] == [
        ("soon", 2, 0, 16),
        ("soon", 2, 1, 32),
        ("soon", 2, 2, 32),
    ]
    assert len(set(trained)) == len(trained)


def test_a_run_ends_at_its_target_but_not_before_its_plan() -> None:
    late = Late(Method(policy="pipemare", correction_decay=0.1))
    case = case_of("late").model_copy(update={"planned": 4})
    points = list(learning._train(case, late, 3, 0, 8, goal=9.0))
    assert [point.minibatches for point in points] == [1, 2, 3, 4]
    warm = list(learning._train(case, Late(late.method, synchronous=2), 3, 0, 8, goal=9.0))
    assert warm[-1].loss != points[-1].loss
    hopeless = list(learning._train(case, late, 3, 0, 8, goal=0.0))
    assert hopeless[-1].minibatches == 8
    assert hopeless[3].loss == pytest.approx(points[3].loss)
    assert reached(9.0, points) == 1
    assert reached(0.0, hopeless) is None


def test_a_run_is_plain_training_where_nothing_is_late() -> None:
    plain = Case(task="digits", optimizer="adamw", method=PLAIN, stages=1, planned=4)
    points = list(learning._train(plain, TO_LOSS.methods(plain)[PLAIN], 1, 3, 4))
    module = TASKS["digits"].reference.build(seed=3).module
    data = TASKS["digits"].load()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.002, weight_decay=0.01)
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(len(data.train), generator=generator)[: 4 * 32].view(4, 32)
    assert torch.equal(order, shuffled(len(data.train), 32, 4, 3))
    losses = []
    for indices in order:
        optimizer.zero_grad()
        outputs = module(data.train.inputs[0][indices])
        torch.nn.functional.cross_entropy(outputs, data.train.targets[indices]).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            outputs = module(*data.test.inputs)
        losses.append(torch.nn.functional.cross_entropy(outputs, data.test.targets).item())
    assert [point.loss for point in points] == pytest.approx(losses, rel=1e-4)


def test_tables_of_the_rows_in_git() -> None:
    tables = list(TO_LOSS.table(TO_LOSS.stored()).values())
    own = {row["method"]: row for row in tables[0].to_dict("records")}
    assert own[DIVIDED]["depth 4"] == "1.13 ± 0.06 (4: 2.192 ± 0.022)"
    assert own["PipeDream"]["depth 16"].startswith("> 3 (")
    assert "Muon, last step" in own
    assert "Muon, last step" not in list(tables[1]["method"])
