"""Public profiles with known optima (``tests/data/README.md``)."""

from __future__ import annotations

from pathlib import Path

_DATA = Path(__file__).parents[2] / "data"
PROFILES = _DATA / "pipedream-profiles"
INSTANCES = _DATA / "dnn-partitioning"

CONTIGUOUS_OPTIMA = {
    "bert24_training": 41.7458,
    "bert24_inference": 17.7899,
    "resnet50_training": 80.4549,
    "resnet50_inference": 34.2229,
    "bert_l-3_training": 65.3031,
    "bert_l-3_inference": 27.9186,
}
"""Milliseconds, by the name of the instance; without replication, on as many devices as it has."""
