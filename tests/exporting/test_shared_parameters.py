"""What an export says of parameters that several stages share."""

import pytest

from drlpp.capturing.capture import capture
from drlpp.exporting.nearest import nearest_chain
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from tests.support.models.tied import placements


@pytest.fixture(scope="module")
def plan() -> ExecutionPlan:
    captured = capture(ModelReference.named("tests.support.models.tied:tied"))
    candidate = Candidate(placements(captured)["straight"], Method())
    return ExecutionPlan.of(candidate, captured.graph, 4)


def test_a_bundle_sums_their_gradients_itself(plan: ExecutionPlan) -> None:
    assert not any("share" in note for note in nearest_chain(plan).notes)


def test_in_one_stage_they_are_no_matter(plan: ExecutionPlan) -> None:
    assert plan.graph is not None
    alone = Placement.from_assignment([0] * len(plan.graph), (0,))
    assert not nearest_chain(ExecutionPlan.of(Candidate(alone, Method()), plan.graph, 1)).notes


def test_programs_that_train_themselves_are_told(plan: ExecutionPlan) -> None:
    notes = nearest_chain(plan, trains_itself=True).notes
    assert notes[:2] == (
        "stages 0 and 1 share right.weight; the program there has to keep the copies the same",
        "stages 0 and 2 and 3 share head.weight; the program there has to keep the copies the same",
    )
