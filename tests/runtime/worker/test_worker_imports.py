"""A worker is one of many processes on a host: it imports what it needs and nothing else."""

import json
import subprocess
import sys

WORKER = "drlpp.runtime.worker.worker_process"
DENIED = (
    "matplotlib",
    "rich",
    "typer",
    "scipy",
    "gymnasium",
    "stable_baselines3",
    "torch_geometric",
    "ray",
    "drlpp.planners",
    "drlpp.simulator",
    "drlpp.cli",
    "drlpp.models",
    "drlpp.capturing.capture",
    "drlpp.runtime.session",
)


def modules_after(statement: str) -> set[str]:
    """Names of all modules in a fresh process."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_a_worker_imports_little_and_the_package_itself_nothing() -> None:
    first = "import drlpp, drlpp.runtime, sys\nassert 'torch' not in sys.modules\n"
    modules = modules_after(f"{first}import {WORKER}")
    assert WORKER in modules
    assert not {
        name for name in modules for denied in DENIED if f"{name}.".startswith(f"{denied}.")
    }


def test_a_session_on_one_machine_imports_no_ray() -> None:
    modules = modules_after(
        "import drlpp.runtime.training.training, drlpp.runtime.session.session, drlpp.cli.main\n"
        "from drlpp.runtime.hosts.session_hosts import default_num_workers, hosts_for\n"
        "assert default_num_workers() == 4"
    )
    assert "drlpp.runtime.hosts.local_host" in modules
    assert not {name for name in modules if name.partition(".")[0] == "ray"}
