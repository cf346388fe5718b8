"""Workers that expect other messages say so first; a broken connection is no fault of the model."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import compress
from operator import itemgetter
from typing import Any

import pytest
import torch
import torch.distributed as dist

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.capturing.graph import TensorSpec
from drlpp.errors import RunFailure, WorkerLost
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession
from drlpp.runtime.comm.connections import Member, broken_connection
from drlpp.runtime.comm.messages import verify_message_plan
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.ipc.protocol import Deploy
from drlpp.runtime.session import session as session
from drlpp.runtime.worker.worker_process import failed
from drlpp.schedule.actions import Receive
from drlpp.schedule.method import Method
from tests.support.models.forked import placements
from tests.support.training.pipelines import in_a_row

Specs = tuple[tuple[int, TensorSpec], ...]


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))


def with_dtype(specs: Specs) -> Specs:
    return tuple((index, spec.model_copy(update={"dtype": "float32"})) for index, spec in specs)


def with_shape(specs: Specs) -> Specs:
    """Shorter, which Gloo would not notice."""
    return tuple(
        (index, spec.model_copy(update={"shape": (spec.shape[0] - 1, *spec.shape[1:])}))
        for index, spec in specs
    )


unchanged, but_the_last = itemgetter(slice(None)), itemgetter(slice(-1))


@pytest.mark.parametrize(
    ("specs", "messages"),
    [
        (unchanged, unchanged),
        (with_dtype, unchanged),
        (with_shape, unchanged),
        (but_the_last, unchanged),
        (unchanged, lambda messages: [messages[1], messages[0], *messages[2:]]),
        (unchanged, but_the_last),
    ],
)
def test_what_one_expects_of_another_is_what_that_sends(
    captured: CapturedModel, specs: Any, messages: Any
) -> None:
    """What worker 2 gets from worker 1 changes on one side."""
    straight = placements(captured)["straight"]
    programs = list(cut_stages(captured, straight))
    second = programs[2]
    programs[2] = replace(second, receives={**second.receives, 1: specs(second.receives[1])})
    schedule = Method().schedule_for(straight.pipeline(captured.graph), 6)
    actions = dict(schedule.actions)
    is_from_1 = [isinstance(a, Receive) and a.sender == 1 for a in actions[2]]
    kept = iter(messages(list(compress(actions[2], is_from_1))))
    changed = [
        next(kept, None) if of_1 else a for a, of_1 in zip(actions[2], is_from_1, strict=True)
    ]
    actions[2] = tuple(filter(None, changed))
    store, workers = dist.HashStore(), (0, 1, 2, 3)

    def verify(worker: int) -> str:
        member = Member(store, worker, "127.0.0.1", torch.device("cpu"), None, 20)
        group = member.group("all", workers, "gloo")
        try:
            verify_message_plan(group, workers, worker, [programs[worker]], actions[worker])
        except RunFailure as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as pool:
        told = [*pool.map(verify, workers)]
    if specs is messages is unchanged:
        assert told == [""] * 4
    else:
        assert all(one.startswith(EXPECTS) for one in told)


EXPECTS = "worker 2 expects other messages from worker 1 than that"


def test_workers_ask_before_the_first_minibatch(
    captured: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = session.deployment_commands

    def tampered(*args: Any, **options: Any) -> dict[int, Deploy]:
        commands = build(*args, **options)
        (program,) = pickle.loads(commands[1].stages)
        receives = {0: with_shape(program.receives[0])}
        stages = pickle.dumps([replace(program, receives=receives)])
        return {**commands, 1: replace(commands[1], stages=stages)}

    monkeypatch.setattr(session, "deployment_commands", tampered)
    with ClusterSession(captured, workers=2, device="cpu") as workers:
        deployment = workers.deploy(in_a_row(captured.graph, 0, 1))
        with pytest.raises(RunFailure, match=r"^worker 1 expects other messages from"):
            workers.run(deployment, 6)


def _groups(timeout_seconds: float) -> list[dist.ProcessGroup]:
    """Two that are connected with each other."""
    store = dist.HashStore()
    found: dict[int, dist.ProcessGroup] = {}

    def build(worker: int) -> None:
        member = Member(store, worker, "127.0.0.1", torch.device("cpu"), None, timeout_seconds)
        found[worker] = member.group("all", (0, 1), "gloo")

    threads = [threading.Thread(target=build, args=(worker,)) for worker in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[0], found[1]]


@pytest.mark.parametrize("way", ["closed", "silent"])
def test_what_gloo_says_is_a_lost_connection(way: str) -> None:
    here, there = _groups(60 if way == "closed" else 0.5)
    waiting = here.recv([torch.zeros(4)], 1, 0)
    if way == "closed":
        del there
    with pytest.raises(RuntimeError) as caught:
        waiting.wait()
    assert (broken := broken_connection(caught.value)) is not None
    assert "This is typically" not in broken
    raised = failed(3, caught.value)
    assert isinstance(raised, WorkerLost)
    assert str(raised) == f"worker 3 lost its connection to another ({broken})"


def test_other_errors_are_others() -> None:
    assert broken_connection(RuntimeError("size mismatch")) is None
