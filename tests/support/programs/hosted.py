"""A group of workers on a host that a test provides."""

from typing import Any

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime.hosts.session_hosts import Hosts
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.runtime.session.worker_group import WorkerGroup


def hosted(host: Any, limits: TimeLimits = DEFAULT_TIME_LIMITS) -> WorkerGroup:
    """The only worker of the group runs on ``host``; there it has been started, if it is to."""
    captured = capture(ModelReference.named("tests.support.models.small:perceptron"))
    hosts = Hosts((host,))
    return WorkerGroup(captured, [1.0], limits=limits, place=lambda *_: hosts)
