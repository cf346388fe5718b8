"""``drlpp export``: a placement in the formats of other projects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drlpp.capturing.capture import capture
from drlpp.cli.arguments import Export
from drlpp.cli.command_line import console
from drlpp.cli.settings import same_model
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.exporting.layouts.module_layout import nearest_layout
from drlpp.exporting.layouts.programs import MODULE_FORMATS
from drlpp.exporting.nearest import nearest_chain, ranks
from drlpp.exporting.torch_bundle import write_bundle
from drlpp.io.formatting import seconds_text
from drlpp.placement.placement_file import read_placement
from drlpp.planners.replanning import profile_beside
from drlpp.runtime.training.checkpoints import export_weights
from drlpp.simulator import simulate


def export(given: Export) -> dict[str, Any]:
    """Run ``drlpp export``."""
    source, to, out = given.source, given.to, given.out
    if to == "weights":
        tensors = export_weights(source, out)
        console.print(f"{tensors} tensors written to {out}")
        return {"tensors": tensors, "written_to": str(out)}
    placement = Path(source)
    document = read_placement(placement, model=same_model(given.model, given.model_option))
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InvalidInput(f"{out}: is there already; name another place, or remove it")
    spec = given.optimizer.spec(document.optimizer)
    captured = capture(document.model, seed=given.seed)
    try:
        plan = document.plan(captured.graph)
    except InvalidPlacement as error:
        raise InvalidPlacement(f"{placement}: {error}") from None
    known = profile_beside(placement, document.graph_fingerprint)
    costs = known or Profile.estimated(captured.graph)
    form = MODULE_FORMATS.get(to)
    nearest = nearest_chain(
        plan,
        captured.task.batch_size,
        trains_itself=form is not None,
        only_1f1b=form is not None and form.only_1f1b,
    )
    if form is not None:
        units = form.units(captured.task.module, captured.graph)
        nearest = nearest_layout(nearest, captured.graph, units, costs.seconds)
    lines = list(nearest.notes)
    if lines:
        placed, exported = (
            simulate(Workload.of(costs, one.method), document.cluster, one.placement, one.method)
            for one in (plan.candidate, nearest.candidate)
        )
        before, after = placed.seconds_per_minibatch, exported.seconds_per_minibatch
        lines.append(
            f"by the simulator a minibatch takes {seconds_text(after)} as exported and "
            f"{seconds_text(before)} as placed, {after / before:.2f}×, with costs "
            + ("of its profile.json" if known else "made up from sizes (no profile.json beside it)")
        )
    lines += filter(None, [ranks(nearest, document.cluster.host_name_of)])
    for line in lines:
        console.print(f"note: {line}")
    if form is None:
        then = write_bundle(captured, nearest, spec, out, given.seed, lines)
    else:
        then = form.write(nearest, captured, tuple(lines), out)
    console.print(f"written to {out}")
    console.print(then)
    return {"written_to": str(out), "then": then, "notes": lines}
