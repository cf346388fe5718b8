"""The page about a captured model."""

from __future__ import annotations

from hypothesis import given

from drlpp.capturing.graph import Edge, Operator, OpGraph, TensorSpec
from drlpp.cli.showing.tables import report_lines
from tests.support.planning.fake_measurer import crossing_bytes
from tests.support.strategies.graphs import graphs


def operator(number: int, type_: str, parameter_bytes: int, output_bytes: int) -> Operator:
    output = TensorSpec(shape=(output_bytes // 4,), dtype="float32", bytes_=output_bytes)
    return Operator(
        id=number,
        name=f"layers.{number}.{type_}",
        type=type_,
        module=f"{'first' if number == 0 else 'layers'}.{number}",
        parameter_bytes=parameter_bytes,
        outputs=(output,),
    )


def chain(*operators: Operator) -> OpGraph:
    return OpGraph(
        model="a model",
        operators=operators,
        edges=tuple(Edge(source=n, target=n + 1, outputs=(0,)) for n in range(len(operators) - 1)),
        outputs=((len(operators) - 1, 0),),
    )


def test_a_page_says_where_weights_are_and_what_repeats() -> None:
    layers = [operator(1 + n, ("linear", "tanh")[n % 2], 200 * (1 - n % 2), 40) for n in range(12)]
    graph = chain(operator(0, "embedding", 6000, 8), *layers, operator(13, "linear", 800, 4000))
    assert list(report_lines(graph)) == [
        "14 operators, 13 edges, 8.0 kB of parameters",
        "parameters: first 6.0 kB (75%), layers 2.0 kB (25%)",
        "cannot be cut, and have more than a tenth of the parameters each: "
        "layers.0.embedding (75%)",
        "6 equal blocks of 2 operators, the first is layers.1.linear to layers.2.tanh; "
        "a profile times 4 of them",
        "a cut sends 8 bytes (behind layers.0.embedding) to 40 bytes (behind layers.1.linear) for "
        "a minibatch, 40 bytes in the median",
    ]


@given(graphs(max_operators=8))
def test_what_passes_a_cut_is_what_two_stages_send(graph: OpGraph) -> None:
    widths = graph.cut_widths()
    assert len(widths) == len(graph) - 1
    for place, width in enumerate(widths):
        stage_of = [int(op > place) for op in range(len(graph))]
        assert width == crossing_bytes(graph, stage_of)
