"""How many versions of its weights a stage holds, from the resident memory of its worker.

Layers are larger than 32 MiB, so that malloc gives each a mapping of its own: what a worker frees
is then really gone. The same stages under the naive schedule hold one version of the weights, and
as much of everything else.
"""

import sys
from collections.abc import Iterator

import pytest

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Option
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells peak memory")

LAYERS = [0, 0, 1, 1, 2]
"""The stage of every layer."""
DEPTH = 3
MINIBATCHES = 5
NAIVE = {"schedule": "gpipe", "policy": "sync"}
WITH_RULE = OptimizerSpec(name="sgd", options={"momentum": 0.9})


class Meter:
    """Workers, and what the naive schedule needs."""

    def __init__(self, session: ClusterSession) -> None:
        self.session = session
        # A layer has its activation behind it, and the last stage the small output layer.
        stages = [stage for stage in LAYERS for _ in range(2)] + [DEPTH - 1]
        self.placement = Placement.from_assignment(stages, range(DEPTH))
        self.naive: dict[tuple[str, int], dict[int, int]] = {}

    def versions(self, method: Method, optimizer: OptimizerSpec) -> list[float]:
        """Of every stage, by resident memory."""
        together = method.accumulate * method.microbatches
        key = (optimizer.name, together)
        if key not in self.naive:
            naive = Method.model_validate({**NAIVE, "accumulate": together})
            self.naive[key] = self._peaks(naive, optimizer)[0]
        peaks, weights = self._peaks(method, optimizer)
        return [1 + (peaks[k] - self.naive[key][k]) / weights[k] for k in range(DEPTH)]

    def _peaks(
        self, method: Method, optimizer: OptimizerSpec
    ) -> tuple[dict[int, int], dict[int, int]]:
        deployment = self.session.deploy(self.placement, method, optimizer)
        _, results = self.session.run(deployment, MINIBATCHES)
        return (
            {worker: result.peak_memory_bytes for worker, result in results.items()},
            {worker: result.weight_bytes for worker, result in results.items()},
        )


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    options: dict[str, Option] = {"layers": len(LAYERS), "width": 2912}
    model = capture(ModelReference.named("tests.support.models.small:perceptron", **options))
    with ClusterSession(model, workers=DEPTH) as session:
        yield Meter(session)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "optimizer", "expected"),
    [
        (Method(policy="vanilla"), WITH_RULE, [1, 1, 1]),
        (Method(policy="stash"), WITH_RULE, [3, 2, 1]),
        (Method(policy="2bw", accumulate=3), WITH_RULE, [2, 2, 2]),
        (Method(policy="pipeoptim"), WITH_RULE, [2, 2, 1]),
        (Method(policy="last-step"), WITH_RULE, [2, 2, 1]),
        (Method(policy="stash", microbatches=4), WITH_RULE, [2, 2, 1]),
        (Method(schedule="zb-h1", policy="sync", microbatches=4), WITH_RULE, [1, 1, 1]),
    ],
    ids=str,
)
def test_versions_in_resident_memory(
    meter: Meter, method: Method, optimizer: OptimizerSpec, expected: list[int]
) -> None:
    assert meter.versions(method, optimizer) == pytest.approx(expected, abs=0.35)
