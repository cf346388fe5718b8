"""Workers that expect other messages than they get say so before the first minibatch."""

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.capturing.graph import TensorSpec
from drlpp.errors import RunFailure
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.runtime.comm.agreement import contents_of
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.ipc.protocol import Deploy, Run
from drlpp.runtime.session import session as session
from drlpp.runtime.stage.stages import StageProgram
from drlpp.schedule.actions import Message, Receive
from tests.support.models.forked import order, placements, samples

Specs = tuple[tuple[int, TensorSpec], ...]


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))


@pytest.fixture(scope="module")
def workers(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4, device="cpu") as workers:
        workers.use_samples(*samples())
        yield workers


@pytest.fixture
def straight(captured: CapturedModel) -> Placement:
    return placements(captured)["straight"]


def with_dtype(specs: Specs) -> Specs:
    return tuple((index, spec.model_copy(update={"dtype": "float32"})) for index, spec in specs)


def with_shape(specs: Specs) -> Specs:
    """Shorter, which Gloo would not notice."""
    return tuple(
        (index, spec.model_copy(update={"shape": (spec.shape[0] - 1, *spec.shape[1:])}))
        for index, spec in specs
    )


@pytest.mark.parametrize("change", [with_dtype, with_shape, lambda specs: specs[:-1]])
def test_shapes_types_and_numbers_of_tensors(
    workers: ClusterSession,
    straight: Placement,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Specs], Specs],
) -> None:
    build = session.deployment_commands

    def tampered(*args: Any, **options: Any) -> dict[int, Deploy]:
        """What worker 2 gets from worker 1 changes on one side."""
        commands = build(*args, **options)
        (program,) = pickle.loads(commands[2].stages)
        receives = {**program.receives, 1: change(program.receives[1])}
        stages = pickle.dumps([replace(program, receives=receives)])
        return {**commands, 2: replace(commands[2], stages=stages)}

    monkeypatch.setattr(session, "deployment_commands", tampered)
    _fails(workers, straight)


def swapped(actions: list[Any]) -> list[Any]:
    """The first two messages from worker 1 in the other order."""
    first, second, *_ = [
        i for i, a in enumerate(actions) if isinstance(a, Receive) and a.sender == 1
    ]
    actions[first], actions[second] = actions[second], actions[first]
    return actions


@pytest.mark.parametrize("change", [swapped, lambda actions: actions[:-1]])
def test_number_and_order_of_messages(
    workers: ClusterSession,
    straight: Placement,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[list[Any]], list[Any]],
) -> None:
    build = session.run_commands

    def tampered(*args: Any, **options: Any) -> Iterator[Mapping[int, Run]]:
        for commands in build(*args, **options):
            actions = [a for a in commands[2].actions if isinstance(a, Receive) and a.sender == 1]
            kept = iter(change(list(actions)))
            changed = [next(kept, None) if a in actions else a for a in commands[2].actions]
            yield {**commands, 2: replace(commands[2], actions=tuple(filter(None, changed)))}

    monkeypatch.setattr(session, "run_commands", tampered)
    _fails(workers, straight)


def _fails(workers: ClusterSession, placement: Placement) -> None:
    deployment = workers.deploy(placement)
    with pytest.raises(
        RunFailure, match=r"^worker 2 expects other messages from worker 1 than that"
    ):
        workers.run(deployment, 6, RunOptions(order=order(6)))


def test_both_ends_name_the_same_contents(captured: CapturedModel) -> None:
    """For every edge of a branching placement, activations and gradients."""
    placement = placements(captured)["branching"]
    programs: tuple[StageProgram, ...] = cut_stages(captured, placement)
    edges = [(program.stage, target) for program in programs for target in program.sends]
    assert len(edges) > 4
    for source, target in edges:
        there = Message("activation", source, target, 0, 0)
        back = Message("gradient", target, source, 0, 0)
        for message in (there, back):
            assert contents_of([programs[source]], message) == contents_of(
                [programs[target]], message
            )
        assert contents_of([programs[source]], there) == [
            spec for _, spec in programs[source].sends[target]
        ]
        assert all(spec.differentiable for spec in contents_of([programs[source]], back))
