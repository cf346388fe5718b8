"""What only a GPU can show: workers that share one, NCCL with one rank, a profile."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._ops import OpOverload

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession, Minibatches, RunOptions
from drlpp.runtime.comm.connections import Member
from drlpp.runtime.device import recurrent
from drlpp.runtime.device.devices import accelerator_of
from drlpp.runtime.ipc.protocol import ParallelWay
from drlpp.runtime.ipc.tensor_file import write_checkpoint
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.forked import SHAPES, largest_difference, order, placements, samples
from tests.support.models.zoo.tiny_models import task_in_float64
from tests.support.training.against_reference import train_twice
from tests.support.training.pipelines import in_a_row

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"
)

MINIBATCHES = 15
ZOO_KINDS = ("alexnet", "resnet50", "gnmt4", "awd_lm", "s2vt", "gpt2")
"""Models with every kind of operator of the zoo that has weights."""
SPEC = OptimizerSpec(name="adam", options={"lr": 0.01, "eps": 1e-4})


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    """Without dropout: a GPU draws other random numbers than the reference on the processor.

    In float64: in float32, GPUs round what convolutions and recurrent layers read to ten bits.
    """
    return capture(ModelReference.named("tests.support.models.small:forked", dropout=0.0))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4, device="cuda") as session:
        session.use_samples(*samples())
        yield session


@pytest.mark.parametrize("policy", ["vanilla", "stash", "pipeoptim", "spectrain", "pipemare"])
@pytest.mark.parametrize("shape", SHAPES)
def test_four_workers_train_to_the_weights_of_the_reference(
    captured: CapturedModel, session: ClusterSession, shape: str, policy: str
) -> None:
    decay = 0.2 if policy == "pipemare" else 0.0
    method = Method.model_validate({"policy": policy, "correction_decay": decay})
    placement = placements(captured)[shape]
    options = RunOptions(order=order(MINIBATCHES))
    candidate, minibatches = Candidate(placement, method), Minibatches(*samples())
    found = train_twice(session, candidate, SPEC, MINIBATCHES, minibatches, options)
    scores = session.evaluate(found.deployment, 3, RunOptions(order=order(3))).scores
    assert scores is not None
    assert all(score.device.type == "cpu" for score in scores)
    state, optimizer = session.collect(found.deployment)
    assert all(value.device.type == "cpu" for value in state.values())
    assert optimizer
    assert found.difference < 1e-6
    assert largest_difference(state, captured.state) > 1e-3, "training changed nothing"


@pytest.mark.parametrize("name", ZOO_KINDS)
def test_every_backward_sees_the_weights_of_its_time(name: str) -> None:
    """With vanilla they have changed since the forward, in place, in all stages but the last."""
    captured = capture(f"tests:{name}", without_dropout(task_in_float64(name)))
    with ClusterSession(captured, workers=2, device="cuda") as session:
        found = train_twice(
            session,
            Candidate(in_a_row(captured.graph, 0, 1), Method(policy="vanilla")),
            OptimizerSpec(name="sgd", options={"lr": 0.02, "momentum": 0.9}),
            5,
            Minibatches(captured.task.inputs, captured.task.targets),
            RunOptions(),
        )
    assert largest_difference(dict(found.state), captured.state) > 1e-5, "training changed nothing"
    assert found.difference < 1e-6


def without_dropout(task: Task) -> Task:
    """A GPU draws other random numbers than the reference on the processor."""
    for module in task.module.modules():
        for name in ("p", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return task


LAYERS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": partial(nn.RNN, nonlinearity="relu"),
}
OPTIONS: list[dict[str, int]] = [
    {},
    {"bidirectional": True, "num_layers": 2},
    {"bias": False, "batch_first": True},
]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-7), (torch.float32, 1e-2)], ids=["double", "float"]
)
@pytest.mark.parametrize(
    ("kind", "options"), [*product(LAYERS, OPTIONS), ("lstm", {"proj_size": 3, "num_layers": 2})]
)
def test_recurrent_layers_see_weights_that_were_changed_in_place(
    kind: str, options: dict[str, int], dtype: torch.dtype, tolerance: float
) -> None:
    """As torch's own on a processor do; twice, since a split backward asks twice.

    In float32 small layers have kernels of their own, which may round to ten bits. A ReLU that is
    as near to its kink as that is open here and closed there: weights are positive then, and all
    are open.
    """
    module = LAYERS[kind](5, 4, **options).to(dtype)
    if kind == "rnn_relu" and dtype == torch.float32:
        for weight in module.parameters():
            weight.data.abs_()
    operator = getattr(torch.ops.aten, kind).input
    samples = torch.rand(6, 6, 5, dtype=dtype)
    here = backwards(operator, module, samples)
    there = backwards(recurrent.ON_GPU[operator], module, samples.cuda())
    for one, other in zip(there, here, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=tolerance, atol=tolerance)


def backwards(operator: OpOverload, module: nn.RNNBase, samples: Tensor) -> list[Tensor]:
    """Return outputs and gradients of two backwards, before which weights have changed."""
    weights = tuple(
        w.detach().clone().to(samples.device).requires_grad_() for w in module.parameters()
    )
    rows = module.num_layers * (2 if module.bidirectional else 1)
    hidden = samples.new_ones(rows, 6, module.proj_size or module.hidden_size).requires_grad_()
    cell = samples.new_ones(rows, 6, module.hidden_size).requires_grad_()
    state = [hidden, cell] if module.mode == "LSTM" else hidden
    leaves = [samples.detach().requires_grad_(), hidden, *weights]
    rest = (weights, module.bias, module.num_layers, 0.0, True, module.bidirectional)
    outputs = operator(leaves[0], state, *rest, module.batch_first)
    end = torch.stack([(output * output).sum() for output in outputs]).sum()
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weights):
        for weight in weights:
            weight.mul_(1.5)
    first = torch.autograd.grad(end, leaves[:1], retain_graph=True)
    return [*outputs, *first, *torch.autograd.grad(end, leaves)]


@pytest.mark.parametrize("schedule", ["zb-h1", "1f1b-flush"])
def test_backwards_in_halves_train_to_the_weights_of_the_reference(
    captured: CapturedModel, session: ClusterSession, schedule: str
) -> None:
    method = Method(schedule=schedule, policy="sync", microbatches=2)
    candidate = Candidate(placements(captured)["straight"], method)
    options = RunOptions(order=order(MINIBATCHES))
    minibatches = Minibatches(*samples())
    found = train_twice(session, candidate, SPEC, MINIBATCHES, minibatches, options)
    assert found.difference < 1e-6


@pytest.mark.parametrize("policy", ["pipeoptim", "vanilla", "stash"])
def test_compiled_stages_train_as_they_are(policy: str) -> None:
    captured = capture(ModelReference.named("gpt2", "small", layers=2, dropout=0.0))
    placement, states = in_a_row(captured.graph, 0, 1), []
    with ClusterSession(captured, workers=2, device="cuda", timeout_seconds=300) as session:
        for compiled in (False, True):
            method = Method.model_validate({"policy": policy, "compiled": compiled})
            deployment = session.deploy(placement, method)
            assert not deployment.uncompiled
            session.run(deployment, 6)
            states.append(session.collect(deployment)[0])
    assert largest_difference(*states) < 1e-6
    assert largest_difference(states[0], captured.state) > 1e-3, "training changed nothing"


def test_torchs_own_data_parallelism_is_measured() -> None:
    captured = capture(ModelReference.named("tests.support.models.small:perceptron"))
    with ClusterSession(captured, workers=2, device="cuda") as session:
        for way in get_args(ParallelWay):
            outcome = session.measure_parallel(way, 2, 4, Method(schedule="gpipe", policy="sync"))
            assert isinstance(outcome, Measurement), outcome


def test_a_stage_that_needs_more_memory_than_allowed_fails() -> None:
    captured = capture(ModelReference.named("gpt2", "small", layers=2))
    with ClusterSession(captured, workers=2, device="cuda") as session:
        _, cluster = session.profile(repeats=2)
    for limit, fits in ((0.02e9, False), (4e9, True)):
        limited = cluster.model_copy(update={"memory_bytes": (limit, limit)})
        with ClusterSession(captured, workers=2, device="cuda", links=limited) as session:
            outcome = session.measure(in_a_row(captured.graph, 0, 1), minibatches=4)
        assert isinstance(outcome, Measurement) == fits
        assert fits or outcome.failure == "out of memory"


def test_a_checkpoint_goes_on_on_the_processor_and_back(
    captured: CapturedModel, session: ClusterSession, tmp_path: Path
) -> None:
    method, placement = Method(policy="pipeoptim"), placements(captured)["straight"]
    deployment = session.deploy(placement, method, SPEC)
    session.run(deployment, 8, RunOptions(order=order(8)))
    state, optimizer = session.collect(deployment)
    write_checkpoint(tmp_path / "here", {"model": state, "optimizer": optimizer})
    with ClusterSession(captured, workers=4, device="cpu") as processors:
        processors.use_samples(*samples())
        there = processors.deploy(placement, method, SPEC, tmp_path / "here")
        found, _ = processors.collect(there)
        assert largest_difference(found, state) == 0
        processors.run(there, 4, RunOptions(order=order(4)))
        state, optimizer = processors.collect(there)
        write_checkpoint(tmp_path / "there", {"model": state, "optimizer": optimizer})
    back = session.deploy(placement, method, SPEC, tmp_path / "there")
    session.run(back, 4, RunOptions(order=order(4)))


def test_dropout_is_the_same_whatever_the_placement() -> None:
    captured = capture(ModelReference.named("tests.support.models.small:forked", dropout=0.5))
    method = Method(schedule="1f1b-flush", policy="sync", microbatches=2)
    states = []
    with ClusterSession(captured, workers=4, device="cuda") as session:
        session.use_samples(*samples())
        for shape in ("straight", "branching"):
            deployment = session.deploy(placements(captured)[shape], method, SPEC)
            session.run(deployment, MINIBATCHES, RunOptions(order=order(MINIBATCHES)))
            states.append(session.collect(deployment)[0])
    assert largest_difference(*states) < 1e-9


def test_a_measurement_and_a_profile_are_the_gpus() -> None:
    captured = capture(ModelReference.named("tests.support.models.small:perceptron"))
    with ClusterSession(captured, workers=2, device="cuda") as session:
        outcome = session.measure(in_a_row(captured.graph, 0, 1), minibatches=4)
        profile, cluster = session.profile(repeats=2)
    assert isinstance(outcome, Measurement), outcome
    # Of a process with a CUDA context more than that is resident. Half are workspaces of cuBLAS,
    # one for the thread of forwards and one for autograd's.
    assert all(0 < w.peak_memory_bytes < 150e6 for w in outcome.workers)
    assert all(w.busy_seconds > 0 for w in outcome.workers)
    assert profile.device == torch.cuda.get_device_name()
    assert set(cluster.devices) == {"cuda"}
    assert all(memory for memory in cluster.memory_bytes)


def test_nccl_starts_with_one_rank() -> None:
    accelerator = accelerator_of("cuda", 0)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    member = Member(store, 0, "127.0.0.1", accelerator.device, None, 60)
    group = member.group("alone", (0,), "nccl")
    value = torch.arange(4.0, device=accelerator.device)
    group.allreduce([value]).wait()
    assert value.tolist() == [0, 1, 2, 3]
    group.abort()
