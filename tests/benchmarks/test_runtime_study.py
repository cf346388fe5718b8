"""The study of the runtime's speed at its smallest: what is compared, and that it is equal."""

import pytest

from benchmarks.runtime import DEEPER, PIPEOPTIM, STUDY, VANILLA
from drlpp.torch_versions import older_than


@pytest.mark.system
def test_all_train_to_the_same_weights_and_are_timed() -> None:
    if older_than("2.13"):
        pytest.skip("the rival's stages and schedules take what torch has since 2.13")
    (case,) = STUDY.cases(None, short=True)
    found = STUDY.run(case)
    assert [way.name for way in found.ways] == [
        VANILLA,
        PIPEOPTIM,
        "1f1b stash",
        DEEPER,
        "gpipe, M = 2",
        "1f1b-flush, M = 2",
        "torch pipelining gpipe, M = 2",
        "torch pipelining 1f1b, M = 2",
        "torch data parallel",
    ]
    assert max(way.difference for way in found.ways) < 1e-5
    # Faster than its busiest worker computes no pipeline can be, but for where the window's edges
    # cut; and no worker has been asleep for nothing.
    assert all(0 < way.busiest_seconds[0] < 2 * way.seconds[0] for way in found.ways)
