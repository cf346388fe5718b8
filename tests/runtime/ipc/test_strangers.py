"""Who can reach what a session listens to."""

import os

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from tests.endurance.faults.strangers import listening_ports


def test_nothing_of_a_session_listens_beyond_this_machine() -> None:
    """Its store, and what every worker has for the others."""
    captured = capture(ModelReference.named("tests.support.models.small:forked"))
    with ClusterSession(captured, 2) as session:
        session.measure(Placement.from_assignment([0] * len(captured.graph), (0, 0)), 4)
        own = listening_ports([os.getpid(), *session.process_ids])
    assert len(own) >= 1 + 2
    assert set(own.values()) == {"127.0.0.1"}, own
