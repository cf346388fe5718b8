"""How the server begins that workers are forked from."""

import subprocess
import sys

_PROGRAM = """
import re, signal
from multiprocessing import forkserver
from pathlib import Path
from drlpp.runtime.local_host import warm_up

before = signal.getsignal(signal.SIGINT)
warm_up()
server = forkserver._forkserver._forkserver_pid
status = Path(f"/proc/{server}/status").read_text()
ignored = int(re.search(r"SigIgn:\\s*(\\w+)", status)[1], 16)
print(bool(ignored & 1 << signal.SIGINT - 1), signal.getsignal(signal.SIGINT) is before)
"""


def test_the_server_ignores_ctrl_c_from_its_beginning() -> None:
    """Also while it imports, which takes longer than reading this here."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["True", "True"], done.stderr
