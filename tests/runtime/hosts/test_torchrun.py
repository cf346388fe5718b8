"""Programs as torchrun starts them: processes of their own, and all of the way."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system


def _environment() -> dict[str, str]:
    path = os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(Path.cwd())])
    return {**os.environ, "DRLPP_TOKEN": "0123456789abcdef", "PYTHONPATH": path}


def test_torchrun_starts_a_session(tmp_path: Path) -> None:
    """The whole of it: every process runs this program, the first one prints what it measured."""
    program = tmp_path / "program.py"
    program.write_text(
        "from drlpp.cli.command_line import run_program\n"
        "def measure():\n"
        "    import torch\n"
        "    from drlpp.runtime import ClusterSession, RunOptions\n"
        "    from drlpp.placement.placement import Placement\n"
        "    with ClusterSession('tests.support.models.small:forked') as session:\n"
        "        operators = len(session.graph)\n"
        "        stages = [min(3 * i // operators, 2) for i in range(operators)]\n"
        "        placement = Placement.from_assignment(stages, (0, 1, 2))\n"
        "        print(session.accelerators, type(session.measure(placement, 4)).__name__)\n"
        "        order = torch.zeros(4, 8, dtype=torch.long)\n"
        "        session.run(session.deploy(placement), 4, RunOptions(order=order))\n"
        "run_program(measure, 'program.py')\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    result = subprocess.run(
        [*command, "--nproc-per-node", "3", str(program)],
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["3", "Measurement"]
    assert f"program.py: runs on {socket.gethostname()}, in {Path.cwd()}" in result.stderr


def test_other_processes_of_torchrun_end_with_the_first(tmp_path: Path) -> None:
    """Also where it had no session, or has failed."""
    program = tmp_path / "program.py"
    program.write_text(
        "from drlpp.cli.command_line import run_program\n"
        "from drlpp.errors import InvalidInput\n"
        "from drlpp.runtime import TimeLimits, init_multihost\n"
        "init_multihost(TimeLimits(restart_seconds=2))\n"
        "def program():\n"
        "    import sys\n"
        "    if len(sys.argv) > 1:\n"
        "        raise InvalidInput('no such thing')\n"
        "run_program(program, 'program.py')\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    for arguments in ([], ["fail"]):
        result = subprocess.run(
            [*command, "--nproc-per-node", "2", str(program), *arguments],
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (result.returncode == 0) == (not arguments), result.stderr
        assert ("program.py: error: no such thing" in result.stderr) == bool(arguments)


def test_a_program_that_torchrun_starts_anew_has_its_workers_again(tmp_path: Path) -> None:
    """Two launchers, as on two hosts, so that the failure of one has to reach the other."""
    program = tmp_path / "program.py"
    program.write_text(
        "from drlpp.cli.command_line import run_program\n"
        "from drlpp.errors import RunFailure\n"
        "def program():\n"
        "    from drlpp.runtime import ClusterSession, restarted\n"
        "    from drlpp.placement.placement import Placement\n"
        "    with ClusterSession('tests.support.models.small:perceptron') as session:\n"
        "        if not restarted():\n"
        "            raise RunFailure('the first attempt fails')\n"
        "        placement = Placement.from_assignment([0] * len(session.graph), (0, 0))\n"
        "        print(type(session.measure(placement, 4)).__name__)\n"
        "run_program(program, 'program.py')\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    command += ["--nproc-per-node", "1", "--max-restarts", "1", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", endpoint, "--local-addr", "127.0.0.1", str(program)]
    launchers = [
        subprocess.Popen(
            command,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        outputs = [launcher.communicate(timeout=110) for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.kill()
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert "".join(stdout for stdout, _ in outputs).split() == ["Measurement"]
    assert any("the first attempt fails" in stderr for _, stderr in outputs)
