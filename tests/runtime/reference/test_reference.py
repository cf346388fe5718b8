"""What the reference executor keeps by itself, where no worker can be compared with it."""

import torch

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.runtime import Minibatches, run_reference
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec


def test_versions_are_kept_as_long_as_a_deep_pipeline_needs_them() -> None:
    """With four more for each link, the first of three stages has eleven minibatches in flight."""
    captured = capture(ModelReference.named("tests.support.models.small:perceptron", layers=3))
    operators = len(captured.graph)
    placement = Placement.from_assignment([3 * i // operators for i in range(operators)], (0, 1, 2))
    torch.manual_seed(0)
    minibatches = Minibatches([torch.randn(8, 16)], torch.randint(0, 5, (8,)))
    found = run_reference(
        captured,
        placement,
        minibatches,
        24,
        method=Method(policy="stash", in_flight_per_link=4),
        optimizer=OptimizerSpec(name="sgd", options={"lr": 0.01}),
    )
    assert len(found.losses) == 24
    assert found.losses[23, 0] < found.losses[0, 0]
