"""Groups of parameters: which names belong to which, how they are written, what is refused."""

import pytest

from drlpp.errors import InvalidInput
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup
from drlpp.specs.parameter_groups import divided, settled

SPEC = OptimizerSpec.parse(
    "adamw",
    [
        ParameterGroup.parse("*.bias", "*norm*", weight_decay=0),
        ParameterGroup.parse("lm_head.weight", lr="1e-4"),
        ParameterGroup.parse("*.weight", optimizer="sgd", lr=0.02),
    ],
    lr=0.001,
    weight_decay=0.1,
)
NAMES = ["wte.weight", "h.0.weight", "h.0.bias", "h.norm.weight", "scale"]
ALIASES = {"lm_head.weight": "wte.weight"}


def test_the_first_group_that_matches_any_of_its_names_has_a_parameter() -> None:
    spec = settled(SPEC, NAMES, ALIASES)
    found = {group.names: group for group in divided(spec, NAMES)}
    assert [*found] == [
        ("h.0.bias", "h.norm.weight"),
        ("wte.weight",),
        ("h.0.weight",),
        ("scale",),
    ]
    decay = [group.optimizer.complete.get("weight_decay") for group in found.values()]
    assert decay == [0, 0.1, 0, 0.1]
    assert [group.rate for group in found.values()] == [0.001, 1e-4, 0.02, 0.001]
    assert {group.base_rate for group in found.values()} == {0.001}
    # A stage that holds some of them says the same of these.
    assert [group.names for group in divided(spec, ["scale", "wte.weight"])] == [
        ("wte.weight",),
        ("scale",),
    ]


def test_a_schedule_multiplies_every_rate() -> None:
    spec = settled(SPEC, NAMES, ALIASES)
    rates = {group.names[0]: list(group.rates([0.001, 0.003])) for group in divided(spec, NAMES)}
    assert rates == {
        "h.0.bias": [0.001, 0.003],
        "wte.weight": [1e-4, pytest.approx(3e-4)],
        "h.0.weight": [0.02, pytest.approx(0.06)],
        "scale": [0.001, 0.003],
    }
    doubled = SPEC.with_rate(0.002)
    assert [doubled.of_group(group).rate for group in doubled.groups] == [0.002, 2e-4, 0.04]


def test_what_a_file_says_is_read_again_and_absent_groups_are_not_written() -> None:
    written = SPEC.model_dump(mode="json", exclude_none=True)
    assert OptimizerSpec.model_validate(written) == SPEC
    assert written["groups"][0] == {
        "parameters": ["*.bias", "*norm*"],
        "options": {"weight_decay": 0},
    }
    assert OptimizerSpec().model_dump() == {"name": "sgd", "options": {}}
    assert OptimizerSpec().settings == {"name": "sgd", "options": {}}
    assert "; *.bias *norm*: weight_decay=0; lm_head.weight: lr=0.0001; *.weight: sgd" in str(SPEC)
    # What is said with other words is the same.
    group = ParameterGroup.parse("*.bias", "*norm*", weight_decay=0.0)
    again = OptimizerSpec.parse(
        "adamw", [group, *SPEC.groups[1:]], lr=0.001, weight_decay=0.1, betas=[0.9, 0.999]
    )
    assert again.settings == SPEC.settings
    assert again.changed(None, {}, SPEC.groups[:1]).settings != SPEC.settings


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            [ParameterGroup.parse("*.biases", lr=1)],
            r"'\*.biases' .* no trained .* h.0.bias",
        ),
        (
            [ParameterGroup.parse("*", lr=1), ParameterGroup.parse("h.0.wait", lr=1)],
            "'h.0.wait' of a parameter group matches no",
        ),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(
    groups: list[ParameterGroup], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        settled(OptimizerSpec.parse("sgd", groups), NAMES, ALIASES)


def test_a_rate_relative_to_nothing_is_refused() -> None:
    spec = OptimizerSpec.parse("sgd", [ParameterGroup.parse("scale", lr=1)], lr=0.0)
    with pytest.raises(InvalidInput, match="is 0, and that of scale is 1: a schedule moves both"):
        settled(spec, NAMES, ALIASES)
