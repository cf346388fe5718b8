"""The page about clusters, followed to the letter on two emulated ones: from nothing."""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.emulated_cluster import EmulatedCluster
from benchmarks.emulated_cluster.names import MARK, end_processes
from tests.support.programs.emulated_clusters import FAST, names_left, needs_kernel, two_hosts

pytestmark = [needs_kernel, pytest.mark.slow, pytest.mark.timeout(1800)]

PAGE = Path("docs/clusters.md")


def documented(section: str) -> list[list[str]]:
    """The commands of a section's blocks, without comments."""
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [
        [line.partition("  #")[0].strip() for line in block.splitlines() if line.strip()]
        for block in blocks
    ]


def test_two_hosts_by_hand_learn_and_train(tmp_path: Path) -> None:
    """With the options that make it short, and as a user: in a shell on each host."""
    head, other, programs = documented("By hand")
    assert head[0].startswith("export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=")
    assert head[0] == other[0]
    token = secrets.token_hex(16)
    folder = Path("/tmp") / f"drlpp-{os.getpid()}-byhand"
    folder.mkdir()
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    # Whatever `ray` this machine has is not the one of this Python.
    ray = f'ray() {{ "{sys.executable}" -m ray.scripts.scripts "$@"; }}'
    with EmulatedCluster(two_hosts(FAST)) as emulated:
        environment = emulated.environment | environment
        places = emulated.places

        def shell(host: int, lines: list[str], **options: str) -> str:
            script = "\n".join([ray, "set -e", *lines])
            script = script.replace("RAY_AUTH_TOKEN=…", f"RAY_AUTH_TOKEN={token}")
            for name, value in options.items():
                assert name in script, lines
                script = script.replace(name, value)
            done = subprocess.run(
                [*places[host].prefix, "bash", "-c", script],
                env=environment,
                capture_output=True,
                text=True,
                timeout=1200,
                check=False,
            )
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
            return done.stdout

        start = " --num-cpus 2 --object-store-memory 100000000"
        first, second = emulated.addresses
        try:
            shell(0, [head[0], head[1] + start], ADDRESS=first)
            shell(1, [other[0], other[1] + start], HEAD=first, ADDRESS=second)
            learn, train = programs
            out = tmp_path / "alexnet"
            short = " --budget 2 --minibatches 4 --repetitions 1 --finalists 1 --rounds 1"
            printed = shell(0, [head[0], learn + short], **{"runs/alexnet": str(out)})
            assert "4 workers" in printed
            assert json.loads((out / "placement.json").read_text())["cluster"]["hosts"]
            short = " --epochs 1"
            shell(0, [head[0], train + short], **{"runs/alexnet": str(out)})
            assert (out / "training" / "model.pt").exists()
        finally:
            # All of it carries the cluster's mark: `ray stop` would end other people's too.
            end_processes(environment[MARK])
            shutil.rmtree(folder)
    assert names_left(os.getpid()) == []
