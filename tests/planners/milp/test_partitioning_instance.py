"""Instances of dnn-partitioning: what their nodes and edges become, and errors in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drlpp.costs.analytic_model import predict
from drlpp.costs.tensors import Transfer
from drlpp.errors import InvalidFile
from drlpp.placement.placement import Placement
from drlpp.planners.milp.partitioning_instance import PartitioningInstance
from tests.support.planning.public_data import INSTANCES


def node(id_: int, milliseconds: float = 1.0, **fields: Any) -> dict[str, Any]:
    return {
        "id": id_,
        "supportedOnFpga": 1,
        "fpgaLatency": milliseconds,
        "cpuLatency": 99.0,
        "isBackwardNode": 0,
        **fields,
    }


def backward(id_: int, milliseconds: float = 1.0, **fields: Any) -> dict[str, Any]:
    return node(id_, milliseconds, isBackwardNode=1, **fields)


def edge(source: int, target: int, cost: float = 0.5) -> dict[str, Any]:
    return {"sourceId": source, "destId": target, "cost": cost}


def read(
    folder: Path, nodes: list[dict[str, Any]], edges: list[dict[str, Any]], **fields: Any
) -> PartitioningInstance:
    content = {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 100.0, **fields}
    path = folder / "instance.json"
    path.write_text(json.dumps({**content, "nodes": nodes, "edges": edges}))
    return PartitioningInstance.read(path)


def test_a_colour_class_is_an_operator_and_every_output_a_tensor(tmp_path: Path) -> None:
    instance = read(
        tmp_path,
        [
            node(10, 1.0, colorClass=1, size=3.0, name="embed"),
            node(11, 2.0, colorClass=2, size=4.0),
            node(12, 4.0, colorClass=2),
            node(13, 8.0),
            backward(21, 16.0, colorClass=2, size=5.0),
            backward(20, 32.0, colorClass=1),
        ],
        [
            edge(10, 11, 0.25),
            edge(10, 13, 0.25),
            edge(11, 12, 7.0),
            edge(12, 13),
            edge(12, 21),
            edge(21, 20, 0.75),
        ],
    )
    workload = instance.workload
    assert workload.names == ("embed", "node 11", "node 13")
    assert workload.forward_seconds.tolist() == pytest.approx([0.001, 0.006, 0.008])
    assert workload.backward_seconds.tolist() == pytest.approx([0.032, 0.016, 0.0])
    assert workload.parameter_bytes.tolist() == [3.0, 9.0, 0.0]
    assert workload.kept_bytes.tolist() == [0.0, 0.0, 0.0]
    assert workload.edges == ((0, 1), (0, 2), (1, 2))
    # The one from 11 to 12 stays within a class.
    assert workload.transfers == (
        Transfer((0, 1, 2), 0.25e-3, 0.0),
        Transfer((1, 2), 0.5e-3, 0.0),
        Transfer((1, 0), 0.75e-3, 0.0),
    )
    assert (instance.accelerators, instance.memory_bytes) == (2, 100.0)


def test_its_rule_adds_up_nodes_and_once_every_tensor_that_crosses(tmp_path: Path) -> None:
    instance = read(
        tmp_path,
        [node(0, 1.0, size=60.0), node(1, 2.0, size=50.0), node(2, 4.0), node(3, 8.0)],
        [edge(0, 1, 0.25), edge(0, 2, 0.25), edge(0, 3, 0.25), edge(1, 3, 0.5), edge(2, 3, 9.0)],
    )
    problem = instance.problem()
    assert (problem.costs, problem.replicate) == ("serial", False)
    prediction = predict(
        problem.workload,
        problem.cluster,
        Placement.from_assignment([0, 0, 1, 1], [0, 1]),
        problem.costs,
        problem.memory,
    )
    # 0's output goes to two operators of the second device, and crosses once.
    loads = [stage.seconds * 1000 for stage in prediction.stages]
    assert loads == pytest.approx([1 + 2 + 0.25 + 0.5, 4 + 8 + 0.25 + 0.5])
    assert prediction.missing_bytes == pytest.approx(10.0, abs=0.01)
    assert instance.problem(5).cluster.accelerators == 5


def test_a_backward_class_is_ordered_like_a_mirror_image(tmp_path: Path) -> None:
    # 12 has no forward node; its gradient comes from 11 and goes on to 10.
    instance = read(
        tmp_path,
        [
            backward(12, name="orphan"),
            node(0, colorClass=1, name="first"),
            node(1, colorClass=2, name="second"),
            backward(10, colorClass=1),
            backward(11, colorClass=2),
        ],
        [edge(0, 1), edge(1, 11), edge(11, 12), edge(12, 10), edge(11, 10)],
    )
    assert instance.workload.names == ("first", "orphan", "second")
    assert instance.workload.edges == ((0, 1), (0, 2), (1, 2))


def test_classes_on_a_cycle_are_one_operator(tmp_path: Path) -> None:
    instance = read(
        tmp_path,
        [node(0, colorClass=1), node(1, 2.0, colorClass=2), node(2, 4.0, colorClass=1), node(3)],
        [edge(0, 1), edge(1, 2), edge(2, 3)],
    )
    assert instance.workload.forward_seconds.tolist() == pytest.approx([0.007, 0.001])
    assert instance.workload.edges == ((0, 1),)
    assert instance.workload.transfers == (Transfer((0, 1), 0.5e-3, 0.0),)


@pytest.mark.parametrize(
    ("nodes", "edges", "problem"),
    [
        ([node(0), node(0)], [], "two nodes have the id 0"),
        ([node(0)], [edge(0, 7)], "edge from 0 to 7 names node 7"),
        ([node(0)], [edge(7, 0)], "edge from 7 to 0 names node 7"),
        ([node(0), node(1, -1.0)], [], "'nodes.1.fpgaLatency': .*greater than or equal to 0"),
        ([node(0, float("nan"))], [], "'nodes.0.fpgaLatency': .*finite"),
        ([node(0, float("inf"))], [], "'nodes.0.fpgaLatency': .*finite"),
        ([{"id": 0, "supportedOnFpga": 1, "isBackwardNode": 0}], [], "fpgaLatency'.*missing"),
        ([node(0, size=-1.0)], [], "'nodes.0.size'"),
        ([node(0, supportedOnFpga=0)], [], "node 0 is not supported on accelerators"),
        ([node(0), node(1)], [edge(0, 1, -1.0)], "'edges.0.cost'"),
        ([node(0), node(1)], [edge(0, 1, float("inf"))], "'edges.0.cost': .*finite"),
        (
            [node(0), node(1), node(2)],
            [edge(0, 1, 0.5), edge(0, 2, 0.6)],
            "edges from node 0 cost 0.5 and 0.6",
        ),
        ([backward(0), node(1)], [edge(0, 1)], "edge from 0 to 1 leads from a backward"),
        ([], [], "'nodes'"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(
    tmp_path: Path, nodes: list[dict[str, Any]], edges: list[dict[str, Any]], problem: str
) -> None:
    with pytest.raises(InvalidFile, match=f"instance.json: .*{problem}"):
        read(tmp_path, nodes, edges)


@pytest.mark.parametrize("limits", [{"maxFPGAs": 0}, {"maxSizePerFPGA": 0.0}])
def test_impossible_limits_are_refused(tmp_path: Path, limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidFile, match=f"instance.json: field '{next(iter(limits))}'"):
        read(tmp_path, [node(0)], [], **limits)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="no such file"):
        PartitioningInstance.read(tmp_path / "missing.json")
    (tmp_path / "half.json").write_text('{"nodes": [')
    with pytest.raises(InvalidFile, match=r"half.json: truncated"):
        PartitioningInstance.read(tmp_path / "half.json")


@pytest.mark.parametrize(
    ("name", "accelerators", "total_milliseconds"),
    [("bert24_training", 6, 217.813), ("resnet50_training", 6, 462.381)],
)
def test_published_files_are_read_whole(
    name: str, accelerators: int, total_milliseconds: float
) -> None:
    instance = PartitioningInstance.read(INSTANCES / f"{name}.json")
    assert instance.accelerators == accelerators
    assert instance.workload.seconds.sum() * 1000 == pytest.approx(total_milliseconds)
