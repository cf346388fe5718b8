"""Models of `transformers` by import path, such as ``drlpp capture examples.huggingface:bert``.

Every factory makes a model with random weights from a configuration, so that nothing is
downloaded; ``from_pretrained`` in its place gives published weights. ``use_cache=False`` matters,
and that only the logits are returned: torch.export takes tensors, not caches. With ``tied=True``
words are guessed with the weights of their embedding, as in the published models; stages that share
these hold a copy each (docs/models.md).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from drlpp import Task


class Logits(nn.Module):
    """A model of transformers that is called with tensors and gives the logits alone.

    Args:
        model: called with keywords.
        names: of the arguments, in the order in which the tensors come.
        options: further arguments.
    """

    def __init__(self, model: PreTrainedModel, *names: str, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.options = options
        # After from_pretrained a model is in evaluation mode.
        self.train()

    def forward(self, *values: Tensor) -> Tensor:
        """Give the logits."""
        arguments = dict(zip(self.names, values, strict=True))
        return self.model(**arguments, **self.options).logits


def token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean cross entropy over all tokens.

    Args:
        logits: ``(batch, length, vocabulary)``.
        tokens: the right ones, ``(batch, length)``.
    """
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


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
    model = Logits(BertForMaskedLM(config), "input_ids")
    tokens = torch.randint(vocabulary, (batch_size, length))
    return Task(model, (tokens,), tokens, token_loss)


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
    model = Logits(GPT2LMHeadModel(config), "input_ids", use_cache=False)
    tokens = torch.randint(vocabulary, (batch_size, length + 1))
    return Task(model, (tokens[:, :-1],), tokens[:, 1:], token_loss)


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
    model = Logits(
        T5ForConditionalGeneration(config), "input_ids", "decoder_input_ids", use_cache=False
    )
    source = torch.randint(vocabulary, (batch_size, length))
    target = torch.randint(vocabulary, (batch_size, length + 1))
    return Task(model, (source, target[:, :-1]), target[:, 1:], token_loss)


def resnet(batch_size: int = 8, input_size: int = 32, classes: int = 10) -> Task:
    """Make a ResNet of basic blocks on random images."""
    config = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 64],
        depths=[2, 2, 2],
        layer_type="basic",
        num_labels=classes,
    )
    model = Logits(ResNetForImageClassification(config), "pixel_values")
    images = torch.randn(batch_size, 3, input_size, input_size)
    return Task(model, (images,), torch.randint(classes, (batch_size,)), F.cross_entropy)
