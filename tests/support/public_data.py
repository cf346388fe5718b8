"""Public profiles with known optima, which lie beside the repository where there are any."""

from __future__ import annotations

from pathlib import Path

import pytest

_DATA = Path(__file__).parents[3] / "shared" / "data"
PROFILES = _DATA / "pipedream-profiles"
INSTANCES = _DATA / "dnn-partitioning"

with_public_data = pytest.mark.skipif(not _DATA.exists(), reason=f"{_DATA} is not there")

CONTIGUOUS_OPTIMA = {
    "bert24_training": 41.7458,
    "bert24_inference": 17.7899,
    "resnet50_training": 80.4549,
    "resnet50_inference": 34.2229,
    "bert_l-3_training": 65.3031,
    "bert_l-3_inference": 27.9186,
}
"""Milliseconds, by the name of the instance; without replication, on as many devices as it has."""
