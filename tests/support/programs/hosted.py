"""A group of workers on a host that a test provides."""

from typing import Any

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime.hosts.session_hosts import Hosts
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.runtime.session.worker_group import WorkerGroup
from drlpp.specs.device_choice import DeviceChoice


def hosted(
    host: Any,
    limits: TimeLimits = DEFAULT_TIME_LIMITS,
    device: DeviceChoice = DeviceChoice.CPU,
) -> WorkerGroup:
    """The workers of the group run on ``host``; there they have been started, if they are to."""
    captured = capture(ModelReference.named("tests.support.models.small:perceptron"))
    hosts = Hosts((host,))
    speeds = [1.0] * len(host.workers)
    return WorkerGroup(captured, speeds, device, limits, place=lambda *_: hosts)
