"""Minibatches that are loaded while a run goes on reach workers of other hosts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.runtime.hosts import host_agent as host_agent_module
from drlpp.schedule.method import Method
from drlpp.specs.data import Samples
from tests.support.models.forked import order, placements, samples
from tests.support.programs.launched import launched
from tests.support.training.loading import same
from tests.support.training.placement_files import ADAM

MINIBATCHES = 60


def _minibatches() -> Iterator[Samples]:
    inputs, targets = samples()
    for indices in order(MINIBATCHES):
        yield Samples(tuple(values[indices] for values in inputs), targets[indices])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("shape", ["straight", "replicated"])
def test_workers_of_several_hosts_get_the_same_minibatches(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers on the controller's host, two on another; a file for every minibatch."""
    monkeypatch.setattr("drlpp.runtime.session.worker_session.chunk_minibatches", lambda bytes_: 1)
    captured = capture(ModelReference.named("tests.support.models.small:forked"))
    written: list[Path] = []
    write = host_agent_module.write_file

    def noting(path: Path, chunks: Iterator[bytes]) -> None:
        write(path, chunks)
        written.append(path)

    monkeypatch.setattr(host_agent_module, "write_file", noting)
    with launched([0, 0, 1, 1]), ClusterSession(captured) as session:
        session.use_samples(*samples())
        found = []
        for options in (RunOptions(order=order(MINIBATCHES)), RunOptions(loaded=_minibatches())):
            deployment = session.deploy(placements(captured)[shape], Method(policy="stash"), ADAM)
            session.run(deployment, MINIBATCHES, options)
            found.append(session.collect(deployment)[0])
        assert same(*found)
        streamed = [path for path in written if "stream" in path.name]
        assert len(streamed) == MINIBATCHES
        # The other host has removed them before it answers the next request.
        session.collect(deployment)
        assert not any(path.exists() for path in streamed)
