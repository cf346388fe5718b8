"""Every way to exchange tensors trains to the same weights; devices decide which one it is."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession, Minibatches, RunOptions, run_reference
from drlpp.runtime.comm.connections import Connections, Member
from drlpp.runtime.comm.transport import Links, Staging
from drlpp.runtime.device.devices import DEVICE_KINDS, DeviceFacts
from drlpp.runtime.ipc.protocol import GroupSpec, Transport, transport_of
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.in_turns import in_turns
from tests.support.models.forked import SHAPES, largest_difference, order, placements, samples
from tests.support.strategies.graphs import pipelines
from tests.support.training.pipelines import in_a_row

MINIBATCHES = 8
PROCESSOR = DeviceFacts()
SPEC = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9})
DIRECTED, STAGED = Transport(directed=True), Transport(staged=True)
NCCL = Transport("nccl", directed=True)


def gpu(number: int) -> DeviceFacts:
    return DeviceFacts("cuda", "Some GPU", f"uuid-{number}", 2**34)


def intel(number: int) -> DeviceFacts:
    return replace(gpu(number), type="xpu")


@pytest.mark.parametrize(
    ("found", "transport"),
    [
        ([PROCESSOR] * 4, Transport()),
        ([gpu(2), gpu(0), gpu(1)], NCCL),
        ([gpu(0), gpu(1), gpu(0)], STAGED),
        ([gpu(0), PROCESSOR], STAGED),
        # Alone there is nobody to talk to.
        ([gpu(0)], STAGED),
        ([intel(0), intel(1)], Transport("xccl", directed=True)),
        ([intel(0), gpu(1)], STAGED),
        ([replace(intel(0), has_backend=False), replace(intel(1), has_backend=False)], STAGED),
        ([DeviceFacts("mps", "GPU", "one"), DeviceFacts("mps", "GPU", "another")], STAGED),
    ],
)
def test_nccl_where_every_worker_has_a_gpu_of_its_own(
    found: list[DeviceFacts], transport: Transport
) -> None:
    assert transport_of(found) == transport


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4, device="cpu") as session:
        session.use_samples(*samples())
        yield session


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Transport], None]:
    """Let sessions use a transport that no CPU worker would choose."""

    def use(transport: Transport) -> None:
        monkeypatch.setattr(
            "drlpp.runtime.session.worker_group.transport_of", lambda devices: transport
        )

    return use


METHODS = {
    "pipeoptim": Method(policy="pipeoptim"),
    "stash-deeper": Method(policy="stash", in_flight_per_link=1),
    "clipped": Method(
        schedule="1f1b-flush", policy="sync", microbatches=4, clip_norm=0.5, recompute=True
    ),
}


@pytest.mark.parametrize(
    ("transport", "shape", "method"),
    [
        *in_turns([DIRECTED, STAGED], SHAPES[1:], ["pipeoptim"]),
        (DIRECTED, "straight", "stash-deeper"),
        (STAGED, "replicated", "clipped"),
    ],
    ids=str,
)
def test_weights_equal_the_reference(
    captured: CapturedModel,
    session: ClusterSession,
    use: Callable[[Transport], None],
    transport: Transport,
    shape: str,
    method: str,
) -> None:
    use(transport)
    placement = placements(captured)[shape]
    options = RunOptions(order=order(MINIBATCHES))
    reference = run_reference(
        captured,
        placement,
        Minibatches(*samples()),
        MINIBATCHES,
        method=METHODS[method],
        optimizer=SPEC,
        options=options,
    )
    deployment = session.deploy(placement, METHODS[method], SPEC)
    session.run(deployment, MINIBATCHES, options)
    session.evaluate(deployment, 3, RunOptions(order=order(3)))
    state, _ = session.collect(deployment)
    assert largest_difference(state, reference.state) < 1e-9


def test_links_are_timed_and_profiled_as_they_are_used(
    use: Callable[[Transport], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(DIRECTED)
    # Of runs there is the one that is measured.
    monkeypatch.setattr("drlpp.runtime.session.profiling.run_short", lambda *_: {})
    captured = capture(ModelReference.named("tests.support.models.small:perceptron"))
    placement = in_a_row(captured.graph, 0, 0, 1)
    with ClusterSession(captured, 3, device="cpu") as session:
        outcome = session.measure(placement, minibatches=4)
        assert isinstance(outcome, Measurement), outcome
        routes = {(link.sender, link.receiver) for link in outcome.links}
        assert routes == {(0, 2), (1, 2), (2, 0), (2, 1), (0, 1), (1, 0)}
        profile, cluster = session.profile(repeats=1)
    assert profile.device == "cpu"
    assert cluster.accelerators == 3


def test_without_tags_tensors_go_in_order_and_complex_ones_in_halves() -> None:
    """As a group of NCCL needs it."""
    given: list[tuple[int, ...]] = []
    there: Any = SimpleNamespace(send=lambda tensors, rank, tag: given.append((*tensors[0].shape,)))
    nothing: Any = None
    links = Links(3, nothing, (), torch.device("cpu"))
    links.directed[3, 5] = there
    links.send([torch.ones(1), torch.ones(2, dtype=torch.complex64)], 5)
    links.send([torch.ones(4)], 5)
    assert given == [(1,), (2, 2), (4,)]


@pytest.mark.parametrize("kind", ["cpu", "mps"])
def test_sums_go_through_copies_where_gloo_cannot_read_the_device(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The processor stands for a GPU of that kind."""
    monkeypatch.setitem(DEVICE_KINDS, "cpu", DEVICE_KINDS[kind])
    store = torch.distributed.HashStore()

    def trained(worker: int) -> tuple[list[float], bool, list[float]]:
        member = Member(store, worker, "127.0.0.1", torch.device("cpu"), None, 20)
        group = GroupSpec("sums", (0, 1), Transport(), replicas=(0, 1))
        connections = Connections.build(member, group)
        tensor, buffer = torch.full((2,), worker + 1.0), torch.full((2,), 5.0 + worker)
        before = tensor.clone()
        work = connections.start_sum(tensor)
        staged = kind != "cpu" and torch.equal(tensor, before)
        work.wait()
        connections.share_buffers([buffer])
        connections.close()
        return tensor.tolist(), staged, buffer.tolist()

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(trained, range(2)))
    assert found == [([3.0, 3.0], kind != "cpu", [5.0, 5.0])] * 2


class Recorder(Member):
    """Builds groups that note what they are told, and have it done at once."""

    log: ClassVar[list[tuple[int, str]]] = []

    def group(self, name: str, workers: Sequence[int], backend: str) -> Any:
        assert self.worker in workers

        def note(tensors: Sequence[torch.Tensor], *_: object) -> Any:
            self.log.append((self.worker, name))
            tensors[0].fill_(1)
            return SimpleNamespace(wait=lambda: None)

        return SimpleNamespace(send=note, recv=note, allreduce=note)


@given(pipelines())
def test_groups_are_connected_in_an_order_that_all_workers_share(pipeline: Pipeline) -> None:
    """So that no two workers wait for each other, in whatever time they take."""
    Recorder.log.clear()
    nothing: Any = None
    for worker in pipeline.workers:
        member = Recorder(nothing, worker, "", torch.device("cpu"), None, 1.0)
        replicas = pipeline.stages[pipeline.stage_of(worker)]
        group = GroupSpec("d", pipeline.workers, NCCL, pipeline.routes, replicas)
        Connections.build(member, group)
    log = Recorder.log
    orders = {w: [name for worker, name in log if worker == w] for w in pipeline.workers}
    # Whoever is first in everybody's list can be done; in the end all are.
    while any(orders.values()):
        firsts = {names[0] for names in orders.values() if names}
        ready = [
            name
            for name in firsts
            if all(names[0] == name for names in orders.values() if name in names)
        ]
        assert ready, orders
        for names in orders.values():
            if names and names[0] in ready:
                names.pop(0)
    expected = {f"d/{sender}-to-{receiver}" for sender, receiver in pipeline.routes}
    assert {name for _, name in log if "-to-" in name} == expected


def test_staging_copies() -> None:
    staging = Staging(torch.device("cpu"))
    value = torch.arange(6.0).view(2, 3)
    (host,) = staging.to_host([value.t()])
    torch.testing.assert_close(host, value.t())
    value += 1
    assert host[0, 0] == 0, "what is sent must not change when the device goes on"
    (there,) = staging.to_device([host])
    host += 1
    assert there[0, 0] == 0
    assert there.device == value.device
