"""What commands refuse: one line, exit code 2, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from drlpp.cli.main import train_agent
from tests.support.programs.shell import drlpp, finish

MODEL = "tests.support.models.small:perceptron"
LINKS = "--workers 2 --bandwidth 10"
PLAN = f"plan --profile CHAIN {LINKS}"
TIMELINE = f"show --model {MODEL} --timeline"
TRAIN = f"train PLACEMENT --model {MODEL} --data tests.support.models.small:separable"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("show lenet", "not in the zoo; it has alexnet"),
        ("show no.such:thing", "importing 'no.such' raised"),
        (f"show {MODEL} --model-option 3", "KEY=VALUE"),
        ("show missing.json", "missing.json: no such file"),
        (f"show {__file__}", "not a file; like test_command_refusals:FUNCTION"),
        (f"show {'x' * 40_000}", "x" * 60),
        ("profile alexnet --model-option size=big -o x.json", "small or published"),
        (f"{TIMELINE} schedule nothing.json", "nothing.json: no such file"),
        (f"{TIMELINE} schedule PLACEMENT --speeds 1,1", "--cluster are for --timeline run"),
        ("show PLACEMENT --speeds 1,1", "nothing reads --speeds; give it as well"),
        (f"show {MODEL} --minibatches 8 --cluster auto", "reads --minibatches and --cluster"),
        (f"{TIMELINE} simulator PLACEMENT", "needs what operators cost: next to"),
        (f"{TIMELINE} run PLACEMENT --speeds 1", "is of 1 accelerators, for 2 workers"),
        ("plan", "name what to plan: a model, or --profile"),
        (f"plan --profile none.json {LINKS}", "none.json: no such file"),
        ("plan --profile CHAIN --workers 2", "what messages take is not known"),
        ("plan --profile CHAIN --workers 2 --bandwidth 0", "bandwidth_bytes_per_second"),
        (f"{TIMELINE} run PLACEMENT --speeds 1,fast", "--speeds 1,fast: expected numbers"),
        (f"{TIMELINE} run PLACEMENT --speeds 1,-1", "expected numbers above 0 separated"),
        (f"{PLAN} --vary width", "'width' is unknown"),
        (f"plan {MODEL} --planner pipdream", "planner 'pipdream' is unknown"),
        (f"plan {MODEL} --objective hope", "objective 'hope' is unknown"),
        (f"plan {MODEL}", "Give workers=4 (--workers 4)"),
        (f"{PLAN} --cut-at modules", "name the MODEL"),
        (f"{PLAN} --compare modules:layers.5", "name the MODEL as well"),
        ("plan --profile CHAIN --cluster auto", "expected a cluster.yaml, or one of a100"),
        (f"plan --profile CHAIN --workers {10**12} --bandwidth 1", "field 'accelerators'"),
        (f"plan {MODEL} --profile CHAIN --cluster CLUSTER", "profile this model again"),
        ("train missing.json", "missing.json: no such file"),
        ("train missing.json --timeout 0", "a time limit of 0.0 s was given"),
        (f"{TRAIN} --elastic 2", "--elastic 2: expected MIN:MAX, such as 2:4"),
        (f"{TRAIN} --elastic 1:2 --workers 1", "says how many workers there are; leave out"),
        (f"{TRAIN} --minibatches 3", "minibatches belongs to loaders; tests.support.models.small"),
        (f"{TRAIN} --optimizer-option beta=1", "unexpected keyword argument 'beta'; it has lr"),
        (f"{TRAIN} --lr 1 --optimizer-option lr=2", "the learning rate is given twice: 1 and 2"),
        (f"{TRAIN} --parameter-group *.bias", "expected 'PATTERN …: KEY=VALUE …'"),
        (f"{TRAIN} --policy gpipe", "policy 'gpipe' is unknown; there are sync, vanilla, stash"),
        (f"{TRAIN} --policy 2bw", "minibatches as are in flight, 2 with this placement"),
        (f"{TRAIN} --method-option microbatches=3", "divided into 3 equal microbatches"),
        (f"{TRAIN} --lr-schedule cosine", "learning-rate schedule 'cosine' is unknown"),
        (f"{TRAIN} --lr-schedule T_max=3", "expected NAME KEY=VALUE …, like cosineannealing"),
        ("learn --epochs 2", "--epochs belongs to a race to a loss; give --data as well"),
        ("learn --agent alphazero", "agent 'alphazero' is unknown; there are drl-pp"),
        ("learn --agent nowhere.yaml", "nowhere.yaml: no such file"),
        ("learn --agent drl-pp --vary depth", "agent drl-pp chooses placements alone"),
        ("learn --agent drl-pp --objective loss", "by their seconds, as in the paper"),
        ("learn --objective dollars", "learning has seconds, or loss"),
        ("learn --objective loss --method-option accumulate=4", "(accumulate=4) are not judged"),
        (f"{PLAN} --objective loss --method-option accumulate=4", "(accumulate=4) are not judged"),
        ("learn --policy hope", "policy 'hope' is unknown"),
    ],
)  # fmt: skip
def test_bad_input(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    folder = files["PLACEMENT"].parent
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    words = (str(files.get(word, word)) for word in command.split())
    assert message in drlpp(*words).refusal
    assert sorted(folder.iterdir()) == before


def test_train_agent_says_its_own_name() -> None:
    ended = finish(train_agent, "train_agent.py", "--policy", "hope")
    assert ended.refusal.startswith("train_agent.py: error: ")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("CHAIN", ('"target": 1', '"target": 0'), "so that there is no cycle"),
        ("CHAIN", ('"name": "op1"', '"name": "op0"'), "with a name each"),
        ("CHAIN", ('"forward_seconds": 2.0', '"forward_seconds": -2.0'), "forward_seconds"),
        ("CHAIN", ('"kind": "profile"', '"kind": "poem"'), "expected one of"),
        ("CLUSTER", ("between_hosts", "#"), "'fast-1' cannot be reached from 'fast-0'"),
        ("CLUSTER", ("1.2e10", "0"), "field 'within_host.bandwidth_bytes_per_second'"),
        ("CLUSTER", ("speed: 0.5", "speed: 0"), "field 'hosts.1.speed'"),
        ("CLUSTER", ("speed: 0.5", "price: 0"), "field 'hosts.1.price'"),
        ("CLUSTER", ("name: slow,", "name: fast-1,"), "host 'fast-1' is a line of its own"),
        ("CLUSTER", ("name: slow,", 'name: "slow\\ner",'), r"has the control character '\n'"),
        ("CLUSTER", ("device: cuda,", "device: tpu,"), "'cpu', 'cuda', 'xpu' or 'mps'"),
    ],
)  # fmt: skip
def test_files_that_somebody_has_edited(
    files: dict[str, Path], file: str, change: tuple[str, str], message: str
) -> None:
    path = files[file]
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change, 1))
    assert message in drlpp("show", path).refusal


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("0.0.linear", "0.0.liner"), "did you mean '0.0.linear'?"),
        (('"layers": 2', '"layers": 3'), "or, if its code or torch has changed, plan it anew"),
        ((MODEL, "no.module:nothing"), "name the model that it was made for: --model no.module"),
    ],
)
def test_a_placement_of_another_model(
    files: dict[str, Path], change: tuple[str, str], message: str
) -> None:
    path = files["PLACEMENT"]
    path.write_text(path.read_text().replace(*change, 1))
    words = (str(files.get(word, word)) for word in TRAIN.split())
    assert message in drlpp(*words).refusal
    assert not (path.parent / "training").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {name: alexnet}\n", "'model' has fields; expected one value"),
        (
            "modle: alexnet\n",
            "'modle' is no option of this command; there are cluster",
        ),
        ("- alexnet\n", "run.yaml"),
    ],
)
def test_a_file_with_options_that_do_not_fit(tmp_path: Path, text: str, message: str) -> None:
    options = tmp_path / "run.yaml"
    options.write_text(text)
    assert message in drlpp("show", "--config", options).refusal
