"""The models of the table of policies, all of them of 1.5 to 2.5 million weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from drlpp import ModelReference, Task, from_huggingface
from drlpp.models.task import Option

_BATCH, _LENGTH, _WIDTH, _WORDS, _MELS = 8, 32, 128, 2000, 80


def whisper() -> Task:
    """Return Whisper as published, tied: sounds of 64 frames, sentences of 32 tokens."""
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=_WORDS,
            d_model=_WIDTH,
            encoder_layers=4,
            decoder_layers=4,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=4 * _WIDTH,
            decoder_ffn_dim=4 * _WIDTH,
            num_mel_bins=_MELS,
            max_source_positions=_LENGTH,
            max_target_positions=_LENGTH,
            decoder_start_token_id=0,
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
        )
    )
    # Its second convolution takes every other frame.
    batch = {
        "input_features": torch.randn(_BATCH, _MELS, 2 * _LENGTH),
        "labels": torch.randint(_WORDS, (_BATCH, _LENGTH)),
    }
    return from_huggingface(model, batch)


_SIZES: dict[str, Option] = {"sequence_length": _LENGTH, "batch_size": _BATCH, "hidden": _WIDTH}
MODELS: Mapping[str, ModelReference] = {
    "own decoder": ModelReference.named(
        "benchmarks.deep_models:decoder", batch_size=_BATCH, width=_WIDTH, blocks=8, length=_LENGTH
    ),
    "GPT-2, tied": ModelReference.named(
        "gpt2", **_SIZES, layers=8, heads=4, positions=_LENGTH, vocabulary=_WORDS, tied=True
    ),
    "Llama": ModelReference.named(
        "llama", **_SIZES, inner=352, layers=8, heads=4, key_heads=2, vocabulary=_WORDS, tied=False
    ),
    "BERT, tied": ModelReference.named(
        "bert48", **_SIZES, layers=8, heads=4, positions=_LENGTH, vocabulary=_WORDS, tied=True
    ),
    "T5, tied": ModelReference.named(
        "t5", **_SIZES, inner=256, layers=4, heads=4, head_size=32, vocabulary=_WORDS, tied=True
    ),
    "ViT": ModelReference.named(
        "vit", batch_size=_BATCH, input_size=32, patch=8, hidden=_WIDTH, layers=8, heads=4
    ),
    "Whisper, tied": ModelReference.named("benchmarks.model_costs.models:whisper"),
    "Mixtral": ModelReference.named(
        "mixtral", **_SIZES, inner=128, layers=4, heads=4, key_heads=2, vocabulary=_WORDS
    ),
}
"""By the name that the table shows; embeddings are tied as the models are published."""
