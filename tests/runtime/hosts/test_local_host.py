"""How the server begins that workers are forked from."""

import subprocess
import sys
from multiprocessing import forkserver, util
from pathlib import Path

import pytest

from drlpp.errors import InvalidInput
from drlpp.runtime.hosts.fork_server import warm_up

_PROGRAM = """
import re, signal
from multiprocessing import forkserver
from pathlib import Path
from drlpp.runtime.hosts.local_host import warm_up

before = signal.getsignal(signal.SIGINT)
warm_up()
server = forkserver._forkserver._forkserver_pid
status = Path(f"/proc/{server}/status").read_text()
ignored = int(re.search(r"SigIgn:\\s*(\\w+)", status)[1], 16)
print(bool(ignored & 1 << signal.SIGINT - 1), signal.getsignal(signal.SIGINT) is before)
"""


@pytest.mark.system
def test_the_server_ignores_ctrl_c_from_its_beginning() -> None:
    """Also while it imports, which takes longer than reading this here."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_a_folder_with_too_long_a_name_for_sockets_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver, "ensure_running", forkserver.ForkServer().ensure_running)
    monkeypatch.setattr(util, "get_temp_dir", lambda: str(tmp_path / ("long" * 30)))
    with pytest.raises(InvalidInput, match="set TMPDIR to a shorter one"):
        warm_up()
