"""Damaged, made-up and hostile bytes, for whatever reads files."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator, Mapping
from zipfile import ZipFile

import torch
from hypothesis import strategies as st


def hostile_tensors() -> Iterator[bytes]:
    """Yield torch's files with lies about a tensor, or with what would run code."""
    valid = io.BytesIO()
    torch.save({"0": torch.zeros(4)}, valid)
    with ZipFile(valid) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (pickled,) = (name for name in members if name.endswith("data.pkl"))
    code = members[pickled]
    # Numbers below 256: how many values the storage has, the offset, the shape and the strides.
    places = [place.start() for place in re.finditer(rb"K[\x00\x01\x04]", code)]
    for place in places:
        for number in (2**31 - 1, -1, 5):
            lie = b"J" + struct.pack("<i", number)
            yield _archive(members | {pickled: code[:place] + lie + code[place + 2 :]})
    yield _archive(
        members | {pickled: b"\x80\x02cos\nsystem\nX\x0d\x00\x00\x00touch trapped\x85R."}
    )
    yield _archive({name: data[:2] if "/data/" in name else data for name, data in members.items()})
    yield _archive({name: data for name, data in members.items() if "/data/" not in name})


def _archive(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


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
