"""The models of the table: a decoder of one's own, and transformers' from small configurations."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers

from benchmarks.deep_models import Decoder, next_character_loss
from drlpp import Task, from_huggingface

_BATCH, _LENGTH, _VOCABULARY = 8, 16, 97
_SIZES = {"hidden_size": 32, "num_attention_heads": 4}
_TOKENS = {"vocab_size": _VOCABULARY, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}


def own_decoder(tied: bool) -> Task:
    """Return the decoder that other studies train."""
    module = Decoder(width=32, blocks=4, length=_LENGTH)
    if tied:
        module.head.weight = module.characters.weight
    tokens = torch.randint(len(module.head.bias), (_BATCH, _LENGTH + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return Task(module, (inputs,), targets, next_character_loss)


def _of(model: transformers.PreTrainedModel) -> Task:
    return from_huggingface(model, batch_size=_BATCH, length=_LENGTH)


def gpt2() -> Task:
    """Return GPT-2 as published, tied."""
    config = transformers.GPT2Config(n_positions=_LENGTH, n_embd=32, n_layer=4, n_head=4, **_TOKENS)
    return _of(transformers.GPT2LMHeadModel(config))


def llama() -> Task:
    """Return Llama with grouped queries, tied."""
    config = transformers.LlamaConfig(
        **_SIZES,
        **_TOKENS,
        intermediate_size=64,
        num_hidden_layers=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return _of(transformers.LlamaForCausalLM(config))


def bert() -> Task:
    """Return BERT as published, which guesses words with the weights of their embedding."""
    config = transformers.BertConfig(
        **_SIZES,
        vocab_size=_VOCABULARY,
        num_hidden_layers=4,
        intermediate_size=64,
        max_position_embeddings=_LENGTH,
    )
    return _of(transformers.BertForMaskedLM(config))


def t5() -> Task:
    """Return T5 as published, with one embedding for source, target and output."""
    config = transformers.T5Config(
        vocab_size=_VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return _of(transformers.T5ForConditionalGeneration(config))


def vit() -> Task:
    """Return ViT."""
    config = transformers.ViTConfig(
        **_SIZES,
        num_hidden_layers=4,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
        num_labels=10,
    )
    return _of(transformers.ViTForImageClassification(config))


def whisper() -> Task:
    """Return Whisper as published, tied."""
    config = transformers.WhisperConfig(
        vocab_size=_VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=_LENGTH,
        max_target_positions=_LENGTH,
        decoder_start_token_id=0,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
    )
    model = transformers.WhisperForConditionalGeneration(config)
    batch = {
        "input_features": torch.randn(_BATCH, 8, 2 * _LENGTH),
        "labels": torch.randint(_VOCABULARY, (_BATCH, _LENGTH)),
    }
    return from_huggingface(model, batch)


def mixtral() -> Task:
    """Return a mixture of four experts, of which every token takes two."""
    config = transformers.MixtralConfig(
        **_SIZES,
        **_TOKENS,
        intermediate_size=64,
        num_hidden_layers=2,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return _of(transformers.MixtralForCausalLM(config))


MODELS: dict[str, Callable[[], Task]] = {
    "own decoder": lambda: own_decoder(tied=False),
    "own decoder, tied": lambda: own_decoder(tied=True),
    "GPT-2, tied": gpt2,
    "Llama, tied": llama,
    "BERT, tied": bert,
    "T5, tied": t5,
    "ViT": vit,
    "Whisper, tied": whisper,
    "Mixtral": mixtral,
}
"""By the name that the table shows."""


def in_float64(task: Task) -> Task:
    """Return a task without dropout, since a plain loop draws other numbers, and in 64 bits."""
    for module in task.module.modules():
        for name in ("p", "dropout", "attention_dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    inputs = torch.utils._pytree.tree_map(
        lambda value: value.double() if value.is_floating_point() else value, task.inputs
    )
    return task._replace(module=task.module.double(), inputs=inputs)
