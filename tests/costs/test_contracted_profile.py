"""Planning on modules: the contracted problem costs what the original does, whatever the cuts."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.made_up import FAMILIES, generate
from drlpp import Placement, simulate
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.contraction import ContractedGraph
from drlpp.costs.placement_rule import predict
from drlpp.costs.workload import Workload
from drlpp.exporting.layouts.module_cuts import contracted_at
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Stage
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster

METHODS = (Method(), Method(policy="sync", schedule="gpipe", microbatches=4))


@pytest.fixture(scope="module")
def tied() -> CapturedModel:
    return capture(ModelReference.named("gpt2", layers=3, batch_size=4, sequence_length=8))


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(list(FAMILIES)),
    st.integers(2, 12),
    st.integers(0, 99),
    st.sampled_from(METHODS),
    st.data(),
)
def test_a_placement_of_groups_costs_what_it_does_of_operators(
    family: str, operators: int, seed: int, method: Method, data: st.DataObject
) -> None:
    """Simulated and by the rule, for groups of any shape; circles between them become one group."""
    profile = generate(family, operators, seed)
    number = data.draw(st.lists(st.integers(0, 5), min_size=operators, max_size=operators))
    named = [(f"m{g}", [op for op in range(operators) if number[op] == g]) for g in set(number)]
    contracted = ContractedGraph.of(profile.graph, named)
    assert sorted(op for group in contracted.members for op in group) == list(range(operators))
    for _, group in named:
        assert sum(set(group) <= set(members) for members in contracted.members) == 1
    groups = len(contracted.graph)
    cuts = data.draw(
        st.lists(st.integers(1, groups), max_size=3).map(lambda c: sorted({*c} - {groups}))
    )
    bounds = [0, *cuts, groups]
    placement = Placement(
        stages=tuple(
            Stage(operators=tuple(range(a, b)), accelerators=(k,))
            for k, (a, b) in enumerate(pairwise(bounds))
        )
    )
    cluster = local_cluster(4, Link(bandwidth_bytes_per_second=1e9))
    # What computing needs follows from the order: of other groups it is as if each came at once.
    in_order = all(group == tuple(range(group[0], group[-1] + 1)) for group in contracted.members)
    own = Workload.of(contracted.profile(profile), method)
    whole = Workload.of(profile, method)
    expanded = contracted.expanded(placement)
    expanded.validate_for(profile.graph, 4)
    played = simulate(own, cluster, placement, method)
    expected = simulate(whole, cluster, expanded, method)
    assert played.seconds_per_minibatch == pytest.approx(expected.seconds_per_minibatch)
    # Gradients of a group count together.
    added = profile.graph.parameter_bytes
    for ours, theirs in zip(played.memory_bytes, expected.memory_bytes, strict=True):
        assert 0.9 * theirs <= ours <= 1.1 * theirs + added
        assert not in_order or ours >= theirs * (1 - 1e-9)
    ruled = predict(own, cluster, placement).seconds_per_minibatch
    assert ruled == pytest.approx(predict(whole, cluster, expanded).seconds_per_minibatch)


def test_tied_weights_stay_tied(tied: CapturedModel) -> None:
    contracted = contracted_at("layers", tied.graph, lambda: tied.task.module)
    (shared,) = contracted.graph.shared_parameters
    assert [contracted.graph.operators[op].name for op in shared.operators] == ["before", "behind"]
    assert contracted.graph.parameter_bytes == tied.graph.parameter_bytes
    joined = ContractedGraph.of(tied.graph, [("all", range(len(tied.graph)))])
    assert joined.graph.shared_parameters == ()
    assert joined.graph.parameter_bytes == tied.graph.parameter_bytes
