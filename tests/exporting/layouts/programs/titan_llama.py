"""torchtitan's own Llama 3, small; no drlpp is needed to import it."""

import sys
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, LENGTH, BATCH = 32, 6, 8
_KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"


def llama(layers: int = 4) -> tuple[nn.Module, tuple[Tensor], Tensor, object]:
    """The model with fresh weights, one minibatch of random text, and the mean over tokens."""
    if find_spec("triton") is None and _KERNELS not in sys.modules:
        # Kernels for experts on GPUs, which a dense model never calls, are imported by all models.
        kernels = ModuleType(_KERNELS)
        kernels.__getattr__ = lambda name: None
        sys.modules[_KERNELS] = kernels
    from torchtitan.models import common, llama3

    config = llama3.Llama3Model.Config(
        dim=16,
        vocab_size=VOCABULARY,
        tok_embeddings=common.Embedding.Config(
            num_embeddings=VOCABULARY, embedding_dim=16, param_init=llama3._EMBEDDING_INIT
        ),
        norm=common.RMSNorm.Config(normalized_shape=16, param_init=llama3._NORM_INIT),
        lm_head=common.Linear.Config(
            in_features=16, out_features=VOCABULARY, param_init=llama3._output_linear_init(16)
        ),
        layers=llama3._build_llama3_layers(
            n_layers=layers,
            dim=16,
            n_heads=2,
            hidden_dim=24,
            rope=common.ComplexRoPE.Config(dim=8, max_seq_len=16, theta=10_000),
            attn_backend="flex",
        ),
    )
    for layer in config.layers:
        # torchtitan's trainer takes flex or varlen attention, whose backwards need a GPU.
        layer.attention.inner_attention = common.ScaledDotProductAttention.Config()
    module = config.build()
    module.init_states()
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))

    def loss(logits: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())

    return module, (tokens[:, :-1].contiguous(),), tokens[:, 1:].contiguous(), loss
