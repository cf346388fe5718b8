"""Public profiles with known optima, which lie beside the repository where there are any."""

from __future__ import annotations

from pathlib import Path

import pytest

_DATA = Path(__file__).parents[3] / "shared" / "data"
PROFILES = _DATA / "pipedream-profiles"
INSTANCES = _DATA / "dnn-partitioning"

with_public_data = pytest.mark.skipif(not _DATA.exists(), reason=f"{_DATA} is not there")
