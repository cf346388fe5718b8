"""Learning-rate schedules: torch's, tabulated before training begins.

The learning rate of every minibatch is known in advance. So no scheduler lives on the workers. A
resumed training continues in the same table. Weight prediction sums up the learning rates of the
updates to come.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from drlpp.errors import InvalidInput
from drlpp.io.quantities import Count
from drlpp.specs.class_options import NamedClass, option_defaults


class LearningRateSchedule(NamedClass):
    """How the learning rate changes in the course of a training.

    Attributes:
        name: of a class of ``torch.optim.lr_scheduler`` in lower case, ``cosineannealinglr`` or
            just ``cosineannealing``, or ``package.module:Class``.
        options: arguments of the class, which counts in units of ``interval``.
        interval: how often the learning rate changes.
        warm_up: minibatches in which the learning rate rises linearly to where the schedule
            begins; it does so after them, or in the epoch in which they end.
    """

    what: ClassVar[str] = "learning-rate schedule"
    _option: ClassVar[str] = "--lr-schedule"
    _in_python: ClassVar[str] = "learning_rate=LearningRateSchedule.parse({0!r})"
    module: ClassVar[str] = "torch.optim.lr_scheduler"
    base_name: ClassVar[str] = "LRScheduler"
    ending: ClassVar[str] = "lr"
    # Only the learning rate changes, and a function cannot stand in a file.
    hidden: ClassVar[frozenset[str]] = frozenset(
        {
            "optimizer",
            "last_epoch",
            "cycle_momentum",
            "base_momentum",
            "max_momentum",
            "scale_fn",
            "scale_mode",
        }
    )

    interval: Literal["epoch", "minibatch"] = "epoch"
    warm_up: Count = 0

    @classmethod
    def parse(
        cls, name: str, /, *, interval: object = "epoch", warm_up: object = 0, **options: object
    ) -> LearningRateSchedule:
        """Build from a name as a user types it; options that are None are left at their default.

        Raises:
            InvalidInput: if there is no such schedule or option, or it cannot work here.
        """
        return cls._parse(name, options, interval=interval, warm_up=warm_up)

    def rates(self, base_rate: float, minibatches: int, minibatches_per_epoch: int) -> list[float]:
        """Return the learning rate of every minibatch of a training.

        Args:
            base_rate: the optimizer's.
            minibatches: in the whole training.
            minibatches_per_epoch: after how many an epoch ends.

        Raises:
            InvalidInput: if the schedule is shorter than the training, or leaves the numbers that
                a learning rate can be.
        """
        unit = minibatches_per_epoch if self.interval == "epoch" else 1
        begin = self.warm_up // unit
        points = [max(minibatch // unit - begin, 0) for minibatch in range(minibatches)]
        try:
            table = self._table(base_rate, max(points, default=0) + 1)
        except Exception as error:
            raise self._refusal(error) from error
        for point, rate in enumerate(table):
            if not 0 <= rate < math.inf:
                raise InvalidInput(
                    f"{self.what} {self.name} gives the learning rate {rate:g} after {point} "
                    f"{self.interval}s; expected 0 or more"
                )
        # As long as minibatch k warms up, the schedule is at its first point.
        return [
            table[point] * min(1.0, (minibatch + 1) / (self.warm_up + 1))
            for minibatch, point in enumerate(points)
        ]

    def _try(self) -> None:
        # Some options are wrong only when the rate changes, such as a step size of 0.
        self._table(1.0, 2)

    def _table(self, base_rate: float, count: int) -> list[float]:
        """Return the first ``count`` learning rates of torch's scheduler on an empty optimizer."""
        import torch

        kind: Any = self.find()
        options = self.arguments
        if "cycle_momentum" in option_defaults(kind, frozenset()):
            options["cycle_momentum"] = False
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=base_rate)
        scheduler = kind(optimizer, **options)
        # The scheduler looks whether there was an update, and warns if not.
        optimizer.step()
        table = [float(optimizer.param_groups[0]["lr"])]
        while len(table) < count:
            scheduler.step()
            table.append(float(optimizer.param_groups[0]["lr"]))
        return table
