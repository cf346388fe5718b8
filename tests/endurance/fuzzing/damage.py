"""Damaged, made-up and hostile bytes, for whatever reads files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st


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


_FRAGMENTS = (
    b"",
    b"{",
    b"[" * 3000,
    b'{"a":' * 3000,
    b"-1",
    b"1e999",
    b"NaN",
    b"9" * 5000,
    b"null",
    b"true",
    b'""',
    b"\x00",
    b"\xff\xfe",
    b"\n",
    b"\t",
    b" -- ",
    b"&a [*a]",
    b": *b\n",
    b"!!python/object/apply:os.system ['touch trapped']",
    b"*a",
    b"? ",
    b"0",
    b"1" + b"0" * 30,
    "Ω".encode(),
    struct.pack("<Q", 2**63 - 1),
    struct.pack("<Q", 2**31),
)
_BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in range(ord("b"), ord("j"))
)
HOSTILE = (
    b'{"maxFPGAs": 99999999999, "maxSizePerFPGA": 1, "edges": [], "nodes": [{"id": 0, '
    b'"fpgaLatency": 1, "supportedOnFpga": true, "isBackwardNode": false}]}',
    b"",
    _BOMB,
    b"kind: cluster\nversion: 1\n" + _BOMB,
    b"{" * 5_000,
    b'{"kind":' * 20_000,
    b"- " * 50_000 + b"\n",
    b"[" * 5_000 + b"\n",
    struct.pack("<Q", 2**40) + b"{}",
    struct.pack("<Q", 2) + b"{}",
    b"\x80\x04cos\nsystem\n(S'touch trapped'\ntR.",
    *hostile_tensors(),
)


_NUMBERS = (b"-1", b"0", b"99999999999", b"1e308", b"9")


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """Return a valid file with some damage, or sometimes bytes that never were a file."""
    if draw(st.integers(0, 15)) == 0:
        return draw(st.binary(max_size=200) | st.sampled_from(HOSTILE))
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 5))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.integers(0, 30)))
        digits = [index for index, byte in enumerate(data) if chr(byte).isdigit()]
        match draw(st.integers(0, 5)):
            case 0 if data:
                data[begin % len(data)] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del data[begin:]
            case 2:
                data[begin:end] = draw(st.sampled_from(_FRAGMENTS))
            case 3:
                data[begin:begin] = data[draw(st.integers(0, len(data))) :][:100]
            case 4 if digits:
                index = draw(st.sampled_from(digits))
                data[index : index + 1] = draw(st.sampled_from(_NUMBERS))
            case _:
                del data[begin:end]
    return bytes(data)
