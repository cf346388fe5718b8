"""A group of workers on a host that a test provides."""

from typing import Any

from drlpp.capturing import capture
from drlpp.runtime.session_hosts import Hosts
from drlpp.runtime.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.runtime.worker_group import WorkerGroup
from drlpp.task import ModelReference


def hosted(host: Any, limits: TimeLimits = DEFAULT_TIME_LIMITS) -> WorkerGroup:
    """The only worker of the group runs on ``host``; there it has been started, if it is to."""
    captured = capture(ModelReference.named("tests.models:perceptron"))
    hosts = Hosts((host,), ((host.name, (0,)),))
    return WorkerGroup(captured, [1.0], limits=limits, place=lambda *_: hosts)
