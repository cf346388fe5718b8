"""``drlpp export``: a placement in the formats of other projects."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drlpp.cli.command_line import (
    OPTIMIZER_HELP,
    POLICY_HELP,
    MethodOptions,
    OptimizerOptions,
    TrustOption,
    build_console,
    optimizer_options,
    read_options,
    settle_imports,
)
from drlpp.errors import InvalidInput, InvalidPlacement

if TYPE_CHECKING:
    from drlpp.exporting.nearest import Nearest
    from drlpp.placement.execution_plan import ExecutionPlan
    from drlpp.specs.cluster import Cluster


class Target(StrEnum):
    """Whose format."""

    TORCH = "torch"


def export_placement(
    placement: Annotated[Path, typer.Argument(help="A placement.json.")],
    to: Annotated[
        Target, typer.Option(help="torch: a folder with a program that trains without drlpp.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write, a new one.")],
    policy: Annotated[str | None, typer.Option(help=f"{POLICY_HELP}; else as measured.")] = None,
    method_option: MethodOptions = [],  # noqa: B006 - typer copies it
    optimizer: Annotated[
        str | None, typer.Option(help=f"{OPTIMIZER_HELP}; else as measured.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    optimizer_option: OptimizerOptions = [],  # noqa: B006
    window: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000,
            help="Minibatches that an asynchronous schedule trains on before the pipeline is "
            "emptied; torch keeps the messages of a window until its end.",
        ),
    ] = 20,
    profile: Annotated[
        Path | None,
        typer.Option(help="A profile.json, for what the export costs; else made up from sizes."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and dropout.")] = 0,
    trust: TrustOption = [],  # noqa: B006
) -> None:
    """Write a placement so that others can train with it, and say what they cannot express."""
    from drlpp.capturing.capture import capture
    from drlpp.exporting.nearest import nearest_chain, ranks
    from drlpp.exporting.torch_bundle import TorchExport
    from drlpp.placement.placement_file import read_placement
    from drlpp.schedule.method import choose_method
    from drlpp.specs.optimizer_spec import OptimizerSpec

    document = read_placement(placement, trust=trust)
    if optimizer is not None:
        # What the file says of it does not count.
        document = document.model_copy(update={"optimizer": OptimizerSpec()})
    settle_imports(placement, document)
    _check_new(output)
    options = read_options(method_option, "method", "accumulate=4")
    method = choose_method(policy, options, document.method)
    spec = document.optimizer.changed(optimizer, optimizer_options(optimizer_option, lr))
    captured = capture(document.model, seed=seed)
    try:
        plan = document.plan(captured.graph, method)
    except InvalidPlacement as error:
        raise InvalidPlacement(f"{placement}: {error}") from None
    console = build_console()
    nearest = nearest_chain(plan)
    hosts = tuple(document.cluster.host_names[host] for host in document.cluster.host_of)
    lines = [*nearest.notes, *filter(None, [ranks(nearest, hosts)])]
    if nearest.notes:
        lines.append(_cost(plan, nearest, document.cluster, profile))
    if not nearest.candidate.method.flushes:
        lines.append(f"the pipeline is emptied after every {window} minibatches (--window)")
    TorchExport(captured, nearest, spec, seed, window, tuple(lines)).write(output)
    for line in lines:
        console.print(f"note: {line}", soft_wrap=True)
    stages = len(nearest.candidate.placement.stages)
    console.print(f"written to {output}")
    console.print(f"torchrun --nproc-per-node {stages} {output / 'run.py'}", soft_wrap=True)


def _check_new(output: Path) -> None:
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise InvalidInput(f"{output}: is there already; name another place, or remove it")


def _cost(plan: ExecutionPlan, nearest: Nearest, cluster: Cluster, profile: Path | None) -> str:
    """Return a sentence about what the export costs."""
    from drlpp.cli.planning.planning_input import read_profile
    from drlpp.costs.estimated_profile import estimate_profile
    from drlpp.exporting.cost import ExportCost
    from drlpp.io.formatting import seconds_text

    assert plan.graph is not None
    if profile is None:
        costs, source = estimate_profile(plan.graph), "with costs made up from sizes (--profile)"
    else:
        costs, source = read_profile(profile), f"with the costs of {profile}"
        if costs.graph.fingerprint != plan.graph.fingerprint:
            raise InvalidInput(
                f"{profile}: the profile is of {costs.graph.model} (graph "
                f"{costs.graph.fingerprint}), but this is {plan.graph.model} (graph "
                f"{plan.graph.fingerprint}); profile that model"
            )
    cost = ExportCost.of(costs, cluster, plan.candidate, nearest.candidate)
    return (
        f"by the simulator a minibatch takes {seconds_text(cost.exported_seconds)} as exported and "
        f"{seconds_text(cost.original_seconds)} as placed, {cost.ratio:.2f}×, {source}"
    )
