"""Train ``llama`` by torchtitan's ``pipeline_llm`` with an exported ``parallelism.toml``."""

import tomllib
from pathlib import Path

import torch
import torch.distributed as dist
from titan_llama import llama
from torch import nn

module, *_ = llama()
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import ParallelDims, parallel_dims, utils  # noqa: E402
from torchtitan.distributed.pipeline_parallel import pipeline_llm  # noqa: E402
from torchtitan.models.llama3 import parallelize_llama  # noqa: E402

parallel_dims.device_type = "cpu"  # It takes a GPU, there or not.
dist.init_process_group("gloo")
written = tomllib.loads(Path("titan/parallelism.toml").read_text())
options = ParallelismConfig(**written["parallelism"], spmd_backend="partial_dtensor")
utils.set_spmd_backend(options.spmd_backend)
dims = ParallelDims.from_config(options, dist.get_world_size())
dims.build_mesh()
data = torch.load("data.pt")


def train(optimizer: type[torch.optim.Optimizer], lr: float) -> nn.Module:
    """This rank's stage, after a step for every minibatch."""
    module.load_state_dict(data["weights"])
    schedule, (stage,), first, last = pipeline_llm(
        module,
        parallel_dims=dims,
        training=TrainingConfig(**written["training"], mixed_precision_param="float32"),
        parallelism=options,
        compile_config=CompileConfig(),
        ac_config=None,
        dump_folder=".",
        device=torch.device("cpu"),
        model_config=module.config,
        parallelize_fn=parallelize_llama,
        loss_fn=CrossEntropyLoss(CrossEntropyLoss.Config()),
    )
    steps = optimizer(stage.parameters(), lr=lr)
    for tokens, following in zip(data["inputs"], data["targets"], strict=True):
        steps.zero_grad()
        # torchtitan's trainer gives lists of microbatches, which this torch's step does not take.
        schedule.step(
            *([tokens] if first else []),
            target=following if last else None,
            losses=[] if last else None,
            loss_kwargs={"global_valid_tokens": torch.tensor(float(following.numel()))},
            return_outputs=False,
        )
        steps.step()
    return stage


states = {}
for name, lr in data["optimizers"].items():
    stage = train(getattr(torch.optim, name), lr)
    # FSDP holds them, whole, since a stage has one rank.
    states[name] = {one: held.full_tensor().detach() for one, held in stage.named_parameters()}
torch.save(states, f"stage{dist.get_rank()}.pt")
dist.barrier()
dist.destroy_process_group()
