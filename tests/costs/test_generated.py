"""Made-up models are valid, repeatable and as large as asked for."""

from __future__ import annotations

import networkx
from hypothesis import given
from hypothesis import strategies as st

from drlpp.costs.synthetic_profiles import FAMILIES, generate
from drlpp.costs.workload import Workload


@given(st.sampled_from(list(FAMILIES)), st.integers(1, 60), st.integers(0, 10**6))
def test_operators_are_in_a_topological_order_and_joined(
    family: str, operators: int, seed: int
) -> None:
    profile = generate(family, operators, seed)
    workload = Workload.of(profile)

    assert len(workload) == operators
    assert all(source < target for source, target in workload.edges)
    assert networkx.is_connected(networkx.Graph([(0, 0), *workload.edges]))
    assert profile == generate(family, operators, seed)
    assert 0.1 <= sum(profile.seconds) <= 0.5
