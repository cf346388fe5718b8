"""Input that ``drlpp plan`` and ``cluster describe`` refuse, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.planning.command_inputs import CLUSTER, LINKS
from tests.support.programs.shell import Shell


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("between_hosts: {bandwidth_bytes_per_second: 1.25e9, latency_seconds: 5.0e-5}", ""),
         "the accelerators of 'fast-1' cannot be reached from 'fast-0'"),
        (("1.2e10", "0"), "field 'within_host.bandwidth_bytes_per_second'"),
        (("speed: 0.5", "speed: 0"), "field 'hosts.1.speed'"),
        (("name: slow,", "name: slow, rack: far,"),
         "of rack 'far' cannot be reached from hosts without a rack: several racks need"),
        (("name: slow,", "name: fast-1,"), "host 'fast-1' is a line of its own, and one of the"),
        (("name: slow,", 'name: "slow\\ner",'), r"'hosts.1.name': has the control character '\n'"),
        (("speed: 0.5", "speed: 0.5, speed: 1"), "field 'speed' is there twice"),
        (("device: cuda,", "device: tpu,"),
         "field 'hosts.0.device': Input should be 'cpu' or 'cuda', found 'tpu'"),
    ],
)  # fmt: skip
def test_clusters_that_cannot_be(
    shell: Shell, cluster: Path, change: tuple[str, str], message: str
) -> None:
    cluster.write_text(CLUSTER.replace(*change))
    code, _, err = shell("show", cluster)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name what to plan: a MODEL, or --profile FILE"),
        (["--profile", "none.json", *LINKS], "none.json: no such file"),
        (["--profile", "PROFILE"], "name the accelerators"),
        (["--profile", "PROFILE", "--workers", 2], "name the accelerators"),
        (["--profile", "PROFILE", *LINKS[:2], "--bandwidth", 0], "bandwidth is 0"),
        (["--profile", "PROFILE", *LINKS[:2], "--bandwidth", "nan"], "bandwidth is nan"),
        (["--profile", "PROFILE", *LINKS, "--speeds", "1,fast"], "separated by commas"),
        (["--profile", "PROFILE", *LINKS, "--speeds", "1"], "1 speeds given for 2 accelerators"),
        (["--profile", "PROFILE", *LINKS, "--speeds", "1,-1"], "must be a number above 0"),
        (["--profile", "PROFILE", *LINKS, "--cluster", "CLUSTER"], "leave out --workers"),
        (["--profile", "PROFILE", *LINKS, "--planner", "magic"], "planner 'magic' is unknown"),
        (["--profile", "PROFILE", *LINKS, "--vary", "width"], "'width' is unknown"),
        (["--profile", "PROFILE", "--workers", 10**12, "--bandwidth", 1], "field 'accelerators'"),
        (["--profile", "PROFILE", "--cluster", "auto"], "a plan needs a cluster.yaml"),
    ],
)
def test_bad_input_is_one_line(
    shell: Shell, profile: Path, cluster: Path, arguments: list[object], message: str
) -> None:
    files = {"PROFILE": profile, "CLUSTER": cluster}
    code, _, err = shell("plan", *(files.get(str(value), value) for value in arguments))
    assert code == 2
    assert err.startswith("drlpp: error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"forward_seconds": 2.0', '"forward_seconds": -2.0'), "forward_seconds"),
        (('"target": 1', '"target": 0'), "so that there is no cycle"),
        (('"name": "op1"', '"name": "op0"'), "two operators are named 'op0'"),
    ],
)
def test_profiles_that_cannot_be(
    shell: Shell, profile: Path, change: tuple[str, str], message: str
) -> None:
    text = profile.read_text()
    assert change[0] in text
    profile.write_text(text.replace(*change, 1))
    code, _, err = shell("plan", "--profile", profile, *LINKS)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
