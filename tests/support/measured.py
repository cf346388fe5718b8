"""Measurements that nobody made."""

from drlpp.placement.measurement import Measurement, WorkerUsage


def measurement(seconds: float, workers: int = 2) -> Measurement:
    """Return a measurement of so many seconds per minibatch, with workers that wait for 30%."""
    return Measurement(
        seconds_per_minibatch=seconds,
        median_seconds=seconds,
        standard_deviation_seconds=seconds / 10,
        minibatches=10,
        workers=tuple(
            WorkerUsage(
                worker=worker,
                stage=worker,
                busy_seconds=7 * seconds,
                waiting_seconds=3 * seconds,
                peak_memory_bytes=10**6,
            )
            for worker in range(workers)
        ),
    )
