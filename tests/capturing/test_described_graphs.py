"""A graph in a file may be anybody's: what contradicts itself is refused."""

import pytest
from pydantic import ValidationError

from drlpp.capturing.graph import OpGraph
from tests.support.strategies.graphs import tied_chain


def test_an_operator_that_shares_more_than_it_has_is_refused() -> None:
    graph = tied_chain([1, 2, 3], 8).graph.model_dump()
    assert OpGraph.model_validate(graph).shared_parameters
    graph["operators"][0]["parameter_bytes"] = 7
    with pytest.raises(ValidationError, match="has 7 bytes of parameters, fewer than the 8"):
        OpGraph.model_validate(graph)
