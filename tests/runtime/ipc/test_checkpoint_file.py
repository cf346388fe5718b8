"""Trees of tensors come back as they were; a session is reached from this machine alone."""

import os
import pickle
import secrets
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drlpp.capturing.capture import capture
from drlpp.errors import InvalidFile, InvalidInput
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession, TimeLimits
from drlpp.runtime.ipc.channel import join_store, open_store
from drlpp.runtime.ipc.tensor_file import read_checkpoint, write_checkpoint, write_tree
from drlpp.runtime.ipc.time_limits import time_limits_of
from tests.endurance.faults.strangers import listening_ports
from tests.support.training.pipelines import in_a_row

PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text()
)
KEYS = st.recursive(PLAIN, lambda inner: st.tuples(inner, inner), max_leaves=4)
DTYPES = st.sampled_from(
    [
        *(torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.int64, torch.bool),
    ]
)
TENSORS = st.builds(
    lambda shape, dtype: torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=4),
    DTYPES,
)
TREES = st.recursive(
    st.one_of(PLAIN, TENSORS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Equal in values, types and layout."""
    if isinstance(one, Tensor):
        return (
            one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@settings(max_examples=15)
@given(tree=TREES)
def test_a_tree_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, tree: object
) -> None:
    path = tmp_path_factory.mktemp("trees") / "tree.pt"
    write_checkpoint(path, tree)
    assert same(read_checkpoint(path), tree)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_layout_of_a_tensor_belongs_to_it(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    spectrum = torch.randn(3, 2, dtype=torch.complex128).mH
    tree = [images, torch.randn(4, 6).T, torch.randn(3).expand(2, 3), spectrum]
    write_tree(tmp_path / "tree", tree)
    channels_last, transposed, expanded, conjugate = read_checkpoint(tmp_path / "tree")
    assert same(channels_last, images)
    assert same(transposed, tree[1])
    assert torch.equal(expanded, tree[2])
    assert same(conjugate, spectrum)


def test_what_stands_in_several_places_is_written_once(tmp_path: Path) -> None:
    weight = torch.randn(1000, 100)
    # Halves of one memory, as gradients in a bucket are, and the whole of it.
    tree = {"weight": weight, "tied": weight, "halves": list(weight.split(500)), "all": weight[:]}
    write_tree(tmp_path / "tree", tree)
    found = read_checkpoint(tmp_path / "tree")
    assert found["tied"].data_ptr() == found["weight"].data_ptr()
    assert all(torch.equal(*pair) for pair in zip(found["halves"], tree["halves"], strict=True))
    assert 2 * weight.nbytes < (tmp_path / "tree").stat().st_size < 2 * weight.nbytes + 4000


def test_tensors_have_storages_of_their_own_and_writing_changes_no_file(tmp_path: Path) -> None:
    write_tree(tmp_path / "tree", [torch.ones(5), torch.zeros(3)])
    ones, zeros = read_checkpoint(tmp_path / "tree")
    assert all(value.data_ptr() % 64 == 0 for value in (ones, zeros)), "as in memory"
    assert ones.untyped_storage().data_ptr() != zeros.untyped_storage().data_ptr()
    assert ones.untyped_storage().nbytes() == ones.nbytes
    ones.zero_()
    assert torch.equal(read_checkpoint(tmp_path / "tree")[0], torch.ones(5))


def test_what_no_checkpoint_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot hold a set"):
        write_checkpoint(tmp_path / "tree", [{1, 2}])
    assert not list(tmp_path.iterdir())


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path("trapped").touch, ())


def test_other_files_are_told_and_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "checkpoint.pt"
    torch.save(_Trap(), tmp_path / "trap.pt")
    trap = (tmp_path / "trap.pt").read_bytes()
    for content in (b"", b"\x00" * 7, pickle.dumps(_Trap()), trap, trap[:-30]):
        path.write_bytes(content)
        with pytest.raises(InvalidFile, match="not a checkpoint, or a damaged one"):
            read_checkpoint(path)
    assert not (tmp_path / "trapped").exists()
    with pytest.raises(InvalidFile, match="no such file"):
        read_checkpoint(tmp_path / "nothing")


def test_a_session_listens_on_this_machine_alone_and_tells_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = []
    draw = secrets.token_hex

    def noted(bytes_: int) -> str:
        tokens.append(draw(bytes_))
        return tokens[-1]

    monkeypatch.setattr(secrets, "token_hex", noted)
    captured = capture(ModelReference.named("tests.support.models.small:perceptron"))
    # Tests before this one may have left what listens.
    before = listening_ports([os.getpid()])
    with ClusterSession(captured, workers=2) as session:
        session.measure(in_a_row(captured.graph, 0, 1), 4)
        of_workers = [listening_ports([process]) for process in session.process_ids]
        assert all(of_workers), "Gloo listens in every worker"
        new = listening_ports([os.getpid()]).items() - before.items()
        assert new, "the store listens in the controller"
        found = {address for _, address in new}.union(*(ports.values() for ports in of_workers))
        assert found <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        commands = [Path(f"/proc/{p}/cmdline").read_bytes() for p in session.process_ids]
        environments = [Path(f"/proc/{p}/environ").read_bytes() for p in session.process_ids]
    assert tokens
    told = b"".join(commands + environments)
    assert not [token for token in tokens if token.encode() in told]


def test_keys_are_a_sessions_own() -> None:
    _, at = open_store("127.0.0.1")
    one, other = join_store(at), join_store(replace(at, token="another"))
    one.set("key", "value")
    assert one.get("key") == b"value"
    assert not other.check(["key"])


@pytest.mark.parametrize("field", [one.name for one in fields(TimeLimits)])
def test_what_is_no_time_is_refused(field: str) -> None:
    refused: list[Any] = [0, -1.0, float("nan"), float("inf"), "5"]
    for seconds in [*refused, *([None] if field != "answer_seconds" else [])]:
        with pytest.raises(InvalidInput, match=rf"was given \({field}\)"):
            TimeLimits(**{field: seconds})


def test_a_session_has_its_own_limits_or_the_defaults() -> None:
    own = TimeLimits(gathering_seconds=7)
    assert time_limits_of() == TimeLimits()
    assert time_limits_of(own, 5) == replace(own, answer_seconds=5)
