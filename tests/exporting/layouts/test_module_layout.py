"""The nearest layout by whole modules, against all layouts there are."""

import random
from itertools import combinations

import pytest
from torch import nn

from drlpp.capturing.capture import capture
from drlpp.costs.profile import Profile
from drlpp.errors import InvalidInput
from drlpp.exporting.layouts.module_layout import layers_of, nearest_layout, units_of
from drlpp.exporting.layouts.programs import DEEPSPEED_CONTAINERS as CONTAINERS
from drlpp.exporting.nearest import Nearest, Unit, nearest_chain
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from tests.support.models.tied import placements
from tests.support.models.translating import translating
from tests.support.training.pipelines import in_a_row

GPIPE = Method(schedule="gpipe", policy="sync", microbatches=4)
HALVES, FLUSHED = (GPIPE.model_copy(update={"schedule": kind}) for kind in ("zb-h1", "1f1b-flush"))


def chain_of(placement: Placement, method: Method = GPIPE) -> Nearest:
    return Nearest(Candidate(placement, method), ())


@pytest.fixture(scope="module")
def decoder():
    return capture(ModelReference.named("tests.exporting.decoder:decoder"))


@pytest.fixture(scope="module")
def forked():
    return capture(ModelReference.named("tests.support.models.small:forked"))


@pytest.mark.parametrize("seed", range(4))
def test_no_other_layout_moves_fewer_seconds(decoder, seed: int) -> None:
    draw = random.Random(seed)
    graph, stages = decoder.graph, draw.choice([1, 2, 3, 4])
    cuts = sorted(draw.sample(range(1, len(graph)), stages - 1))
    before = [sum(operator >= cut for cut in cuts) for operator in range(len(graph))]
    seconds = [draw.random() for _ in range(len(graph))]
    units = units_of(decoder.task.module, graph, CONTAINERS)
    placement = Placement.from_assignment(before, range(stages))
    layout = nearest_layout(chain_of(placement), graph, units, seconds)
    after = layout.candidate.placement.stage_of_operator(len(graph))

    def moved(stage_of) -> float:
        return sum(t for t, a, b in zip(seconds, before, stage_of, strict=True) if a != b)

    def assigned(borders: tuple[int, ...]) -> list[int]:
        found = [0] * len(graph)
        for number, unit in enumerate(units):
            for operator in unit.operators:
                found[operator] = sum(number >= border for border in borders)
        return found

    choices = combinations(range(1, len(units)), stages - 1)
    least = min(moved(assigned(borders)) for borders in choices)
    assert moved(after) == pytest.approx(least)
    assert sum(layout.units, ()) == units


def test_units_are_modules_in_the_order_in_which_they_run(decoder, forked) -> None:
    names = [unit.modules for unit in units_of(decoder.task.module, decoder.graph, CONTAINERS)]
    layers = [(f"layers.{k}",) for k in range(6)]
    assert names == [("tok_embeddings",), *layers, ("norm",), ("output",)]
    whole = units_of(decoder.task.module, decoder.graph, (nn.Sequential,))
    assert [unit.modules for unit in whole][1] == ("layers",)
    branches = units_of(forked.task.module, forked.graph, CONTAINERS)
    assert [unit.modules[0] for unit in branches][:4] == ["embedding", "stem", "lstm", "conv"]
    # What the model itself computes belongs to no unit.
    owned = {operator for unit in branches for operator in unit.operators}
    assert [op.name for op in forked.graph.operators if op.id not in owned][:2] == ["tanh", "relu"]


def test_what_the_model_computes_goes_with_what_it_reads(forked) -> None:
    """And a module that was cut inside is named."""
    graph = forked.graph
    placement = in_a_row(graph, 0, 1)
    units = units_of(forked.task.module, graph, CONTAINERS)
    layout = nearest_layout(chain_of(placement), graph, units, Profile.estimated(graph).seconds)
    stage_of = layout.candidate.placement.stage_of_operator(len(graph))
    for operator in graph.operators:
        if not operator.module:
            assert stage_of[operator.id] == max(
                stage_of[p] for p in graph.predecessors[operator.id]
            )
    (note,) = layout.notes
    assert note.startswith("attention is cut inside, over stages 0 and 1; in the export it is in")


def test_more_stages_than_modules_are_refused(decoder) -> None:
    units = units_of(decoder.task.module, decoder.graph, ())
    placement = in_a_row(decoder.graph, *range(5))
    seconds = [1.0] * len(decoder.graph)
    with pytest.raises(InvalidInput, match="has 4 modules to divide and the placement has 5"):
        nearest_layout(chain_of(placement), decoder.graph, units, seconds)


def test_layers_of_a_decoder_alone_are_divided(decoder, forked) -> None:
    units = layers_of(decoder.task.module, decoder.graph)
    assert [unit.modules[0] for unit in units] == [
        "before",
        *(f"layers.{k}" for k in range(6)),
        "behind",
    ]
    assert units[0] == Unit(("before",), (0,))
    with pytest.raises(InvalidInput, match="has no list of equal layers"):
        layers_of(forked.task.module, forked.graph)


def test_layers_in_two_places_are_refused() -> None:
    two = capture(translating(), check=False)
    with pytest.raises(InvalidInput, match="layers in encoder and in decoder"):
        layers_of(two.task.module, two.graph)


@pytest.mark.parametrize(
    ("method", "only_1f1b", "wanted", "note"),
    [
        (Method(clip_norm=2.0), False, FLUSHED.model_copy(update={"clip_norm": 2.0}), "1f1b, pip"),
        (GPIPE, False, GPIPE, ""),
        (GPIPE, True, FLUSHED, "schedule gpipe: the order is 1F1B there"),
        (HALVES, False, FLUSHED, "schedule zb-h1: backwards are made in one piece there"),
    ],
)
def test_a_method_flushes_there(decoder, method, only_1f1b, wanted, note: str) -> None:
    plan = ExecutionPlan.of(Candidate(in_a_row(decoder.graph, 0, 1), method), decoder.graph, 2)
    found = nearest_chain(plan, 8, only_1f1b=only_1f1b)
    assert found.candidate.method == wanted
    assert "".join(found.notes).startswith(note)


def test_two_stages_on_an_accelerator_are_refused(decoder) -> None:
    folded = GPIPE.model_copy(update={"schedule": "zb-v"})
    row = in_a_row(decoder.graph, 0, 1, 2, 3)
    there_and_back = zip(row.stages, (0, 1, 1, 0), strict=True)
    stages = (s.model_copy(update={"accelerators": (a,)}) for s, a in there_and_back)
    placement = Placement(stages=tuple(stages))
    plan = ExecutionPlan.of(Candidate(placement, folded), decoder.graph, 2)
    with pytest.raises(InvalidInput, match="zb-v has two stages on every accelerator"):
        nearest_chain(plan, 8)


def test_programs_are_told_of_parameters_that_stages_share() -> None:
    captured = capture(ModelReference.named("tests.support.models.tied:tied"))
    candidate = Candidate(placements(captured)["straight"], Method())
    plan = ExecutionPlan.of(candidate, captured.graph, 4)
    assert nearest_chain(plan, 8, trains_itself=True).notes[:2] == (
        "stages 0 and 1 share right.weight; the program there has to keep the copies the same",
        "stages 0 and 2 and 3 share head.weight; the program there has to keep the copies the same",
    )
    assert not any("share" in note for note in nearest_chain(plan, 8).notes), "a bundle does that"
