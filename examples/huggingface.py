"""Models of `transformers` by import path, such as ``drlpp show examples.huggingface:bert``.

Every factory makes a model with random weights from a configuration, so that nothing is
downloaded; ``from_pretrained`` in its place gives published weights. ``from_huggingface`` makes a
task of it, with the loss that the model itself computes from labels. With ``tied=True`` words are
guessed with the weights of their embedding, as in the published models; stages
that share these hold a copy each (docs/models.md).
"""

from __future__ import annotations

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from drlpp import Task, from_huggingface


def bert(
    batch_size: int = 8,
    length: int = 32,
    vocabulary: int = 1000,
    hidden: int = 64,
    layers: int = 4,
    tied: bool = False,
) -> Task:
    """Make BERT, guessing the words of random sentences."""
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * hidden,
        max_position_embeddings=length,
        tie_word_embeddings=tied,
    )
    tokens = torch.randint(vocabulary, (batch_size, length))
    return from_huggingface(BertForMaskedLM(config), {"input_ids": tokens, "labels": tokens})


def gpt2(
    batch_size: int = 8,
    length: int = 32,
    vocabulary: int = 1000,
    hidden: int = 64,
    layers: int = 4,
    tied: bool = False,
) -> Task:
    """Make GPT-2, asked for the next word of random sentences."""
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=length,
        n_embd=hidden,
        n_layer=layers,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=tied,
    )
    # The model compares each word with the next.
    tokens = torch.randint(vocabulary, (batch_size, length))
    return from_huggingface(GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens})


def t5(
    batch_size: int = 8,
    length: int = 32,
    vocabulary: int = 1000,
    hidden: int = 64,
    layers: int = 4,
    tied: bool = False,
) -> Task:
    """Make T5, translating random sentences."""
    config = T5Config(
        vocab_size=vocabulary,
        d_model=hidden,
        d_kv=hidden // 4,
        d_ff=4 * hidden,
        num_layers=layers,
        num_heads=4,
        decoder_start_token_id=0,
    )
    # T5Config ignores the argument.
    config.tie_word_embeddings = tied
    source, target = torch.randint(vocabulary, (2, batch_size, length))
    batch = {"input_ids": source, "labels": target}
    return from_huggingface(T5ForConditionalGeneration(config), batch)


def resnet(batch_size: int = 8, input_size: int = 32, classes: int = 10) -> Task:
    """Make a ResNet of basic blocks on random images."""
    config = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 64],
        depths=[2, 2, 2],
        layer_type="basic",
        num_labels=classes,
    )
    images = torch.randn(batch_size, 3, input_size, input_size)
    batch = {"pixel_values": images, "labels": torch.randint(classes, (batch_size,))}
    return from_huggingface(ResNetForImageClassification(config), batch)
