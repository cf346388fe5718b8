"""Plain PyTorch in a race trains as an ordinary loop and as one stage do, whatever its pauses."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from drlpp.capturing.capture import CapturedModel
from drlpp.comparison.plain_loop import PlainLoop
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup
from drlpp.training_race.learners import PipelineLearner
from drlpp.training_race.plain_learner import PlainLearner
from drlpp.training_race.race_data import RaceData
from tests.support.models.classified_points import NAME, classifier, data, points
from tests.support.training.pipelines import in_a_row


@pytest.mark.parametrize("groups", [False, True])
def test_plain_pytorch_trains_as_an_ordinary_loop(
    captured: CapturedModel, tmp_path: Path, groups: bool
) -> None:
    """And its parameters in groups as two optimizers do."""
    apart = [ParameterGroup.parse("*.bias", optimizer="sgd", lr=0.02)] if groups else []
    optimizer = OptimizerSpec.parse("adam", apart, lr=0.01)
    captured.task.module[2].p = 0.0
    try:
        learner = PlainLearner(
            captured, data(), tmp_path, Method(), optimizer, threads=1, device="cpu"
        )
        stints = [learner.train_until(stop) for stop in (5, 12, 15)]
    finally:
        captured.task.module[2].p = 0.1
    module = classifier().module
    module[2].p = 0.0
    biases = [w for name, w in module.named_parameters() if groups and name.endswith("bias")]
    others = [w for w in module.parameters() if not any(w is bias for bias in biases)]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(others, lr=0.01)]
    if biases:
        optimizers.append(torch.optim.SGD(biases, lr=0.02, momentum=0.9))
    source = data()
    minibatches = [*source.minibatches_here(1, 0), *source.minibatches_here(2, 0)][:15]
    for (inputs,), targets in minibatches:
        module.zero_grad()
        F.cross_entropy(module(inputs), targets).backward()
        for one in optimizers:
            one.step()
    module.eval()
    x, y = points().test.inputs[0], points().test.targets
    with torch.no_grad():
        wanted = float(F.cross_entropy(module(x), y))
    assert stints[-1].held_out_loss == pytest.approx(wanted, rel=1e-5)
    assert [stint.done for stint in stints] == [5, 12, 15]


def test_plain_pytorch_sees_every_sample_of_a_loader_whatever_its_pauses(
    session: ClusterSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the loader draws from a generator of its own, which each beginning moves on."""
    seen: list[float] = []
    step = PlainLoop.step

    def watched(loop: PlainLoop, inputs: tuple[Tensor, ...], *args: Tensor, last: bool) -> Tensor:
        seen.extend(inputs[0][:, 0].tolist())
        return step(loop, inputs, *args, last=last)

    monkeypatch.setattr(PlainLoop, "step", watched)
    orders = []
    for stops in [(12, 24), (5, 7, 12, 13, 24)]:
        data = RaceData(session.captured, f"{NAME}:loaders_of_their_own").ordered(0)
        folder, spec = tmp_path / str(len(stops)), session.optimizer
        for stop in stops:
            # A new one each time, as after a kill.
            learner = PlainLearner(
                session.captured, data, folder, Method(), spec, threads=1, device="cpu"
            )
            learner.train_until(stop)
        orders.append(seen.copy())
        seen.clear()
    assert orders[0] == orders[1]
    assert len(set(orders[0][:96])) == 96


@pytest.mark.parametrize("method", [Method(accumulate=5), Method(clip_norm=0.1)])
def test_plain_pytorch_trains_as_one_stage_does(
    session: ClusterSession, tmp_path: Path, method: Method
) -> None:
    """Also the update that an epoch ends with, of fewer minibatches; there is no dropout."""
    captured = session.captured
    captured.task.module[2].p = 0.0
    try:
        plain = PlainLearner(
            captured, data(), tmp_path, method, session.optimizer, threads=1, device="cpu"
        )
        found = [plain.train_until(stop).held_out_loss for stop in (10, 12, 22, 24)]
    finally:
        captured.task.module[2].p = 0.1
    alone = choose_method("sync", {"schedule": "1f1b"}, method)
    with ClusterSession(f"{NAME}:without_dropout", 1, optimizer=session.optimizer) as one:
        plan = one.plan(in_a_row(one.graph, 0), alone)
        learner = PipelineLearner(one, plan, data(), tmp_path / "one", one.optimizer)
        wanted = [learner.train_until(stop).held_out_loss for stop in (10, 12, 22, 24)]
    assert found == pytest.approx(wanted, rel=1e-5)
