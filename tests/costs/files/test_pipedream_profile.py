"""PipeDream's profile files: what is read, what is left out, and every way to be malformed."""

from __future__ import annotations

from pathlib import Path

import pytest

from drlpp.costs.files.pipedream_profile import read_pipedream_profile
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidFile
from drlpp.io.documents import read_document, write_document


def line(name: str, description: str = "ReLU", **fields: str) -> str:
    values = {
        "forward_compute_time": "1.000",
        "backward_compute_time": "2.000",
        "activation_size": "8.0",
        "parameter_size": "0.000",
        **fields,
    }
    return f"{name} -- {description} -- " + ", ".join(f"{k}={v}" for k, v in values.items())


def read(folder: Path, *lines: str) -> Profile:
    path = folder / "graph.txt"
    path.write_text("\n".join(lines))
    return read_pipedream_profile(path)


def test_what_a_file_says(tmp_path: Path) -> None:
    profile = read(
        tmp_path,
        line("node10", "Linear(2, 3)", parameter_size="24.000"),
        line("node1", "Input0", forward_compute_time="99"),
        line("node2", "LSTM(2, 2)", activation_size="[6.0; 1.0; 1.0]") + " -- stage_id=3",
        line("node3", "__getitem__(0)", activation_size="6.0"),
        line("node4", "__getitem__(1)"),
        line("node9", "Dropout(p=0.2)", backward_compute_time="0.5"),
        "\tnode1 -- node2",
        "\tnode2 -- node3",
        "\tnode2 -- node4",
        "\tnode3 -- node10",
        "\tnode2 -- node9",
        "\tnode9 -- node10",
    )
    assert [operator.name for operator in profile.graph.operators] == [
        "LSTM(2, 2) node2",
        "__getitem__(0) node3",
        "Dropout(p=0.2) node9",
        "Linear(2, 3) node10",
    ]
    assert profile.graph.model == "graph"
    assert [(edge.source, edge.target) for edge in profile.graph.edges] == [
        (0, 1),
        (0, 2),
        (1, 3),
        (2, 3),
    ]
    assert profile.graph.outputs == ((3, 0),)
    assert [operator.output_bytes for operator in profile.graph.operators] == [8, 6, 8, 8]
    assert [cost.kept_bytes for cost in profile.operators] == [8, 6, 8, 8]
    assert [operator.parameter_bytes for operator in profile.graph.operators] == [0, 0, 0, 24]
    assert profile.seconds == pytest.approx([0.003, 0.003, 0.0015, 0.003])
    workload = Workload.of(profile)
    assert [t.backward_bytes for t in workload.transfers] == [
        t.bytes_ / 2 for t in workload.transfers
    ]
    assert read_document(write_document(tmp_path / "profile.json", profile), Profile) == profile


def test_an_operator_that_is_called_input_but_reads_stays(tmp_path: Path) -> None:
    profile = read(tmp_path, line("node1"), line("node2", "InputNorm(3)"), "\tnode1 -- node2")
    assert len(profile.graph) == 2


@pytest.mark.parametrize(
    ("lines", "number", "message"),
    [
        ([line("node1"), "node2 -- ReLU"], 2, "is no operator"),
        ([line("node1"), "node1 -- node2"], 2, "is no operator"),
        ([line("node1") + " -- stage=1"], 1, "is no operator"),
        ([line("node 1")], 1, "'node 1' is no name"),
        (["node1 -- ReLU -- forward_compute_time=1.0"], 1, "backward_compute_time is missing"),
        ([line("node1", speed="1.0")], 1, "unknown field 'speed=1.0'"),
        ([line("node1").replace("size=8.0", "size")], 1, "unknown field 'activation_size'"),
        ([line("node1") + ", parameter_size=1"], 1, "parameter_size is given twice"),
        ([line("node1", forward_compute_time="-1.0")], 1, "'-1.0', expected milliseconds"),
        ([line("node1", backward_compute_time="nan")], 1, "'nan', expected milliseconds"),
        ([line("node1", backward_compute_time="inf")], 1, "'inf', expected milliseconds"),
        ([line("node1", forward_compute_time="")], 1, "'', expected milliseconds"),
        ([line("node1", forward_compute_time="1ms")], 1, "'1ms', expected milliseconds"),
        ([line("node1", parameter_size="4KB")], 1, "'4KB', expected bytes"),
        ([line("node1", parameter_size="[4; 4]")], 1, r"'\[4; 4\]', expected bytes"),
        ([line("node1", activation_size="[4.0; -1.0]")], 1, "'-1.0', expected bytes"),
        ([line("node1", activation_size="[]")], 1, "'', expected bytes"),
        ([line("node1"), "", line("node1")], 3, "a second 'node1'"),
        ([line("node1"), "\tnode1 -- node2"], 2, "there is no node 'node2'"),
        ([line("node1"), "\tnode1"], 2, "is no edge"),
        ([line("node1"), "\tnode1 -- node1"], 2, "closes the cycle node1 -> node1"),
        (
            [line("node1"), line("node2"), "\tnode1 -- node2", "\tnode2 -- node1"],
            4,
            "closes the cycle node1 -> node2 -> node1",
        ),
    ],
)
def test_malformed_lines(tmp_path: Path, lines: list[str], number: int, message: str) -> None:
    with pytest.raises(InvalidFile, match=rf"graph\.txt: line {number}: .*{message}") as error:
        read(tmp_path, *lines)
    assert "expected" in str(error.value)


@pytest.mark.parametrize("lines", [[], [line("node1", "Input")]])
def test_a_file_without_operators(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(InvalidFile, match="has no operators; expected 'node1 -- "):
        read(tmp_path, *lines)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="no such file"):
        read_pipedream_profile(tmp_path / "missing.txt")
    with pytest.raises(InvalidFile, match="is a folder; name a file in it"):
        read_pipedream_profile(tmp_path)
    (tmp_path / "graph.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidFile, match="cannot be read"):
        read_pipedream_profile(tmp_path / "graph.txt")
