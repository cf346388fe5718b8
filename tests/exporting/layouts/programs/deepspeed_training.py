"""Train models of the zoo in DeepSpeed's pipeline, cut by exported modules ``placed_NAME``."""

import os
from importlib import import_module

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import TiedLayerSpec
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.model_reference import ModelReference

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # It would be compiled.


class Positions(nn.Module):
    """What GPT-2 computes between its embeddings and its blocks."""

    def __init__(self, positions: nn.Embedding) -> None:
        super().__init__()
        self.positions = positions

    def forward(self, embedded: Tensor) -> Tensor:
        return embedded + self.positions.weight[: embedded.shape[1]]


class Encoded(nn.Module):
    """An encoder that hands the target sentence on to the decoder."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, sentences: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.encoder(sentences[0]).contiguous(), sentences[1]


class Decoded(nn.Module):
    """A decoder that reads what :class:`Encoded` gives."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, states: tuple[Tensor, Tensor]) -> Tensor:
        return self.decoder(states[1], states[0])


class Tied(nn.Embedding):
    """An embedding that projects too; made where a stage needs it, with the weight of ``model``."""

    model: nn.Module

    def __init__(self) -> None:
        weight = Tied.model.tokens.weight
        super().__init__(*weight.shape, _weight=weight.detach().clone())

    def project(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weight)


def without_dropout(model: nn.Module) -> nn.Module:
    """The same, which draws nothing, and overwrites no activation that a stage receives."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return model


def layers_of(model: nn.Module, names: tuple[str, ...]) -> list[object]:
    """The list that ``Placed`` takes: modules by name, with what the model computes between."""
    layers = {name: model.get_submodule(name) for name in names}
    match type(model).__name__:
        case "VGG16":
            layers["features.30"] = nn.Sequential(layers["features.30"], nn.Flatten())
        case "GPT2":
            layers["positions"] = Positions(layers["positions"])
            if model.head.weight is model.tokens.weight:
                Tied.model = model
                layers["tokens"] = TiedLayerSpec("tokens", Tied)
                layers["head"] = TiedLayerSpec("tokens", Tied, forward_fn=Tied.project)
        case "GNMT":
            # DeepSpeed cannot send a parameter without dimensions.
            attention = model.decoder.attention
            attention.gain = nn.Parameter(attention.gain.detach().reshape(1))
            layers = {"encoder": Encoded(model.encoder), "decoder": Decoded(model.decoder)}
    return [layers[name] for name in names]


def train(name: str, case: dict[str, object], kind: str, lr: float) -> dict[str, Tensor]:
    """The parameters of this rank's stage by the model's names, after a step a minibatch."""
    placed = import_module(f"placed_{name}")
    task = ModelReference.named(case["model"], **case["options"]).build()
    model = without_dropout(task.module)
    model.load_state_dict(case["weights"])
    stage = placed.Placed(
        layers_of(model, placed.LAYERS), num_stages=dist.get_world_size(), loss_fn=task.loss
    )
    engine, *_ = deepspeed.initialize(
        model=stage,
        optimizer=getattr(torch.optim, kind)(stage.parameters(), lr=lr),
        config=placed.CONFIG | {"steps_per_print": 1000},
    )
    parts = engine.gradient_accumulation_steps()
    for *inputs, targets in zip(*case["inputs"], case["targets"], strict=True):
        pieces = zip(*(values.chunk(parts) for values in inputs), strict=True)
        read = [piece if len(piece) > 1 else piece[0] for piece in pieces]
        engine.train_batch(iter(zip(read, targets.chunk(parts), strict=True)))
    names = {parameter: one for one, parameter in model.named_parameters()}
    for module in stage.tied_modules.values():
        names[module.weight] = "tokens.weight"
    return {names[parameter]: parameter.detach().clone() for parameter in stage.parameters()}


deepspeed.init_distributed("gloo")
cases = torch.load("cases.pt")
trained = {
    name: {kind: train(name, case, kind, lr) for kind, lr in case["optimizers"].items()}
    for name, case in cases.items()
}
torch.save(trained, f"stage{dist.get_rank()}.pt")
dist.barrier()
dist.destroy_process_group()
