"""The zoo's decoder computes what transformers' does with the same weights."""

from __future__ import annotations

import re

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from drlpp.models.task import Task
from drlpp.models.zoo.language import gpt2

SENTENCES = {"batch_size": 3, "sequence_length": 7, "vocabulary": 31}
ENDS = {"bos_token_id": 0, "eos_token_id": 0}


def gpt2_pair() -> tuple[Task, PreTrainedModel]:
    config = GPT2Config(vocab_size=31, n_positions=9, n_embd=16, n_layer=2, n_head=4, **ENDS)
    task = gpt2(**SENTENCES, hidden=16, layers=2, heads=4, positions=9)
    return task, GPT2LMHeadModel(config)


# From names of transformers to names of the zoo; what is tied has one of its names there.
RENAMED = {
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
}


def weights_for_the_zoo(model: PreTrainedModel) -> dict[str, Tensor]:
    """Every weight under the zoo's name.

    Where transformers has several in one, braces name the parts of a layer.
    """
    renamed = {}
    for name, value in model.named_parameters():
        # Linear layers of GPT-2 have their weights the other way round.
        turned = value.T if re.search(r"\.c_.*weight", name) else value
        for theirs, ours in RENAMED.items():
            name = re.sub(theirs, ours, name)
        begin, _, rest = name.partition("{")
        parts, _, end = rest.partition("}")
        names = parts.split(",")
        for part, piece in zip(names, turned.chunk(len(names)), strict=True):
            renamed[begin + part + end] = piece
    return renamed


def test_logits_are_those_of_transformers() -> None:
    torch.manual_seed(0)
    task, model = gpt2_pair()
    module = task.module.double().eval()
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.3)
    model.double().eval()
    missing, unexpected = module.load_state_dict(weights_for_the_zoo(model), strict=False)
    assert not unexpected
    assert set(missing) <= {"head.weight"}
    wanted = model(input_ids=task.inputs[0]).logits
    found = module(*task.inputs)
    torch.testing.assert_close(found, wanted)
    assert found.std() > 0.1
