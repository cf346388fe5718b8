"""Files of safetensors that lie: about lengths, places, types, names and containers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any


def hostile_tensors() -> Iterator[bytes]:
    """Yield files; those that may be read at all hold one float and no more."""
    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    data = b"\x00" * 4
    yield struct.pack("<Q", 100_000_001) + b"{}"
    yield struct.pack("<Q", 2**63) + b"{}"
    for lie in (
        {"data_offsets": [4, 8]},
        {"data_offsets": [4, 0]},
        {"data_offsets": [0, 400], "shape": [100]},
        {"dtype": "F64"},
        {"dtype": "I32"},
        {"dtype": "BOOL", "shape": [4]},
        {"dtype": "F4", "shape": [8]},
        {"dtype": "F8_E4M3", "shape": [4]},
        {"shape": [2**32, 2**32]},
        {"shape": [0, 2**62], "data_offsets": [0, 0]},
        {"shape": [1] * 5000},
        {"shape": [-1]},
    ):
        yield _file({"0": one | lie}, data)
        yield _file({"weight": one | lie, "bias": one | lie}, data)
    for name in ("../../trapped", "/trapped", "..", "", "\x1b[31m", "x" * 10**6):
        yield _file({name: one}, data, {"tensor": name})
        yield _file({"0": one}, data, {"dict": [[name, {"tensor": "0"}]]})
    yield _file({"0": one, "1": one}, data)
    twice = json.dumps({"0": one})[1:-1]
    yield _framed(b"{%s,%s}" % (twice.encode(), twice.encode()), data)
    for structure in (
        "[" * 100_000,
        '{"list":[' * 40 + "]}" * 40,
        '{"complex":' * 500 + '{"tensor":"0"}' + "}" * 500,
        '{"tensor":["0"]}',
        '{"tensor":"0","order":[-1]}',
        '{"tensor":"0","order":["0"]}',
        '{"complex":{"tensor":"0"}}',
        '{"dict":[["a",1,2]]}',
        '{"dict":[[{"list":[]},1]]}',
        '{"dict":[[{"tensor":"0"},1]]}',
        "9" * 5000,
        "Infinity",
    ):
        yield _file({"0": one}, data, structure)


def _file(tensors: Mapping[str, object], data: bytes, structure: Any = '{"tensor":"0"}') -> bytes:
    text = structure if isinstance(structure, str) else json.dumps(structure)
    metadata = {"format": "drlpp tree 1", "structure": text}
    return _framed(json.dumps({"__metadata__": metadata, **tensors}).encode(), data)


def _framed(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data
