"""PipeDream's Table 1 and figure 11."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pandas import DataFrame

from benchmarks.paper_tables import pipedream
from benchmarks.paper_tables.pipedream import DATA_PARALLEL, PIPEDREAM, Timing, Training
from benchmarks.paper_tables.tables.claims import NOT_YET, judged_seconds, spread
from benchmarks.paper_tables.tables.papers import PIPEDREAM_TABLE_1
from benchmarks.paper_tables.tables.parts import section


def pipedream_section(timings: Sequence[Timing], trainings: Sequence[Training]) -> str:
    """Return Table 1 and figure 11."""
    rows, claims = [], []
    for timing in timings:
        ratio = _speed_up(timing)
        epochs = _epochs_to_target(timing, trainings)
        plain, theirs = (epochs[way] for way in (DATA_PARALLEL, PIPEDREAM))
        both = bool(plain and theirs)
        to_loss = ratio * statistics.mean(plain) / statistics.mean(theirs) if both else None
        learns = pipedream.MODELS[timing.model].learns
        rows.append(
            {
                "model, data": timing.model,
                "links": f"{timing.links} ({timing.bandwidth / 1e6:.0f} MB/s)",
                "configuration": timing.placement.configuration,
                "epoch time": f"{ratio:.2f}×",
                "time to loss": f"{to_loss:.2f}×" if to_loss else NOT_YET if learns else "–",
                "epochs, data parallelism": spread(plain, 1) if learns else "–",
                "epochs, PipeDream": spread(theirs, 1) if learns else "–",
            }
        )
        where = f"{timing.model}, {timing.links}"
        claims.append(
            judged_seconds(
                "an epoch takes less time than with data parallelism",
                where,
                dict(enumerate(timing.seconds[PIPEDREAM])),
                dict(enumerate(timing.seconds[DATA_PARALLEL])),
            )
        )
        if learns:
            claims.append(
                judged_seconds(
                    "about as many epochs (±10%) to the loss (figure 11)",
                    where,
                    dict(enumerate(theirs)),
                    dict(enumerate(plain)),
                    alike_within=0.1,
                )
            )
    return section(
        "PipeDream: Table 1 and figure 11",
        [
            (
                "Speed-up of PipeDream's planner's configuration over data parallelism on four "
                "emulated accelerators; epochs to the loss that data parallelism has after three "
                "quarters of its own (not reached counts as the last):",
                DataFrame(rows),
            ),
            ("The paper's Table 1:", PIPEDREAM_TABLE_1),
        ],
        claims,
    )


def _speed_up(timing: Timing) -> float:
    medians = {way: statistics.median(found) for way, found in timing.seconds.items()}
    return medians[DATA_PARALLEL] / medians[PIPEDREAM]


def _epochs_to_target(timing: Timing, trainings: Sequence[Training]) -> dict[str, list[float]]:
    """Return the epochs of each seed, by the way of training; none before all are trained."""
    model = pipedream.MODELS[timing.model]
    operators = sum(len(stage.operators) for stage in timing.placement.stages)
    workers = 1 + max(timing.placement.accelerators)
    plain = pipedream.everywhere(operators, workers).placement
    found: dict[str, list[float]] = {}
    target = pipedream.target_of(trainings, timing.model, plain, model.epochs)
    for way, placement in ((DATA_PARALLEL, plain), (PIPEDREAM, timing.placement)):
        chosen = (
            pipedream.training_of(trainings, timing.model, placement, model.epochs, seed)
            for seed in pipedream.SEEDS
        )
        found[way] = [
            (training.minibatches_to(target) or training.points[-1].minibatches)
            / timing.minibatches
            for training in chosen
            if training is not None and target is not None
        ]
    return found
