"""The models, and where each is cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.capturing.graph import OpGraph
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Option
from drlpp.placement.placement import Placement
from drlpp.planners import PlanningProblem, best_simulated, even_split
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster

_IMAGES: dict[str, Option] = {"batch_size": 4, "input_size": 33, "classes": 10, "width": 0.05}
_WORDS: dict[str, Option] = {"batch_size": 4, "sequence_length": 5, "vocabulary": 11, "hidden": 8}
_GPT2: dict[str, Option] = {**_WORDS, "layers": 2, "heads": 2, "positions": 8}

MODELS: dict[str, tuple[str, dict[str, Option], dict[str, Option]]] = {
    "vgg16": ("vgg16", {}, _IMAGES),
    "gnmt8": ("gnmt8", {}, _WORDS),
    "gpt2": ("gpt2", {"tied": False}, _GPT2),
    "gpt2-tied": ("gpt2", {"tied": True}, _GPT2),
    "googlenet": ("googlenet", {}, _IMAGES),
}
"""By the study's name: the zoo's name, its options, those of a tiny size. GoogLeNet branches."""

SPLITS = ("plan", "even", "parameters", "compute")


def reference(name: str, *, tiny: bool) -> ModelReference:
    """Return a model, small or tiny."""
    model, options, smallest = MODELS[name]
    return ModelReference.named(model, "small", **{**(smallest if tiny else {}), **options})


def captured(name: str, *, tiny: bool, float64: bool) -> CapturedModel:
    """Capture a model; in 64 bits where rounding is not to matter."""
    model = reference(name, tiny=tiny)
    if not float64:
        return capture(model)
    task = model.build()
    inputs = tuple(x.double() if x.is_floating_point() else x for x in task.inputs)
    return capture(model, task._replace(module=task.module.double(), inputs=inputs))


def split(
    name: str, graph: OpGraph, profile: Profile, cluster: Cluster, method: Method
) -> Placement:
    """Return a placement with one accelerator for each stage, and all of them used but by ``plan``.

    Args:
        name: ``plan`` is what ``drlpp plan --no-replication`` takes; ``even`` has as many operators
            in each stage, ``parameters`` as many bytes of them, ``compute`` as many seconds, in the
            order of the graph.
        graph: to divide.
        profile, cluster: what is planned with.
        method: that it runs with.
    """
    problem = PlanningProblem(Workload.of(profile, method), cluster, replicate=False)
    match name:
        case "plan":
            return best_simulated(problem, method, deepen=False).best.plan.placement
        case "compute":
            return even_split(problem, cluster.accelerators)
        case "parameters":
            weights = [float(operator.parameter_bytes) for operator in graph.operators]
            return balanced(weights, cluster.accelerators)
    return balanced([1.0] * len(graph), cluster.accelerators)


def balanced(weights: Sequence[float], stages: int) -> Placement:
    """Cut after the operators at which the sums of weights are nearest to equal shares."""
    sums = numpy.array([0.0, *accumulate(weights)])
    cuts = [0]
    for stage in range(1, stages):
        first, last = cuts[-1] + 1, len(weights) - (stages - stage)
        share = sums[-1] * stage / stages
        cuts.append(first + int(numpy.abs(sums[first : last + 1] - share).argmin()))
    bounds = [*cuts, len(weights)]
    stage_of = [k for k, (a, b) in enumerate(pairwise(bounds)) for _ in range(b - a)]
    return Placement.from_assignment(stage_of, range(stages))
