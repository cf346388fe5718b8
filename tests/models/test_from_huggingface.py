"""Models of transformers as they come: trained as transformers would, saved as it saves."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader

from drlpp import Method, PipelineTrainer, capture, from_huggingface
from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidModel
from drlpp.models.model_reference import ModelReference
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.in_turns import fast_are
from tests.support.training.pipelines import assert_state, in_a_row
from tests.support.training.placement_files import file_of

BATCH, LENGTH, WORDS = 4, 10, 60
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": False,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "attention_dropout": 0.0,
}
SGD = OptimizerSpec.parse("sgd", lr=0.1, momentum=0.9)


def _gpt2() -> Any:
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 16, "n_layer": 2, "n_head": 4}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(
        **sizes, **dropout, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def _llama() -> Any:
    config = transformers.LlamaConfig(
        **SMALL, num_key_value_heads=2, bos_token_id=1, eos_token_id=2
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def _bert() -> Any:
    return transformers.AutoModelForMaskedLM.from_config(transformers.BertConfig(**SMALL))


def _classifier() -> Any:
    config = transformers.BertConfig(**SMALL, num_labels=3)
    return transformers.AutoModelForSequenceClassification.from_config(config)


def _t5() -> Any:
    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    # The configuration ignores the argument.
    config.tie_word_embeddings = False
    return transformers.AutoModelForSeq2SeqLM.from_config(config)


MODELS = {"gpt2": _gpt2, "llama": _llama, "bert": _bert, "classifier": _classifier, "t5": _t5}


def items(name: str, count: int, seed: int = 0) -> list[dict[str, Tensor]]:
    """Samples as a dataset in torch's format has them; sentences are padded, each by as much."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        tokens = torch.randint(3, WORDS, (LENGTH,), generator=draw)
        mask = torch.ones_like(tokens)
        mask[-2:] = 0
        labels = tokens.masked_fill(mask == 0, -100)
        if name == "classifier":
            labels = torch.randint(3, (), generator=draw)
        found.append({"input_ids": tokens, "attention_mask": mask, "labels": labels})
    return found


def build(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return MODELS[name]()


def example(name: str) -> dict[str, Tensor]:
    return next(iter(DataLoader(items(name, BATCH), BATCH)))


@pytest.mark.parametrize("name", fast_are(["gpt2"], MODELS))
def test_trained_in_stages_it_has_the_weights_of_a_training_by_transformers(
    name: str, tmp_path: Path
) -> None:
    model, plain = build(name).double(), build(name).double().train()
    task = from_huggingface(model, _doubled(example(name)))
    assert list(task.module.state_dict()) == list(model.state_dict())
    captured = capture(task)
    assert captured.graph.model == f"<{type(model).__name__}>"
    if name == "gpt2":
        # Without caches, which would be put together in every layer.
        assert "cat" not in {operator.type for operator in captured.graph.operators}
    method = Method(schedule="1f1b-flush", policy="sync", microbatches=2)
    document = file_of(captured, in_a_row(captured.graph, 0, 1), method, SGD)
    train = [_doubled(item) for item in items(name, 6 * BATCH)]
    held_out = [_doubled(item) for item in items(name, BATCH + 1, seed=1)]
    trainer = PipelineTrainer(document, model=captured, out=tmp_path / "run")
    result = trainer.fit(DataLoader(train, BATCH), DataLoader(held_out, BATCH), epochs=1)

    optimizing = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for batch in DataLoader(train, BATCH):
        optimizing.zero_grad()
        plain(**batch).loss.backward()
        optimizing.step()
    assert_state(result.state_dict, plain, rtol=1e-7, atol=1e-9)

    plain.eval()
    with torch.no_grad():
        outputs = plain(**next(iter(DataLoader(held_out, len(held_out)))))
    assert result.epochs[0].held_out_loss == pytest.approx(outputs.loss.item(), rel=1e-6)
    labels = torch.stack([item["labels"] for item in held_out])
    if name == "classifier":
        right = (outputs.logits.argmax(1) == labels).double().mean().item()
        assert result.epochs[0].score == pytest.approx(right)
    else:
        assert result.epochs[0].score is None

    model.load_state_dict(result.state_dict)
    model.save_pretrained(tmp_path / "saved")
    loaded = type(model).from_pretrained(tmp_path / "saved", dtype=torch.float64)
    assert loaded.config.to_dict().get("use_cache") == plain.config.to_dict().get("use_cache")
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, result.state_dict[key])


def _doubled(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}


def test_a_folder_by_name_and_in_python_is_the_same_model(tmp_path: Path) -> None:
    model = build("gpt2")
    model.save_pretrained(tmp_path / "gpt2")
    named = ModelReference.named("huggingface", folder=str(tmp_path / "gpt2"), batch_size=2)
    for task in (named.build(), from_huggingface(tmp_path / "gpt2", batch_size=2)):
        assert {k: tuple(v.shape) for k, v in task.inputs.items()} == {
            "input_ids": (2, LENGTH),
            "attention_mask": (2, LENGTH),
            "labels": (2, LENGTH),
        }
        for key, value in model.state_dict().items():
            assert torch.equal(task.module.state_dict()[key], value)
    task = from_huggingface(model, batch_size=2)
    assert model.training
    task.module.eval()
    assert not any(part.training for part in model.modules())
    # A configuration alone has weights of the seed.
    model.config.save_pretrained(tmp_path / "config")
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path / "config")
    bare = ModelReference.named("huggingface", folder=str(tmp_path / "config"))
    one, same, other = (bare.build(seed).module.state_dict() for seed in (1, 1, 2))
    key = "lm_head.weight"
    assert torch.equal(one[key], same[key])
    assert not torch.equal(one[key], other[key])


def _refusals(folder: Path) -> list[tuple[Callable[[], object], str]]:
    """What cannot be, and words of what is said."""
    tokens, none = torch.ones(2, 4).long(), torch.ones(2, 4)
    bare = transformers.AutoModel.from_config(transformers.BertConfig(**SMALL))
    given: list[tuple[Any, str]] = [
        ({"input_ids": none}, "has 'input_ids' and no 'labels'"),
        ([1, 2], "the example batch is a list; expected a dictionary"),
        ({"labels": none}, "GPT2LMHeadModel cannot be called with labels"),
        ({"input_ids": tokens, "labels": [1, 2]}, r"is a list; .*with_format\('torch'\)"),
        ({"input_ids": none, "label": 1}, r"rename_column\('label', 'labels'\)"),
        ({"input_ids": tokens, "labels": torch.tensor(1)}, "the batch as first dimension"),
        (
            {"input_ids": tokens, "labels": tokens, "position_ids": torch.arange(4)[None]},
            r"all samples share inputs\['position_ids'\], it is no input",
        ),
    ]
    return [
        *((partial(_captured, batch), reason) for batch, reason in given),
        (lambda: from_huggingface(nn.Linear(2, 2)), "is a Linear; expected a model of tr"),
        (lambda: from_huggingface(transformers.GPT2Config()), r"GPT2Config; .*from_config"),
        (lambda: from_huggingface("no/such/folder"), r"no config\.json; .*nothing is downloaded"),
        (lambda: from_huggingface(bare, example("bert")), "BertModel takes no labels"),
        (lambda: capture(bare), r"drlpp\.from_huggingface\(model, batch\)"),
        (lambda: ModelReference.named("huggingface").build(), "--model-option folder=FOLDER"),
        (lambda: from_huggingface(folder), "no file named model.safetensors"),
    ]


def _captured(batch: Any) -> CapturedModel:
    return capture(from_huggingface(build("gpt2"), batch))


def test_what_cannot_be_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build("gpt2").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    for call, reason in _refusals(tmp_path):
        with pytest.raises(InvalidModel, match=reason):
            call()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InvalidModel, match=r"pip install 'drlpp\[huggingface\]'"):
        from_huggingface(tmp_path)


def test_an_example_has_as_many_tokens_as_the_configuration_has_positions() -> None:
    model = build("gpt2")
    assert from_huggingface(model, batch_size=2).inputs["input_ids"].shape == (2, LENGTH)
    message = r"cannot be called with input_ids \(2, 11\), .*: IndexError: index out of range"
    with pytest.raises(InvalidModel, match=message):
        from_huggingface(model, batch_size=2, length=LENGTH + 1)


def test_tied_embeddings_keep_both_names(tmp_path: Path) -> None:
    config = build("gpt2").config
    config.tie_word_embeddings = True
    model = transformers.AutoModelForCausalLM.from_config(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured = capture(from_huggingface(model, example("gpt2")))
        document = file_of(captured, in_a_row(captured.graph, 0))
        trainer = PipelineTrainer(document, model=captured, out=tmp_path / "run")
    result = trainer.fit(DataLoader(items("gpt2", 8), BATCH), epochs=1)
    model.load_state_dict(result.state_dict)
    model.save_pretrained(tmp_path / "saved")
    loaded = type(model).from_pretrained(tmp_path / "saved")
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert torch.equal(loaded.lm_head.weight, result.state_dict["lm_head.weight"])
