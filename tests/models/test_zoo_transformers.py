"""The zoo's models of today compute what transformers' do with the same weights."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from drlpp.errors import InvalidInput
from drlpp.models.task import Task
from drlpp.models.zoo import gpt2, llama, mixtral, t5, vit
from drlpp.models.zoo.mixtral import MixtureOfExperts

SENTENCES = {"batch_size": 3, "sequence_length": 7, "vocabulary": 31}
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
LLAMA = {
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 7,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
SIZES = {"hidden": 16, "inner": 20, "layers": 2, "heads": 4, "key_heads": 2, "base": 500.0}


def gpt2_pair() -> tuple[Task, PreTrainedModel]:
    config = GPT2Config(vocab_size=31, n_positions=9, n_embd=16, n_layer=2, n_head=4, **ENDS)
    task = gpt2(**SENTENCES, hidden=16, layers=2, heads=4, positions=9)
    return task, GPT2LMHeadModel(config)


def llama_pair() -> tuple[Task, PreTrainedModel]:
    model = LlamaForCausalLM(LlamaConfig(**LLAMA, tie_word_embeddings=True))
    return llama(**SENTENCES, **SIZES), model


def mixtral_pair() -> tuple[Task, PreTrainedModel]:
    config = MixtralConfig(**LLAMA, num_local_experts=4, num_experts_per_tok=2)
    # Its grouped matrix product takes no float64.
    config._experts_implementation = "eager"
    return mixtral(**SENTENCES, **SIZES, experts=4, capacity=2.0), MixtralForCausalLM(config)


def vit_pair() -> tuple[Task, PreTrainedModel]:
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        layer_norm_eps=1e-6,
        image_size=8,
        patch_size=4,
        num_labels=5,
    )
    task = vit(batch_size=3, input_size=8, patch=4, classes=5, hidden=16, layers=2, heads=4)
    return task, ViTForImageClassification(config)


def t5_pair() -> tuple[Task, PreTrainedModel]:
    config = T5Config(
        vocab_size=31,
        d_model=16,
        d_kv=6,
        d_ff=20,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    task = t5(**SENTENCES, hidden=16, inner=20, layers=2, heads=4, head_size=6)
    return task, T5ForConditionalGeneration(config)


# From names of transformers to names of the zoo; what is tied has one of its names there.
RENAMED = {
    "GPT2LMHeadModel": {
        r"transformer\.wte": "tokens",
        r"transformer\.wpe": "positions",
        r"transformer\.ln_f": "norm",
        r"transformer\.h\.": "blocks.",
        r"ln_1": "attention_norm",
        r"ln_2": "norm",
        r"attn\.c_proj": "attention.output",
        r"attn\.c_attn": "attention.{query,key,value}",
        r"mlp\.c_fc": "inner",
        r"mlp\.c_proj": "output",
    },
    "LlamaForCausalLM": (
        llama_names := {
            r"model\.embed_tokens": "tokens",
            r"model\.norm": "norm",
            r"lm_head": "head",
            r"model\.layers\.": "blocks.",
            r"input_layernorm": "attention_norm",
            r"post_attention_layernorm": "norm",
            r"self_attn\.q_proj": "attention.query",
            r"self_attn\.k_proj": "attention.key",
            r"self_attn\.v_proj": "attention.value",
            r"self_attn\.o_proj": "attention.output",
            r"mlp\.gate_proj": "feed_forward.gate",
            r"mlp\.up_proj": "feed_forward.inner",
            r"mlp\.down_proj": "feed_forward.output",
        }
    ),
    "MixtralForCausalLM": llama_names
    | {
        r"mlp\.gate\.": "feed_forward.router.",
        r"mlp\.experts\.gate_up_proj": "feed_forward.experts.*.{gate,inner}.weight",
        r"mlp\.experts\.down_proj": "feed_forward.experts.*.output.weight",
    },
    "ViTForImageClassification": {
        r"vit\.embeddings\.cls_token": "class_token",
        r"vit\.embeddings\.position_embeddings": "positions",
        r"vit\.embeddings\.patch_embeddings\.projection": "patches",
        r"vit\.layernorm": "norm",
        r"classifier": "head",
        r"vit\.layers\.": "blocks.",
        r"q_proj": "query",
        r"k_proj": "key",
        r"v_proj": "value",
        r"o_proj": "output",
        r"layernorm_before": "attention_norm",
        r"layernorm_after": "norm",
        r"mlp\.fc1": "inner",
        r"mlp\.fc2": "output",
    },
    "T5ForConditionalGeneration": {
        r"shared": "source",
        r"(..)coder\.final_layer_norm": r"\1coder_norm",
        r"(..)coder\.block\.0\..*relative_attention_bias": r"\1coder_positions.numbers",
        r"coder\.block\.": "coder.",
        r"layer\.0\.layer_norm": "attention_norm",
        r"decoder\.(.)\.layer\.1\.layer_norm": r"decoder.\1.source_norm",
        r"layer\..\.layer_norm": "norm",
        r"layer\.0\.SelfAttention": "attention",
        r"layer\.1\.EncDecAttention": "source_attention",
        r"\.q\.": ".query.",
        r"\.k\.": ".key.",
        r"\.v\.": ".value.",
        r"\.o\.": ".output.",
        r"layer\..\.DenseReluDense\.wi": "inner",
        r"layer\..\.DenseReluDense\.wo": "output",
    },
}


def weights_for_the_zoo(model: PreTrainedModel) -> dict[str, Tensor]:
    """Every weight under the zoo's name.

    Where transformers has several in one, braces name the parts of a layer, and a star those of a
    stack.
    """
    renamed = {}
    for name, value in model.named_parameters():
        # Linear layers of GPT-2 have their weights the other way round.
        turned = value.T if re.search(r"\.c_.*weight", name) else value
        for theirs, ours in RENAMED[type(model).__name__].items():
            name = re.sub(theirs, ours, name)
        stack = [turned] if "*" not in name else list(turned)
        for index, layer in enumerate(stack):
            begin, _, rest = name.replace("*", str(index)).partition("{")
            parts, _, end = rest.partition("}")
            names = parts.split(",")
            for part, piece in zip(names, layer.chunk(len(names)), strict=True):
                renamed[begin + part + end] = piece
    return renamed


@pytest.mark.parametrize(
    "pair", [gpt2_pair, llama_pair, mixtral_pair, vit_pair, t5_pair], ids=lambda f: f.__name__
)
def test_logits_are_those_of_transformers(
    pair: Callable[[], tuple[Task, PreTrainedModel]],
) -> None:
    torch.manual_seed(0)
    task, model = pair()
    module = task.module.double().eval()
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.3)
    model.double().eval()
    missing, unexpected = module.load_state_dict(weights_for_the_zoo(model), strict=False)
    tied = {"head.weight", "target.weight"} if pair is not mixtral_pair else set()
    assert not unexpected
    assert set(missing) <= tied
    inputs = [value.double() if value.is_floating_point() else value for value in task.inputs]
    names = ["pixel_values"] if pair is vit_pair else ["input_ids", "decoder_input_ids"]
    wanted = model(**dict(zip(names, inputs, strict=False))).logits
    found = module(*inputs)
    torch.testing.assert_close(found, wanted)
    assert found.std() > 0.1


def test_a_full_expert_leaves_tokens_over() -> None:
    module = MixtureOfExperts(hidden=4, inner=4, experts=2, chosen=1, capacity=1.0).double()
    torch.nn.init.zeros_(module.router.weight)
    with torch.no_grad():
        # All tokens want the first expert, the later the more.
        module.router.weight[0] = 1.0
        x = torch.linspace(0.1, 1, 6).double().view(1, 6, 1).expand(1, 6, 4)
        found = module(x)
        wanted = module.experts[0](x)
        gates = module.router(x).softmax(-1)
    assert gates[..., 0].argmax() == 5
    torch.testing.assert_close(found[0, 3:], wanted[0, 3:])
    assert not found[0, :3].any()


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (gpt2, {"sequence_length": 9, "positions": 8}, "has 8 positions"),
        (llama, {"key_heads": 0}, "do not go together"),
        (mixtral, {"capacity": 0.0, "layers": 1}, "has to take tokens"),
        (vit, {"patch": 0}, "cannot be cut into patches"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    factory: Callable[..., Task], options: dict[str, int], message: str
) -> None:
    with torch.device("meta"), pytest.raises(InvalidInput, match=message):
        factory(**options)
