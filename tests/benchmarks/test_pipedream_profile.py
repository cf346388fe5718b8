"""PipeDream's profile files: what is read, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers.pipedream_profile import read_pipedream_profile
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


def test_a_malformed_line_is_named(tmp_path: Path) -> None:
    for wrong in ("node2 -- ReLU", line("node2", parameter_size="4KB"), "\tnode1"):
        with pytest.raises(InvalidFile, match=r"graph\.txt: line 2: "):
            read(tmp_path, line("node1"), wrong)
