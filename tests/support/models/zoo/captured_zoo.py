"""The zoo's small models in 64 bits."""

from drlpp.models.task import Task
from tests.support.models.zoo.tiny_models import tiny


def task_in_float64(name: str) -> Task:
    """With batch normalisation over few values, rounding in float32 is not small."""
    task = tiny(name).build()
    inputs = tuple(x.double() if x.is_floating_point() else x for x in task.inputs)
    return task._replace(module=task.module.double(), inputs=inputs)
